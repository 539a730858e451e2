"""The commands besides `run`, one module each. None of them imports torch."""
