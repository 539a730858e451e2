"""The script's view: one tensor, whatever the number of devices."""
