"""Measures what prefill and swap cost in this engine on this hardware, and writes a cost profile."""
