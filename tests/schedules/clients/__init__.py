"""Schedules 63 to 68 of the correctness rules, F: what clients lost."""
