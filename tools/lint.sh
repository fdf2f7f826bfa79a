#!/usr/bin/env bash
# Runs every static check, all of them even if one fails, with the tools of .venv.
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.venv/bin:$PATH

failed=()
check() { # check NAME COMMAND...
  local name=$1
  shift
  echo "== $name"
  "$@" || failed+=("$name")
}
check "ruff format" ruff format --check --quiet .
check "ruff check" ruff check --quiet .
check "mypy" mypy
check "import-linter" lint-imports --no-cache
check "links" python tools/check_links.py
check "shell syntax" bash -n tools/*.sh tools/images/*.sh .ci/run
if [ ${#failed[@]} -gt 0 ]; then
  echo "lint: failed: ${failed[*]}"
  exit 1
fi
echo "lint: clean"
