"""`bench autoscale`: what scaling on our signals gives, beside scaling on the KV cache or on the queue alone."""
