"""vLLM general plug-in: runs in every vLLM process and refuses a version it was not checked with."""

from __future__ import annotations


def register() -> None:
    """Entry point of the group `vllm.general_plugins`.

    Raises IncompatibleVLLM if the installed vLLM is outside the supported minors or lacks a private name.
    """
    import vllm

    from stream2llm_pod.engine.compat.selecting import module_for

    # Names are checked where they are used, in the scheduler; importing them in every worker would cost seconds.
    module_for(vllm.__version__)
