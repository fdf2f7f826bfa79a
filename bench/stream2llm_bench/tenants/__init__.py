"""`bench tenants`: what one tenant waits while another floods the engine, beside what it waits alone on its share."""
