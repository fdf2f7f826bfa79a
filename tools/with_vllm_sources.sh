#!/usr/bin/env bash
# Runs a command with the vLLM of requirements/vllm-sources.lock in the place of the installed one.
# usage: with_vllm_sources.sh COMMAND...
set -euo pipefail
folder=$("$(dirname "$0")/vllm_sources.sh")
export PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH}
# Sources have no metadata that would tell for which device they were built.
export VLLM_TARGET_DEVICE=cpu
STREAM2LLM_TEST_VLLM=$(basename "$folder")
export STREAM2LLM_TEST_VLLM
exec "$@"
