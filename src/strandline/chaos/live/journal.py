"""A history on its way to a file, one JSON array a line, and back: clients are processes of their own.

    ["s", number, process, topic, partition, value, acks, group, invoked_ms]     a send was invoked
    ["e", number, status, offset, completed_ms]                                 it ended
    ["p", process, generation, final, invoked_ms, completed_ms, [[topic, partition, offset, value], ...]]   a poll
    ["x", what, count]                                                           errors a client saw, so far

A client that is killed leaves sends without an end: nobody knows what became of them. Times are the machine's
monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from strandline.chaos.checkers.history import History, Partition, Poll, Send, Status


class Journal(History):
    """A history that is written down as it happens; nothing but sends under way stays in memory."""

    def __init__(self, file: IO[str]) -> None:
        super().__init__()
        self._file = file
        self._open: dict[int, Send] = {}
        self._sends = 0

    def send(self, send: Send) -> Send:
        """Record the invocation of a send; its end is written by the next `sweep` after it."""
        self._sends += 1
        self._open[self._sends] = send
        where = send.partition
        self._write(
            "s", self._sends, send.process, where.topic, where.number, send.value, send.acks, send.group,
            round(send.invoked_ms, 1),
        )  # fmt: skip
        return send

    def poll(self, poll: Poll) -> Poll:
        """Record a poll."""
        records = [[where.topic, where.number, offset, value] for where, offset, value in poll.records]
        times = round(poll.invoked_ms, 1), round(poll.completed_ms, 1)
        self._write("p", poll.process, poll.generation, poll.final, *times, records)
        return poll

    def sweep(self) -> None:
        """Write the ends of the sends that have ended, and let the file have everything."""
        for number, send in list(self._open.items()):
            if send.status is not Status.INVOKED:
                del self._open[number]
                self._write("e", number, send.status.value, send.offset, round(send.completed_ms, 1))
        self._file.flush()

    def errors(self, counts: dict[str, int]) -> None:
        """Record what went wrong in the client's eyes, counted since its beginning."""
        for what, count in counts.items():
            self._write("x", what, count)

    def _write(self, *line: Any) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


class Follower:
    """Reads a journal while it grows into a history that all journals of a run share."""

    def __init__(self, path: Path, history: History) -> None:
        self.name = path.stem
        self.errors: dict[str, int] = {}
        self._path = path
        self._history = history
        self._sends: dict[int, Send] = {}
        self._position = 0
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._rest = b""

    def read(self) -> list[Send]:
        """Take in what is new; the sends that have ended since the last call. Nothing while there is no file yet."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        self._position += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()  # a line that is not whole yet
        ended = []
        for line in lines:
            send = self._take(json.loads(line))
            if send is not None:
                ended.append(send)
        return ended

    @property
    def size_bytes(self) -> int:
        """How much has been read."""
        return self._position

    def _take(self, line: list[Any]) -> Send | None:
        kind, *rest = line
        if kind == "s":
            number, process, topic, partition, value, acks, group, invoked_ms = rest
            send = Send(
                process, self._partition(topic, partition), value, acks=acks, group=group, invoked_ms=invoked_ms
            )
            self._sends[number] = self._history.send(send)
        elif kind == "e":
            number, status, offset, completed_ms = rest
            send = self._sends.pop(number)
            send.status, send.offset, send.completed_ms = Status(status), offset, completed_ms
            return send
        elif kind == "p":
            process, generation, final, invoked_ms, completed_ms, records = rest
            places = [
                (self._partition(topic, partition), int(offset), value) for topic, partition, offset, value in records
            ]
            self._history.poll(
                Poll(process, places, generation, invoked_ms=invoked_ms, completed_ms=completed_ms, final=final)
            )
        else:
            what, count = rest
            self.errors[what] = count
        return None

    def _partition(self, topic: str, number: int) -> Partition:
        return self._partitions.setdefault((topic, number), Partition(topic, number))
