"""`bench route`: what the way through the router costs beside the bare way through Redis."""
