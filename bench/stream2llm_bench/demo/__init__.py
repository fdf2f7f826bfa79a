"""`stream2llm demo`: the whole pool on one machine."""
