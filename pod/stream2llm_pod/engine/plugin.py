"""vLLM general plug-in: runs in every vLLM process, refuses a version it was not checked with, and makes our KV
connector known by its name."""

from __future__ import annotations

from contextlib import suppress

from stream2llm_pod.engine.arguments import CONNECTOR, CONNECTOR_MODULE


def register() -> None:
    """Entry point of the group `vllm.general_plugins`.

    Raises IncompatibleVLLM if the installed vLLM is outside the supported minors or lacks a private name.
    """
    import vllm

    from stream2llm_pod.engine.compat.selecting import module_for

    # Names are checked where they are used, in the scheduler; importing them in every worker would cost seconds.
    module_for(vllm.__version__)
    _register_connector()


def _register_connector() -> None:
    """vLLM's MultiConnector finds the statistics of its parts by their class's name, which must therefore be known."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    # vLLM may run a plug-in twice in one process.
    with suppress(ValueError):
        KVConnectorFactory.register_connector(CONNECTOR, CONNECTOR_MODULE, CONNECTOR)
