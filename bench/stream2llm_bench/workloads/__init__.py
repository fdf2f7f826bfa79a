"""Streams of retrieved context as the Stream2LLM paper (MLSys 2026) has them: generated, or read from its traces."""
