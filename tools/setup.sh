#!/usr/bin/env bash
# Makes .venv in the checkout hold exactly requirements/development.lock. Does nothing if it already does.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }

stamp=.venv/setup-of
fingerprint() {
  # The path is part of it: an editable install and the scripts of a virtual environment both name it.
  { pwd; cat requirements/development.lock requirements/build.lock pyproject.toml; } | sha256sum
}
up_to_date() { [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(fingerprint)" ]; }

if up_to_date; then exit; fi
exec 9>.setup.lock
if ! flock -n 9; then
  say "another setup is at work in this checkout, waiting for it"
  flock 9
  if up_to_date; then exit; fi
fi

say "1/3 checking this machine"
python=$(tools/python.sh)
export PYTHON=$python
tools/system_packages.sh "$python"
cache=${XDG_CACHE_HOME:-$HOME/.cache}
if [ -d .venv/lib ]; then
  # An environment is there and is only brought up to date.
  "$python" tools/check_machine.py . 2 "$cache" 2
else
  mkdir -p "$cache"
  if [ "$(stat -c %d "$cache")" = "$(stat -c %d .)" ]; then
    "$python" tools/check_machine.py "$cache" 10
  else
    # uv cannot link files from its cache into another file system, so they lie there twice.
    "$python" tools/check_machine.py "$cache" 10 . 8
  fi
fi

say "2/3 getting the installer and making .venv with $("$python" --version)"
tools/uv.sh --version >/dev/null || {
  say "error: the installer could not be fetched; see above. Behind a proxy set HTTPS_PROXY; behind a certificate"
  say "error: authority of your own set SSL_CERT_FILE and PIP_CERT to its file. Then run this again."
  exit 1
}
rm -f "$stamp"
if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  rm -rf .venv
  "$python" -m venv --without-pip --prompt stream2llm .venv
fi

say "3/3 installing $(grep -c '^[a-zA-Z0-9].*==' requirements/development.lock) locked packages into .venv (6 GB; the first time downloads 4 GB and takes some minutes)"
started=$SECONDS
tools/uv.sh pip sync --python .venv/bin/python --build-constraints requirements/build.lock requirements/development.lock || {
  say "error: not everything could be installed; uv's reason is above. If it is the network: behind a proxy set"
  say "error: HTTPS_PROXY, behind a certificate authority of your own set SSL_CERT_FILE. What has been downloaded"
  say "error: is kept, so running this again goes on from here."
  exit 1
}
fingerprint >"$stamp"
say "done in $((SECONDS - started)) s: .venv/bin/stream2llm is the command"
