"""`stream2llm simulate`: the pod's real scheduler on simulated hardware, in virtual time."""
