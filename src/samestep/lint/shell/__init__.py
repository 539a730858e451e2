"""A shell script as the rules ask about it: its commands, their words, and the variables set before them."""
