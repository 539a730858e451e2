"""The frameworks' tests: what belongs to them besides the programs."""
