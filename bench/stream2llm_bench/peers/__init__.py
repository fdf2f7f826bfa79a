"""`bench peers`: what streaming is worth beside stock vLLM, also where it is worth nothing."""
