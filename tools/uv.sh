#!/usr/bin/env bash
# Runs the pinned uv, and fetches it once if need be. usage: uv.sh ARGUMENTS
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
lock=$here/../requirements/uv.lock

key=$(sha256sum "$lock" | cut -c1-12)
home=${XDG_CACHE_HOME:-$HOME/.cache}/stream2llm/tools/uv-$key

if [ ! -x "$home/bin/uv" ]; then
  python=$("$here/python.sh")
  echo "setup: fetching the installer (uv) with pip" >&2
  mkdir -p "$(dirname "$home")"
  # Two checkouts may get here at once: build aside, then rename. uv is one static binary and does not mind.
  fresh=$(mktemp -d "$home.XXXXXX")
  trap 'rm -rf "$fresh"' EXIT
  "$python" -m venv "$fresh"
  "$fresh/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
  mv -T "$fresh" "$home" 2>/dev/null || [ -x "$home/bin/uv" ]
fi

# uv reads neither pip's configuration nor, unasked, the machine's certificates. A machine that has pip set up for a
# mirror or for a certificate authority of its own has said all there is to say.
pip_setting() { "$home/bin/python" -m pip --disable-pip-version-check config get "global.$1" 2>/dev/null || true; }
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}
export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
if [ -z "${UV_DEFAULT_INDEX:-}" ]; then
  index=${PIP_INDEX_URL:-$(pip_setting index-url)}
  if [ -n "$index" ]; then export UV_DEFAULT_INDEX=$index; fi
fi
if [ -z "${SSL_CERT_FILE:-}" ]; then
  certificates=${PIP_CERT:-$(pip_setting cert)}
  if [ -n "$certificates" ]; then export SSL_CERT_FILE=$certificates; fi
fi
exec "$home/bin/uv" "$@"
