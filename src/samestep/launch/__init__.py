"""One process per device: starting them, running the script in each, ending them together."""
