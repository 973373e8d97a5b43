"""Waiting for other processes: what they do is found by looking again and again, for nobody tells."""

from __future__ import annotations

import threading


def pause(seconds: float) -> None:
    """Let so much time pass between two looks. Ctrl-C ends it."""
    threading.Event().wait(seconds)
