"""A fake worker under vLLM's real engine core and our real scheduler: no model, a virtual clock."""
