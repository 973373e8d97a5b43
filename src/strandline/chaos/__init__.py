"""Finds the schedules that break Strandline: the simulator, the fault injectors and the checkers."""
