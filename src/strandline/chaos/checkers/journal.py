"""Histories as JSON lines: what clients of a live run write as they go, the simulator at its end, and what
`strandline check FILE` judges.

A line is one operation that has ended, or the beginning or the end of one::

    {"op": "send", "process": "p1", "partition": "t-0", "value": "a", "status": "ok", "offset": 7, "ms": [10.5, 12.0]}
    {"op": "poll", "process": "c1", "status": "ok", "records": {"t-0": [[7, 8], ["a", "b"]]}, "ms": [12.0, 12.4]}
    {"op": "send", "id": 3, "process": "p1", "partition": "t-0", "value": "b", "status": "invoked", "ms": [13.0, 0]}
    {"end": 3, "status": "info", "ms": 43.0}
    {"op": "txn", "process": "p1", "status": "ok", "steps": [...operations as above...], "ms": [50.0, 61.0]}
    {"op": "commit", "process": "c1", "group": "g", "partition": "t-0", "offset": 9, "status": "ok", ...}
    {"op": "offset", "process": "c1", "group": "g", "partition": "t-0", "offset": 9, "generation": 2, ...}
    {"errors": {"Disconnected": 3}}           what went wrong in a client's eyes, counted since its beginning

Times are milliseconds of one clock. Absent fields have the values that `history` gives them. A last line cut short (the
recorder was killed) is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from strandline.chaos.checkers.columns import Columns
from strandline.chaos.checkers.history import (
    Commit,
    History,
    OffsetRead,
    Partition,
    Poll,
    Send,
    Status,
    Transaction,
    Value,
)
from strandline.proto.json_text import read_json

T = TypeVar("T")

Operation = Send | Poll | Transaction | Commit | OffsetRead


class BadHistory(ValueError):
    """A line of a journal is no operation. `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        super().__init__(f"line {line}: {message}")


class Journal:
    """Writes a history to a file while it happens. Nothing is kept in memory but open operations.

    A send is written at its beginning by `begin` and at its end by `end`: the order of beginnings is what a producer's
    records must keep, and a recorder that is killed leaves the open ones as such. Polls, transactions, commits are
    written when they have ended, by `write`. Close it at the end: it is a context manager.
    """

    def __init__(self, path: str | Path) -> None:
        self._file: IO[str] = open(path, "w", encoding="utf-8")  # noqa: SIM115
        self._begun: dict[int, int] = {}
        self._next = 0
        self._encode = json.JSONEncoder(separators=(",", ":")).encode

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, operation: Operation) -> None:
        """Write one operation as it is now."""
        self._line(encoded(operation))

    def begin(self, send: Send) -> None:
        """Note that a send was invoked."""
        self._begun[id(send)] = self._next
        self._line(encoded(send) | {"id": self._next})
        self._next += 1

    def end(self, send: Send) -> None:
        """Note that a send that was begun here has ended."""
        entry: dict[str, Any] = {"end": self._begun.pop(id(send)), "status": send.status.value, "ms": send.completed_ms}
        if send.offset is not None:
            entry["offset"] = send.offset
        self._line(entry)

    def errors(self, counts: dict[str, int]) -> None:
        """Note the errors that clients saw, counted since their beginning."""
        self._line({"errors": counts})

    def flush(self) -> None:
        """Flush the file, for a process that may be reading it."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def _line(self, entry: dict[str, Any]) -> None:
        self._file.write(self._encode(entry) + "\n")


class Recorder(History):
    """A history that is written to a journal as it happens; of it only operations under way stay in memory.

    The recorder of an operation writes its end into the object, as with any history; `sweep` takes that to the file.
    A context manager: at its end everything is written, operations that never ended as such.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._journal = Journal(path)
        self._open: dict[int, Send | Transaction | Commit] = {}

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.sweep()
        for operation in self._open.values():
            if not isinstance(operation, Send):
                self._journal.write(operation)
        self._journal.close()

    def send(self, send: Send) -> Send:
        """Write the invocation of a send."""
        self._journal.begin(send)
        self._open[id(send)] = send
        return send

    def poll(self, poll: Poll) -> Poll:
        """Write a poll."""
        self._journal.write(poll)
        return poll

    def transaction(self, transaction: Transaction) -> Transaction:
        """Keep a transaction until it has ended."""
        self._open[id(transaction)] = transaction
        return transaction

    def commit(self, commit: Commit) -> Commit:
        """Keep an offset commit until it has ended."""
        self._open[id(commit)] = commit
        return commit

    def offset_read(self, read: OffsetRead) -> OffsetRead:
        """Write what a group's committed offset was."""
        self._journal.write(read)
        return read

    def errors(self, counts: dict[str, int]) -> None:
        """Write what went wrong in the clients' eyes, counted since their beginning."""
        self._journal.errors(counts)

    def sweep(self) -> None:
        """Write what has ended since the last call, and let the file have everything."""
        for key, operation in list(self._open.items()):
            if operation.status is Status.INVOKED:
                continue
            del self._open[key]
            if isinstance(operation, Send):
                self._journal.end(operation)
            else:
                self._journal.write(operation)
        self._journal.flush()


def write_history(history: History, path: str | Path) -> None:
    """Write all operations of a history in memory."""
    with Journal(path) as journal:
        for operations in (
            history.sends,
            history.polls,
            history.transactions,
            history.commits,
            history.offset_reads,
        ):
            for operation in operations:
                journal.write(operation)


def encoded(operation: Operation) -> dict[str, Any]:
    """An operation as a JSON object."""
    ms = [operation.invoked_ms, operation.completed_ms]
    if isinstance(operation, Transaction):
        steps = [encoded(step) for step in operation.steps]
        return {"op": "txn", "process": operation.process, "status": operation.status.value, "steps": steps, "ms": ms}
    entry: dict[str, Any] = {"op": _NAMES[type(operation)], "process": operation.process}
    if not isinstance(operation, OffsetRead):
        entry["status"] = operation.status.value
    if isinstance(operation, Poll):
        records: dict[str, tuple[list[int], list[Value]]] = {}
        for partition, offset, value in operation.records:
            offsets, values = records.setdefault(str(partition), ([], []))
            offsets.append(offset)
            values.append(value)
        entry["records"] = records
        if operation.rebalanced:
            entry["rebalanced"] = [str(partition) for partition in operation.rebalanced]
    else:
        entry["partition"] = str(operation.partition)
    for name, default in _FIELDS[type(operation)].items():
        value = getattr(operation, name)
        if value != default:
            entry[name] = value
    return entry | {"ms": ms}


_STATUSES = {status.value: status for status in Status}
_NAMES: dict[type, str] = {Send: "send", Poll: "poll", Commit: "commit", OffsetRead: "offset"}
_KINDS: dict[str, type] = {name: kind for kind, name in _NAMES.items()}
_FIELDS: dict[type, dict[str, Any]] = {
    Send: {"value": None, "acks": -1, "group": None, "offset": None, "may_repeat": False, "source": None},
    Poll: {"generation": 0, "final": False, "subscribed": False, "uncommitted": False},
    Commit: {"group": None, "offset": None, "generation": 0},
    OffsetRead: {"group": None, "offset": None, "generation": 0},
}


class End(NamedTuple):
    """A send that was begun earlier, under that id, has ended."""

    begun: int
    status: Status
    offset: int | None
    at_ms: float


class Begin(NamedTuple):
    """A send was invoked, and has an id."""

    id: int
    send: Send


class Errors(NamedTuple):
    """Errors that a client saw, counted since its beginning."""

    counts: dict[str, int]


Event = Operation | Begin | End | Errors


class _Decoder:
    """The lines of one journal, in their order, as events."""

    def __init__(self) -> None:
        self.lines = 0
        self._partitions: dict[str, Partition] = {}

    def event(self, line: str) -> Event:
        """Event in the next line. Raises BadHistory."""
        self.lines += 1
        try:
            entry = read_json(line)
            if "end" in entry:
                return End(entry["end"], _STATUSES[entry["status"]], entry.get("offset"), float(entry["ms"]))
            if "errors" in entry:
                return Errors(dict(entry["errors"]))
            operation = _decoded(entry, self._partitions)
            return Begin(entry["id"], operation) if "id" in entry and isinstance(operation, Send) else operation
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadHistory(self.lines, f"{type(error).__name__}: {error}: {line[:80]!r}") from error


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Events of a journal, in its order.

    Raises:
        BadHistory: a line other than a torn last one does not parse.
    """
    decoder = _Decoder()
    for line in lines:
        try:
            event = decoder.event(line)
        except BadHistory:
            if line.endswith("\n"):
                raise
            return  # the recorder was killed in mid-line
        yield event


def _decoded(entry: dict[str, Any], partitions: dict[str, Partition]) -> Operation:
    invoked_ms, completed_ms = entry.get("ms", (0.0, 0.0))
    kind = entry["op"]
    if kind == "txn":
        steps = [_decoded(step, partitions) for step in entry["steps"]]
        if not all(isinstance(step, (Send, Poll, Commit)) for step in steps):
            raise ValueError("a transaction holds sends, polls and commits")
        return Transaction(entry["process"], steps, _STATUSES[entry["status"]], invoked_ms, completed_ms)  # type: ignore[arg-type]
    made = _KINDS[kind]
    fields = {name: entry[name] for name in _FIELDS[made] if name in entry}
    if made is not OffsetRead:
        fields["status"] = _STATUSES[entry["status"]]
    if made is Poll:
        fields["records"] = [
            (_partition(partitions, name), offset, value)
            for name, (offsets, values) in entry["records"].items()
            for offset, value in zip(offsets, values, strict=True)
        ]
        fields["rebalanced"] = tuple(_partition(partitions, name) for name in entry.get("rebalanced", ()))
    else:
        fields["partition"] = _partition(partitions, entry["partition"])
    operation: Operation = made(process=entry["process"], invoked_ms=invoked_ms, completed_ms=completed_ms, **fields)
    return operation


def _partition(known: dict[str, Partition], name: str) -> Partition:
    partition = known.get(name)
    if partition is None:
        partition = known[name] = Partition.parse(name)
    return partition


def read_columns(path: str | Path) -> Columns:
    """A journal, straight into columns. Raises BadHistory, OSError."""
    columns = Columns()
    rows: dict[int, int] = {}
    with open(path, encoding="utf-8") as file:
        for event in events(file):
            if isinstance(event, Begin):
                rows[event.id] = columns.add_send(event.send)
            elif isinstance(event, End):
                columns.end_send(_begun(rows, event), event.status, event.offset, event.at_ms)
            elif not isinstance(event, Errors):
                columns.add(event)
    columns.forget_names()
    return columns


def read_history(path: str | Path) -> History:
    """A journal as a history in memory. Raises BadHistory, OSError."""
    taker = _HistoryBuilder(History())
    with open(path, encoding="utf-8") as file:
        for event in events(file):
            taker.take(event)
    return taker.history


class Follower:
    """Reads a journal while it grows, into a history that the journals of a run share.

    Attributes:
        name: the file's.
        errors: what went wrong in the client's eyes, as far as it has told.
        size_bytes: how much has been read.
    """

    def __init__(self, path: Path, history: History) -> None:
        self.name = path.stem
        self.size_bytes = 0
        self._path = path
        self._decoder = _Decoder()
        self._taker = _HistoryBuilder(history)
        self._rest = b""

    @property
    def errors(self) -> dict[str, int]:
        return self._taker.errors

    def read(self) -> list[Send]:
        """Take in what is new; the sends that have ended since the last call. Nothing while there is no file yet.

        Raises:
            BadHistory: a line does not parse. One that is not whole yet waits for its end.
        """
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self.size_bytes)
            data = file.read()
        self.size_bytes += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        ended = [self._taker.take(self._decoder.event(line.decode())) for line in lines]
        return [send for send in ended if send is not None]


class _HistoryBuilder:
    """Puts the events of one journal into a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.errors: dict[str, int] = {}
        self._begun: dict[int, Send] = {}
        self._lists: dict[type, list[Any]] = {
            Send: history.sends,
            Poll: history.polls,
            Transaction: history.transactions,
            Commit: history.commits,
            OffsetRead: history.offset_reads,
        }

    def take(self, event: Event) -> Send | None:
        """Record it; the send, if this is the end of one. Raises BadHistory."""
        if isinstance(event, Errors):
            self.errors = event.counts
        elif isinstance(event, Begin):
            self._begun[event.id] = self.history.send(event.send)
        elif isinstance(event, End):
            send = _begun(self._begun, event)
            send.status, send.offset, send.completed_ms = event.status, event.offset, event.at_ms
            return send
        else:
            self._lists[type(event)].append(event)
            return event if isinstance(event, Send) and event.status is not Status.INVOKED else None
        return None


def _begun(known: dict[int, T], event: End) -> T:
    found = known.pop(event.begun, None)
    if found is None:
        raise BadHistory(0, f"the end of {event.begun}, which was not begun or has ended already")
    return found
