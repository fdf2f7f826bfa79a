#!/usr/bin/env bash
# Gets the system packages that a checkout wants, as far as this machine lets us. usage: system_packages.sh PYTHON
# Never fails: check_machine.py says afterwards what is still missing and what that means.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${1:?usage: system_packages.sh PYTHON}

required=()
wanted=()
"$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || required+=(libnuma1)
"$python" -c 'import ensurepip, venv' 2>/dev/null || required+=(python3-venv)
command -v redis-server >/dev/null || wanted+=(redis-server)
command -v redis-cli >/dev/null || wanted+=(redis-tools)

# Apart, so that a package that cannot be had and is only wanted does not keep out one that is required.
if [ ${#required[@]} -gt 0 ]; then "$here/apt.sh" "${required[@]}"; fi
if [ ${#wanted[@]} -gt 0 ]; then "$here/apt.sh" "${wanted[@]}"; fi
exit 0
