"""Each anomaly of correctness E, proven by a synthetic history that must be flagged, and a clean one that must not."""

from __future__ import annotations

from strandline.chaos.checkers.anomalies import find_anomalies, judge, realtime_lag_ms
from strandline.chaos.checkers.history import History, Partition, Poll, Send, Status

P0 = Partition("t", 0)
P1 = Partition("t", 1)


def sent(
    value: str,
    offset: int | None,
    *,
    process: str = "p1",
    status: Status = Status.OK,
    acks: int = -1,
    group: int | None = None,
    partition: Partition = P0,
) -> Send:
    return Send(process, partition, value, acks=acks, status=status, offset=offset, group=group)


def polled(
    *records: tuple[int, str],
    process: str = "c1",
    generation: int = 0,
    status: Status = Status.OK,
    final: bool = False,
    partition: Partition = P0,
) -> Poll:
    places = [(partition, offset, value) for offset, value in records]
    return Poll(process, places, generation=generation, status=status, final=final)


def names(sends: list[Send], polls: list[Poll]) -> list[str]:
    return sorted({anomaly.name for anomaly in find_anomalies(History(sends, polls))})


def test_a_clean_history_has_no_anomaly() -> None:
    """Two producers, gaps for control records, a failed and an indeterminate send, a full final read."""
    sends = [
        sent("a", 0),
        sent("b", 1, process="p2"),
        sent("c", 3),
        sent("d", None, status=Status.FAIL),
        sent("e", None, status=Status.INFO),
        sent("f", None, acks=0),
        sent("x", 0, partition=P1),
    ]
    polls = [
        polled((0, "a"), (1, "b")),
        polled((3, "c")),
        polled((0, "a"), (1, "b"), (3, "c"), (4, "e"), process="c2", final=True),
        polled((0, "x"), process="c2", final=True, partition=P1),
    ]
    assert names(sends, polls) == []


def test_inconsistent_offsets() -> None:
    """One offset, two values: a log that was rewritten below what was shown."""
    assert names([sent("a", 0)], [polled((0, "a")), polled((0, "b"), process="c2")]) == ["inconsistent-offsets"]


def test_duplicate() -> None:
    """One value at two offsets: dedupe failed."""
    assert names([sent("a", 0)], [polled((0, "a"), (1, "a"))]) == ["duplicate"]


def test_lost_write() -> None:
    """Acked under acks=all below what was read, never polled. The same under acks=1 may be lost."""
    polls = [polled((0, "a"), (2, "c"))]
    assert "lost-write" in names([sent("a", 0), sent("b", 1), sent("c", 2)], polls)
    assert names([sent("a", 0), sent("c", 2), sent("z", None, status=Status.INFO)], polls) == []
    assert "lost-write" not in names([sent("a", 0), sent("b", 1, acks=1), sent("c", 2)], polls)


def test_shown_then_lost() -> None:
    """ConsistentRead over acks=1 too: what a consumer saw must still be there at the end."""
    sends = [sent("a", 0), sent("b", 1, acks=1), sent("c", 2)]
    polls = [polled((0, "a"), (1, "b")), polled((0, "a"), (2, "c"), process="c2", final=True)]
    assert "shown-then-lost" in names(sends, polls)


def test_aborted_read() -> None:
    """G1a: a send that certainly failed is seen. An indeterminate one may be."""
    polls = [polled((0, "a"))]
    assert names([sent("a", None, status=Status.FAIL)], polls) == ["G1a"]
    assert names([sent("a", None, status=Status.INFO)], polls) == []
    assert names([sent("a", None, status=Status.INVOKED)], polls) == []


def test_internal_poll_order() -> None:
    """Within one poll, the index may only step by one."""
    sends = [sent("a", 0), sent("b", 1), sent("c", 2)]
    others = [polled((0, "a"), (1, "b"), (2, "c"), process="c2")]
    assert names(sends, [polled((0, "a"), (2, "c")), *others]) == ["int-poll-skip"]
    assert names(sends, [polled((1, "b"), (0, "a")), *others]) == ["int-nonmonotonic-poll"]


def test_external_poll_order() -> None:
    """From poll to poll of one consumer, unless it was assigned anew."""
    sends = [sent("a", 0), sent("b", 1), sent("c", 2)]
    others = [polled((0, "a"), (1, "b"), (2, "c"), process="c2")]
    assert names(sends, [polled((0, "a")), polled((2, "c")), *others]) == ["poll-skip"]
    assert names(sends, [polled((1, "b")), polled((1, "b")), *others]) == ["nonmonotonic-poll"]
    assert names(sends, [polled((1, "b")), polled((0, "a"), generation=1), *others]) == []


def test_a_failed_poll_counts_for_the_order_of_versions() -> None:
    """The version order comes from all polls: a skip over what only a failed poll saw is a skip."""
    polls = [polled((1, "b"), process="c2", status=Status.FAIL), polled((0, "a")), polled((2, "c"))]
    assert names([sent("a", 0), sent("c", 2)], polls) == ["poll-skip"]


def test_send_order() -> None:
    """A producer's later record at a smaller offset is an anomaly; another producer's in between is legal."""
    polls = [polled((0, "b"), (1, "a"))]
    assert names([sent("a", 1), sent("b", 0)], polls) == ["nonmonotonic-send"]
    sends = [sent("a", 0, group=1), sent("x", 1, process="p2"), sent("b", 2, group=1)]
    history = History(sends, [polled((0, "a"), (1, "x"), (2, "b"))])
    assert [anomaly.name for anomaly in find_anomalies(history)] == ["int-send-skip"]
    assert judge(history) == []


def test_unseen() -> None:
    """Acked and beyond all that was read: legal while running, an anomaly at the end."""
    assert names([sent("a", 0), sent("b", 1)], [polled((0, "a"))]) == ["unseen"]


def test_realtime_lag() -> None:
    """How long ago at least something unread had been acked when a poll began."""
    send = sent("b", 1)
    send.completed_ms = 100
    first, second = polled((0, "a")), polled()
    second.invoked_ms = 350
    assert realtime_lag_ms(History([sent("a", 0), send], [first, second])) == 250
