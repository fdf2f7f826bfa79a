"""`bench paper`: the published evaluation of Stream2LLM (MLSys 2026) beside the simulation of it."""
