"""Deliberate breaks of single rules, made at run time: each must be caught by some seed, or the simulator is blind.

A break replaces one method of a production class while `broken` is active. `tests/chaos/test_breaks.py` holds that the
patch points exist and that seeds catch them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from strandline.controller.quorum.state_file import StateFile
from strandline.controller.raft.log_summary import LogSummary
from strandline.controller.raft.ready import ElectionState
from strandline.replica.core.leader import LeaderCore


@dataclass(frozen=True, slots=True)
class Break:
    """One rule removed: what is replaced, by what, and which rule that breaks."""

    rule: str
    target: type
    method: str
    replacement: Callable[[Callable[..., Any]], Callable[..., Any]]
    """Gets the original method, returns what stands in for it."""


def _count_on_append(original: Callable[..., Any]) -> Callable[..., Any]:
    def append(self: LogSummary, batch: Any) -> None:
        original(self, batch)
        self.durable_offset = self.end_offset

    return append


def _count_unsynced(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: LeaderCore, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords | {"sync_before_ack": False})

    return init


def _committed_isr_only(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_maximal(self: LeaderCore, maximal_isr: Any) -> None:
        self.maximal_isr = self.isr
        original(self, self.isr)

    return set_maximal


def _vote_in_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    def write(self: StateFile, state: ElectionState) -> None:
        """Nothing reaches the disk."""

    return write


BREAKS: dict[str, tuple[Break, ...]] = {
    "count-before-sync": (
        Break("A9: the own end counts only after the flush", LogSummary, "append", _count_on_append),
        Break("flush.policy=ack: only durable offsets count", LeaderCore, "__init__", _count_unsynced),
    ),
    "isr-instead-of-maximal": (
        Break("B: the high watermark waits for the maximal ISR", LeaderCore, "_set_maximal", _committed_isr_only),
    ),
    "vote-not-durable": (Break("A1: durable before reply", StateFile, "write", _vote_in_memory),),
}
"""What `strandline sim --break NAME` accepts."""


@contextmanager
def broken(name: str | None) -> Iterator[None]:
    """Run with the break called `name` (None: with none).

    Raises:
        KeyError: there is no such break.
    """
    undo: list[tuple[type, str, Any]] = []
    for change in BREAKS[name] if name is not None else ():
        original = change.target.__dict__[change.method]
        undo.append((change.target, change.method, original))
        setattr(change.target, change.method, change.replacement(original))
    try:
        yield
    finally:
        for target, method, original in reversed(undo):
            setattr(target, method, original)
