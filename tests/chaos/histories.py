"""Operations for synthetic histories, in few words."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.chaos.checkers.anomalies import find_anomalies
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

P0 = Partition("t", 0)
P1 = Partition("t", 1)
OK, FAIL, INFO, INVOKED = Status.OK, Status.FAIL, Status.INFO, Status.INVOKED


def sent(
    value: Value,
    offset: int | None,
    *,
    process: str = "p1",
    status: Status = OK,
    acks: int = -1,
    group: int | None = None,
    partition: Partition = P0,
    may_repeat: bool = False,
    source: Value | None = None,
) -> Send:
    return Send(
        process,
        partition,
        value,
        acks=acks,
        status=status,
        offset=offset,
        group=group,
        may_repeat=may_repeat,
        source=source,
    )


def polled(
    *records: tuple[int, Value],
    process: str = "c1",
    generation: int = 0,
    status: Status = OK,
    final: bool = False,
    partition: Partition = P0,
    subscribed: bool = False,
    uncommitted: bool = False,
    rebalanced: tuple[Partition, ...] = (),
) -> Poll:
    places = [(partition, offset, value) for offset, value in records]
    return Poll(
        process,
        places,
        generation=generation,
        status=status,
        final=final,
        subscribed=subscribed,
        uncommitted=uncommitted,
        rebalanced=rebalanced,
    )


def txn(*steps: Send | Poll | Commit, status: Status = OK, process: str = "tx") -> Transaction:
    for step in steps:
        if isinstance(step, Send):
            step.process = process
    return Transaction(process, list(steps), status)


def committed(
    offset: int, at: float, until: float | None = None, *, generation: int = 1, status: Status = OK
) -> Commit:
    ends = at + 1 if until is None else until
    return Commit("m1", "g", P0, offset, generation, status, at, ends)


def offset_read(offset: int, at: float, *, generation: int = 1) -> OffsetRead:
    return OffsetRead("m1", "g", P0, offset, generation, at, at + 1)


def found(
    sends: Sequence[Send] = (),
    polls: Sequence[Poll] = (),
    *transactions: Transaction,
    commits: Sequence[Commit] = (),
    reads: Sequence[OffsetRead] = (),
    lag_max_ms: float | None = None,
) -> list[str]:
    """The names of all anomalies; a legal one in parentheses."""
    history = History(list(sends), list(polls), list(transactions), list(commits), list(reads))
    anomalies = find_anomalies(history, lag_max_ms=lag_max_ms)
    return sorted({f"({one.name})" if one.legal else one.name for one in anomalies})
