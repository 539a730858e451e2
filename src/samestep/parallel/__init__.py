"""Modules on their shards: regions, the check, gradient reduction, batch norm, DataParallel."""
