"""`bench policies`: our policies beside the paper's, on the paper's workloads, over several arrival seeds."""
