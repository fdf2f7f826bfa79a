"""The KV connector. It moves no blocks yet: it carries the scheduler's statistics to /metrics."""
