"""Reports about a run."""
