"""Failures that explain themselves: a seed is run once more, watched, and told.

- `recorder`: watches a run from outside and keeps every change of every replica and of the quorum,
- `story`: which partition a failure concerns, which record, and what happened to them,
- `text`, `page`: the story as lines and as a self-contained HTML page,
- `state`: all nodes at one instant,
- `shrink`: fewer faults and a shorter run that fail the same way.

A seed is the same run every time, so nothing of this costs anything until a seed fails.
"""
