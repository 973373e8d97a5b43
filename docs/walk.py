"""The walk of one record: the files of src/strandline that see it, from `producer.send` to `consumer.poll`, in order.

A simulated cluster of three production nodes takes one record with acks=all, replicates it and serves it to a consumer
that waits for it. All of it runs in one process, on one thread and from one seed, so that a profiler sees every call.

A file is on the walk when one of its functions is given the record, or returns it: its bytes, its offset, or the offset
behind it (the log end offset and the high watermark that follow from it). Arguments are looked into as far as they are
messages (tuples, lists, dataclasses, classes with slots), three deep. What only passes the time is not on the walk:
clocks, heartbeats, the quorum. Neither are the twins of the real disk and network.

A *door* of a file is a function of it that is called, or returns, with the record across the file's border. Doors are
counted on the node that uses the most of them: the log is entered on leader and follower alike.

    python docs/walk.py [SEED]     prints the walk and the doors of each file
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import strandline
from strandline.chaos.sim.handles import OWNER
from strandline.chaos.testing.env import Env
from strandline.chaos.testing.simulation import Simulation
from strandline.client.aio import Consumer, Producer

FILES_MAX = 29
"""The walk may have so many files. Fetch sessions have a file of their own; the times of a request are counted without
its bytes. Lower it when you can."""

DOORS = 2
"""A file should be entered by so many doors at most."""

FILES_WITH_MORE_DOORS_MAX = 6
"""Number of files that are entered by more doors at most. Since there are transactions, a read asks the log for its
last stable offset too. Lower it when you can."""

SOURCE = Path(strandline.__file__).parent
SEED = 5
"""Its network is quick: nothing else happens while the record is on its way."""
TOPIC = "orders"
VALUE = b"the record that is followed"
OFFSET = 43_117
"""Of the record: a number that nothing else is."""

_OFFSETS = (OFFSET, OFFSET + 1)
_DEPTH = 3
_ITEMS = 50


@dataclass
class Stop:
    """A file of the walk.

    Attributes:
        path: below src/strandline.
        first: the function that had the record first.
        machines: that ran the file with the record.
        doors: of each machine.
    """

    path: str
    first: str
    machines: dict[str, None] = field(default_factory=dict)
    doors: dict[str, dict[str, None]] = field(default_factory=dict)

    @property
    def most_doors(self) -> dict[str, None]:
        """The doors on the machine that uses the most."""
        return max(self.doors.values(), key=len, default={})


@dataclass
class Walk:
    """The stops, in the order in which the record came to them; `leader` names the machine that led the partition."""

    leader: str
    stops: list[Stop]

    def places(self, stop: Stop) -> list[str]:
        """On which sides a stop's file runs."""
        names = {name: "client" for name in stop.machines if not name.startswith("n")}
        names |= {name: "leader" if name == self.leader else "follower" for name in stop.machines if name not in names}
        return sorted(set(names.values()), key=["client", "leader", "follower"].index)


class _Profiler:
    """Notes the functions of src/strandline that are given the record or return it."""

    def __init__(self) -> None:
        self.stops: dict[str, Stop] = {}

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        path = _path(frame.f_code)
        if path is None or path.startswith("chaos/"):
            return
        if event == "call":
            if _resumed(frame) or not any(_holds(argument, _DEPTH) for argument in _arguments(frame)):
                return
        elif event != "return" or not _holds(value, _DEPTH):
            return
        self._note(path, frame)

    def _note(self, path: str, frame: FrameType) -> None:
        name = frame.f_code.co_qualname
        machine = str(OWNER.get()).partition("#")[0]
        stop = self.stops.setdefault(path, Stop(path, name))
        stop.machines[machine] = None
        if _caller(frame) != path:
            stop.doors.setdefault(machine, {})[name] = None


def _path(code: CodeType) -> str | None:
    """Below src/strandline; None: it is a file of somebody else."""
    file = code.co_filename
    return file[len(str(SOURCE)) + 1 :] if file.startswith(f"{SOURCE}/") else None


def _caller(frame: FrameType) -> str | None:
    """The file of src/strandline that called, across asyncio and the standard library."""
    caller = frame.f_back
    while caller is not None and _path(caller.f_code) is None:
        caller = caller.f_back
    return None if caller is None else _path(caller.f_code)


def _resumed(frame: FrameType) -> bool:
    """A coroutine that goes on, which profilers see as a call: RESUME has the argument 0 at the head of a function."""
    return frame.f_code.co_code[frame.f_lasti + 1] != 0


def _arguments(frame: FrameType) -> Iterator[Any]:
    """But for `self`, through which everything could be reached."""
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        if name not in ("self", "cls"):
            yield frame.f_locals.get(name)


def _holds(value: Any, depth: int) -> bool:
    """The record's bytes or offsets are in the value."""
    if isinstance(value, bytes | bytearray | memoryview):
        return VALUE in bytes(value)
    if isinstance(value, int):
        return value in _OFFSETS
    if value is None or isinstance(value, str | float | type) or not depth:
        return False
    return any(_holds(part, depth - 1) for part in _parts(value))


def _parts(value: Any) -> list[Any]:
    if isinstance(value, tuple | list | set | frozenset):
        return list(value)[:_ITEMS]
    if isinstance(value, dict):
        return list(value.values())[:_ITEMS]
    names = [name for kind in type(value).__mro__ for name in _slots(kind)]
    if dataclasses.is_dataclass(value):
        names += [each.name for each in dataclasses.fields(value)]
    return [getattr(value, name, None) for name in names]


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


@contextmanager
def _profiled(profiler: _Profiler) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(profiler)
    try:
        yield
    finally:
        sys.setprofile(before)


async def _follow(env: Env) -> Walk:
    await env.create_topic(TOPIC, 1)
    async with Producer(env.bootstrap) as producer, Consumer(env.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        for future in [await producer.send(TOPIC, b"x") for _ in range(OFFSET)]:
            await future
        read = 0
        while read < OFFSET:
            read += len(await consumer.poll(1.0))
        waiting = asyncio.ensure_future(_poll(consumer))
        await asyncio.sleep(0.3)  # virtual: the fetch waits on the leader now
        leader = await env.wait_leader(TOPIC)
        profiler = _Profiler()
        with _profiled(profiler):
            ack = await (await producer.send(TOPIC, VALUE, key=b"key"))
            records = await waiting
            await asyncio.sleep(0.02)  # the next fetch, which names the offset behind the record, is on the leader
        assert ack.offset == records[0].offset == OFFSET
        assert records[0].value == VALUE
        assert len(ack.replicas) == 3
        return Walk(f"n{leader}", list(profiler.stops.values()))


async def _poll(consumer: Consumer) -> list[Any]:
    while True:
        records = await consumer.poll(1.0)
        if records:
            return records


def follow(seed: int = SEED) -> Walk:
    """Follow one record through a cluster that the seed decides."""
    walk: Walk = Simulation(seed, settings={"strandline.fault.injection": "false"}).run(_follow)
    return walk


def walk_table() -> str:
    """The walk, for tour.md: how long it is, and each file."""
    walk = follow()
    rooms = Counter(stop.path.partition("/")[0] for stop in walk.stops)
    by_room = ", ".join(f"{count} of `{room}`" for room, count in rooms.most_common())
    size = sum(len((SOURCE / stop.path).read_text().splitlines()) for stop in walk.stops)
    more = sum(len(stop.most_doors) > DOORS for stop in walk.stops)
    lines = [
        f"{len(walk.stops)} files ({by_room}), about {round(size, -2):,} lines; {more} have more than {DOORS} doors.",
        "",
    ]
    lines += ["| # | file | runs on | doors |", "|---|---|---|---|"]
    for number, stop in enumerate(walk.stops, 1):
        doors = [door.replace("<locals>.", "") for door in stop.most_doors] or [stop.first]
        more = f" and {len(doors) - 1} more" if len(doors) > 1 else ""
        link = f"[`{stop.path}`](../src/strandline/{stop.path})"
        lines.append(f"| {number} | {link} | {', '.join(walk.places(stop))} | `{doors[0]}`{more} |")
    return "\n".join(lines)


def main() -> None:
    """Print the walk."""
    walk = follow(int(sys.argv[1]) if len(sys.argv) > 1 else SEED)
    for number, stop in enumerate(walk.stops, 1):
        print(f"{number:3} {stop.path:40} {', '.join(walk.places(stop))}")
        print(f"      {len(stop.most_doors)} doors: {', '.join(stop.most_doors)}")
    more = [stop for stop in walk.stops if len(stop.most_doors) > DOORS]
    print(f"{len(walk.stops)} files, {len(more)} of them with more than {DOORS} doors")


if __name__ == "__main__":
    main()
