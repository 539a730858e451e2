"""Loading shards of a global batch."""
