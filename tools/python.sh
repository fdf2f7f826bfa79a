#!/usr/bin/env bash
# Prints a Python interpreter that is new enough: $PYTHON if set, else the best one on PATH.
set -euo pipefail

suitable='import sys; sys.exit(sys.version_info < (3, 11))'

if [ -n "${PYTHON:-}" ]; then
  if "$PYTHON" -c "$suitable" 2>/dev/null; then
    echo "$PYTHON"
    exit
  fi
  echo "setup: PYTHON=$PYTHON is not a working Python 3.11 or newer" >&2
  exit 1
fi
# 3.11 first: the lock file is made for it. Version managers leave shims that exist and do not run, so each is tried.
for candidate in python3.11 python3 python3.12 python3.13; do
  if "$candidate" -c "$suitable" 2>/dev/null; then
    echo "$candidate"
    exit
  fi
done
found=$(python3 --version 2>/dev/null || echo "no python3 at all")
echo "setup: Python 3.11 or newer is needed, and PATH has $found." >&2
echo "setup: install it (Debian, Ubuntu: apt-get install python3 python3-venv) or name one: make setup PYTHON=/path/to/python3.11" >&2
exit 1
