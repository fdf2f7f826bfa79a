#!/usr/bin/env bash
# Prints a folder with the Python sources of the vLLM in requirements/vllm-sources.lock, and fetches them once if need be.
#
# They come out of the wheel on PyPI, whose kernels need CUDA and are left out: the simulated executor needs none.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=requirements/vllm-sources.lock

say() { echo "vllm sources: $*" >&2; }

version=$(sed -n 's/^vllm==\([^ ]*\).*/\1/p' "$lock")
home=${XDG_CACHE_HOME:-$HOME/.cache}/stream2llm/vllm-sources
folder=$home/$version
if [ ! -d "$folder" ]; then
  say "fetching vLLM $version once (330 MB to download, 1 GB for a moment, 50 MB that stay)"
  mkdir -p "$home"
  # Two checkouts may get here at once: build aside, then rename.
  fresh=$(mktemp -d "$home/$version.XXXXXX")
  trap 'rm -rf "$fresh"' EXIT
  tools/uv.sh pip install --quiet --no-cache --no-deps --only-binary :all: --require-hashes --python .venv/bin/python \
    --target "$fresh/wheel" -r "$lock" >&2 || {
    say "error: vLLM $version could not be fetched, see above; the tests against it cannot run. Behind a proxy set"
    say "error: HTTPS_PROXY, behind a certificate authority of your own set SSL_CERT_FILE. Then run this again."
    exit 1
  }
  (cd "$fresh/wheel" && find vllm -name '*.py' -print0 | tar --create --null --files-from=-) |
    (mkdir "$fresh/sources" && tar --extract --directory "$fresh/sources")
  mv -T "$fresh/sources" "$folder" 2>/dev/null || [ -d "$folder" ]
fi
echo "$folder"
