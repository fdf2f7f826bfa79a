"""The KV connector: swaps the KV cache of preempted requests, and carries the scheduler's statistics to /metrics."""
