#!/usr/bin/env bash
# Resolves every requirements/*.lock again, keeping versions that still fit. usage: lock.sh [--upgrade | -P PACKAGE]...
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_CUSTOM_COMPILE_COMMAND="make lock"

compile() { # compile OUTPUT PYTHON ARGUMENT...
  local output=requirements/$1 python=$2
  shift 2
  echo "lock: $output" >&2
  tools/uv.sh pip compile --quiet --generate-hashes --python-version "$python" \
    --python-platform x86_64-manylinux_2_28 --output-file "$output" "$@"
}

cpu=(--override requirements/overrides.txt)

compile uv.lock 3.11 requirements/uv.in "$@"
compile build.lock 3.11 requirements/build.in "$@"
compile development.lock 3.11 requirements/development.in "${cpu[@]}" "$@"
sed '/^-e /d' requirements/development.lock >requirements/.development-pins
trap 'rm -f requirements/.development-pins' EXIT
same=(--constraint requirements/.development-pins)
compile router.lock 3.11 pyproject.toml --extra router --extra tracing "${same[@]}" "$@"
compile operator.lock 3.11 pyproject.toml --extra operator "${same[@]}" "$@"
compile pod-cpu.lock 3.11 pyproject.toml --extra pod-cpu "${cpu[@]}" "${same[@]}" "$@"
compile pod.lock 3.12 requirements/pod.in "${same[@]}" "$@"
# Not for any environment: only the Python sources are used, so what vLLM depends on is left out.
compile vllm-sources.lock 3.11 requirements/vllm-sources.in --no-deps "$@"
