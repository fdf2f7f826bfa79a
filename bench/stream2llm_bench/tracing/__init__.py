"""`bench tracing`: what traces cost."""
