"""Runs one seed once more, watched; in a process of its own, like every run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strandline.chaos.checkers.journal import write_history
from strandline.chaos.explain.recorder import Recorder, Stopped
from strandline.chaos.explain.state import snapshot
from strandline.chaos.explain.story import Story, tell
from strandline.chaos.runner import Run, in_child


@dataclass
class Watched:
    """Result of a watched run."""

    ended: str
    """held, failed, or stopped (at the instant asked for)."""
    story: Story | None = None
    state: dict[str, Any] = field(default_factory=dict)


def watch(
    seed: int,
    make: Callable[[int], Run],
    *,
    until_ms: float | None = None,
    history_file: str | None = None,
) -> Watched:
    """Run `seed` to its end, or to `until_ms` of virtual time; write the clients' history to `history_file`.

    Raises:
        RuntimeError: the child ended without a result.
    """
    return in_child(lambda: _watch(seed, make, until_ms, history_file))


def _watch(seed: int, make: Callable[[int], Run], until_ms: float | None, history_file: str | None) -> Watched:
    run: Any = make(seed)
    recorder = Recorder(run, until_ms=until_ms, on_stop=snapshot)
    error: Exception | None = None
    try:
        run.execute()
    except Stopped:
        return Watched("stopped", state=recorder.stopped_at)
    except Exception as caught:
        error = caught
    if history_file is not None and hasattr(run, "history"):
        write_history(run.history, history_file)
    story = tell(seed, error, run, recorder.recording, options=run.expanded())
    return Watched("held" if error is None else "failed", story)
