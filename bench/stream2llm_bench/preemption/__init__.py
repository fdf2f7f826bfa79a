"""`bench preemption`: recomputing, swapping, and choosing by cost, on the same workloads."""
