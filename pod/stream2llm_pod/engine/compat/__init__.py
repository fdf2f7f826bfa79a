"""vLLM's private names, one module per supported minor. Nothing else in this package touches them."""
