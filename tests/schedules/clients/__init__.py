"""Schedules 63 to 68: what clients lost."""
