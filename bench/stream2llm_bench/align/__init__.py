"""`bench align`: one workload on the real engine and in the simulator, request by request."""
