"""Bounds of a search: those of each model, and those that have a name.

Every step that is a fault or a wish of somebody costs: the bounds say how many of each one path may have. What the
product does by itself costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

_MOST = 15
"""Largest bound: a bound is counted down in four bits of a state."""


def _bound(default: int, what: str, least: int = 0, most: int = _MOST) -> Any:
    return field(default=default, metadata={"help": what, "least": least, "most": most})


@dataclass(frozen=True, slots=True)
class QuorumBounds:
    """Bounds of the quorum: three voters."""

    epochs: int = _bound(2, "The last epoch that anybody may open.")
    records: int = _bound(1, "Records that clients append, in all; leader changes come on top.")
    crashes: int = _bound(1, "Processes that end and start again, with or without the tail that was not synced.")
    timeouts: int = _bound(3, "Timers that run out: elections that are begun, leaders that resign.")
    network: int = _bound(
        0,
        "Requests that are given up, arrive twice or outlive the role that made them, answers that are held back. "
        "Calls that nobody carries out cost nothing.",
    )
    snapshots: int = _bound(0, "Snapshots that are taken of what is committed, the log below them being deleted.")
    zeros: int = _bound(
        0,
        "Voters that end and start again, and whose disk does not give back up to two of the batches that it had "
        "synced last: zeros, or a file that ends where a batch did. One at most: two can destroy every honest copy.",
        most=1,
    )


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """Bounds of the partition: three brokers with one partition, and its controller."""

    min_isr: int = _bound(2, "min.insync.replicas.", least=1, most=3)
    leader_epochs: int = _bound(2, "The last leader epoch; the first is 0.")
    changes: int = _bound(5, "The last partition epoch; the first is 0.")
    records: int = _bound(2, "Records that clients append, in all.")
    crashes: int = _bound(
        1, "Processes that end, with or without the tail that was not synced, whole or torn; syncs that fail."
    )
    stops: int = _bound(0, "Processes that stop politely: leaderships move away, and everything is synced.")
    delays: int = _bound(
        1,
        "How often a broker is slow: its sync, what it says, what its leader sends, or the metadata take longer than "
        "what happens next. -1: nothing happens at once; every frame, sync and change of metadata is its own step.",
        least=-1,
    )
    network: int = _bound(
        0, "Frames and answers that are held back by themselves, proposals that arrive twice, streams that break."
    )
    rots: int = _bound(
        0,
        "Disks that lose, while no process runs, what was synced: a tail that recovery cuts, or of which it sees "
        "nothing (zeros), or more, which it misses. "
        "One at most, and not with --min-isr 1: that can destroy every honest copy.",
        most=1,
    )
    failovers: int = _bound(0, "Controllers that take over, and know nothing but what is committed.")
    fences: int = _bound(0, "Brokers that are fenced although they live.")
    moves: int = _bound(0, "Elections of another member of the ISR, as the balancing of leaders asks for them.")
    lags: int = _bound(1, "Followers that are found lagging.")

    def __post_init__(self) -> None:
        """Check that the bounds go together; raises ValueError where they do not."""
        if self.rots and self.min_isr < 2:
            raise ValueError(
                "--rots 1 needs --min-isr 2: with 1 the only copy of a record may be the one that is ruined"
            )


@dataclass(frozen=True, slots=True)
class Preset:
    """Bounds with a name, and what they are for. `after`: steps after which the search begins, with `;` between."""

    name: str
    purpose: str
    bounds: QuorumBounds | PartitionBounds
    after: str = ""


ALL_CRASH = (
    "append 1; append 1; crash 3 0; fence 3; append 1 (slow sync 1) (slow sync 2); crash 1 0 torn; crash 2 0 torn"
)
"""Two records are committed, a third one is torn on both members of the ISR, and nobody lives."""

PRESETS: dict[str, tuple[Preset, ...]] = {
    "quorum": (
        Preset("small", "one epoch, a record, a crash, two timers: seconds", QuorumBounds(epochs=1, timeouts=2)),
        Preset("usual", "two epochs, a record, a crash, three timers: millions of states", QuorumBounds()),
        Preset(
            "overtaken",
            "two epochs, a record, two timers, a call that is given up, doubled or overtaken: minutes",
            QuorumBounds(crashes=0, timeouts=2, network=1),
        ),
        Preset(
            "zeroed",
            "two epochs, a voter whose disk lost what it had synced, two timers: half a minute",
            QuorumBounds(records=0, crashes=0, zeros=1, timeouts=2),
        ),
    ),
    "partition": (
        Preset("small", "one broker slow once, one crash, two records: half a minute", PartitionBounds()),
        Preset("usual", "a broker slow twice, one crash, two records: minutes", PartitionBounds(delays=2, lags=0)),
        Preset(
            "crashes",
            "two crashes, a disk that is ruined, a record: half a minute",
            PartitionBounds(records=1, crashes=2, delays=0, rots=1, leader_epochs=3, changes=7),
        ),
        Preset(
            "late",
            "a frame, proposal or answer that is late or doubled, a broker fenced though it lives: half a minute",
            PartitionBounds(records=1, crashes=0, network=1, fences=1, lags=0),
        ),
        Preset(
            "all-crash",
            "all have crashed and two logs are torn; a disk is ruined, another controller takes over: minutes",
            PartitionBounds(records=3, crashes=0, delays=0, rots=1, failovers=1, lags=0, leader_epochs=3, changes=9),
            after=ALL_CRASH,
        ),
    ),
}


def preset_of(model: str, name: str) -> Preset:
    """A preset. Raises KeyError where the model has none of that name."""
    return {preset.name: preset for preset in PRESETS[model]}[name]


def changed(bounds: Any, changes: dict[str, int]) -> Any:
    """Bounds with some of them set anew. Raises TypeError for one that does not exist, ValueError for those that do not
    go together."""
    return replace(bounds, **changes)
