"""What a pool does at the moment, for people: `stream2llm top` and the routers' page show it."""
