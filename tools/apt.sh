#!/usr/bin/env bash
# Installs Debian packages if this machine lets us (root and apt-get), else says the command. usage: apt.sh PACKAGE...
# Exit status 0: installed. 1: not, and why is on stderr.
set -euo pipefail

command="apt-get install -y --no-install-recommends $*"
if ! command -v apt-get >/dev/null; then
  echo "setup: this is not a Debian or Ubuntu; install what they call: $*" >&2
  exit 1
fi
if [ "$(id -u)" != 0 ]; then
  echo "setup: not root, so please run: sudo $command" >&2
  exit 1
fi
echo "setup: installing system packages: $*" >&2
# RUNLEVEL=1 keeps packages from starting their services (nobody asked for a Redis on port 6379).
export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@" >"$log" 2>&1; }
# A fresh machine has no package lists, or outdated ones.
install "$@" || { apt-get -o DPkg::Lock::Timeout=300 update -qq >/dev/null 2>&1 || true; install "$@"; } || {
  tail -n 5 "$log" >&2
  echo "setup: that failed; please run: $command" >&2
  exit 1
}
