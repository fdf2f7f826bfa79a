"""Pure scheduling decisions: who runs, with how many tokens, and who gives up memory.

Nothing here imports vLLM, torch, Redis or asyncio; time is always passed in.
"""
