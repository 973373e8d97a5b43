"""Each anomaly of rule E1, proven by a synthetic history that must be flagged, and a sibling that must not."""

from __future__ import annotations

import pytest

from strandline.chaos.checkers.anomalies import find_anomalies, judge, realtime_lag_ms
from strandline.chaos.checkers.history import History, Partition
from tests.chaos.histories import (
    FAIL,
    INFO,
    INVOKED,
    P0,
    P1,
    committed,
    found,
    offset_read,
    polled,
    sent,
    txn,
)


def test_a_clean_history_has_no_anomaly() -> None:
    """Two producers, gaps for control records, a failed and an indeterminate send, a full final read."""
    sends = [
        sent("a", 0),
        sent("b", 1, process="p2"),
        sent("c", 3),
        sent("d", None, status=FAIL),
        sent("e", None, status=INFO),
        sent("f", None, acks=0),
        sent("x", 0, partition=P1),
    ]
    polls = [
        polled((0, "a"), (1, "b")),
        polled((3, "c")),
        polled((0, "a"), (1, "b"), (3, "c"), (4, "e"), process="c2", final=True),
        polled((0, "x"), process="c2", final=True, partition=P1),
    ]
    assert found(sends, polls) == []
    assert found() == []


def test_inconsistent_offsets() -> None:
    """One offset, two values: a log that was rewritten below what was shown."""
    assert found([sent("a", 0)], [polled((0, "a")), polled((0, "b"), process="c2")]) == ["inconsistent-offsets"]
    other_partition = polled((0, "b"), process="c2", partition=P1)
    assert found([sent("a", 0)], [polled((0, "a")), other_partition]) == []


def test_an_offset_that_was_only_acked_by_the_leader_may_be_given_away_again() -> None:
    """acks=1 proves no offset: the version order does not take it."""
    sends = [sent("a", 0), sent("lost", 1, acks=1), sent("b", 1)]
    assert found(sends, [polled((0, "a"), (1, "b"))]) == []
    assert "inconsistent-offsets" in found([*sends[:1], sent("lost", 1), sends[2]], [polled((0, "a"), (1, "b"))])


def test_duplicate() -> None:
    """One value at two offsets, or in two partitions: dedupe failed. Legal where retried without idempotence."""
    assert found([sent("a", 0)], [polled((0, "a"), (1, "a"))]) == ["duplicate"]
    assert found([sent("a", 0)], [polled((0, "a")), polled((0, "a"), partition=P1)]) == ["duplicate"]
    assert found([sent("a", 0, may_repeat=True)], [polled((0, "a"), (1, "a"))]) == ["(duplicate)"]
    assert found([sent("a", 0)], [polled((0, "a")), polled((0, "a"), process="c2")]) == []


def test_lost_write() -> None:
    """Acked under acks=all below what was read, never polled. Unproven or under acks=1 it may be lost."""
    polls = [polled((0, "a"), (2, "c"))]
    assert found([sent("a", 0), sent("b", 1), sent("c", 2)], polls) == ["int-poll-skip", "lost-write"]
    assert found([sent("a", 0), sent("c", 2), sent("z", None, status=INFO)], polls) == []
    assert found([sent("a", 0), sent("b", 1, acks=1), sent("c", 2)], polls) == []


def test_lost_write_of_an_unproven_transaction_whose_sibling_was_read() -> None:
    """A commit that timed out took place if one of its records was read: then the others must be there (E: info with a
    sibling read). Without that proof, or for a send that was never answered, nothing is promised."""
    steps = (sent("b", 1), sent("c", 2))
    polls = [polled((0, "a"), (2, "c"), (3, "d"))]
    sends = [sent("a", 0), sent("d", 3)]
    assert "lost-write" in found(sends, polls, txn(*steps, status=INFO))
    assert found(sends, [polled((0, "a"), (3, "d"))], txn(*steps, status=INFO)) == []
    unanswered = txn(sent("b", None, status=INFO), sent("c", 2), status=INFO)
    assert found(sends, polls, unanswered) == []


def test_shown_then_lost() -> None:
    """ConsistentRead over acks=1 too: what a consumer saw must still be there at the end."""
    sends = [sent("a", 0), sent("b", 1, acks=1), sent("c", 2)]
    lacking = polled((0, "a"), (2, "c"), process="c2", final=True)
    whole = polled((0, "a"), (1, "b"), (2, "c"), process="c2", final=True)
    assert "shown-then-lost" in found(sends, [polled((0, "a"), (1, "b")), lacking])
    assert found(sends, [polled((0, "a"), (1, "b")), whole]) == []


def test_aborted_read() -> None:
    """G1a: a send that certainly failed is seen. An indeterminate one may be, and a failed poll proves nothing."""
    polls = [polled((0, "a"))]
    assert found([sent("a", None, status=FAIL)], polls) == ["G1a"]
    assert found([sent("a", None, status=INFO)], polls) == []
    assert found([sent("a", None, status=INVOKED)], polls) == []
    assert found([sent("a", None, status=FAIL)], [polled((0, "a"), status=FAIL)]) == []


def test_aborted_read_of_a_transaction() -> None:
    """What an aborted transaction wrote is seen by read_committed; read_uncommitted may see it."""
    aborted = txn(sent("a", 0), sent("b", 1), status=FAIL)
    assert found([sent("c", 3)], [polled((0, "a"), (1, "b"), (3, "c"))], aborted) == ["G1a"]
    dirty = polled((0, "a"), (1, "b"), (3, "c"), uncommitted=True)
    clean = polled((3, "c"), process="c2", final=True)
    assert found([sent("c", 3)], [dirty, clean], aborted) == []


def test_precommitted_read() -> None:
    """A transaction polls its own send, before it committed."""
    own = txn(sent("a", 0), polled((0, "a"), process="tx"))
    others = txn(sent("b", 1), polled((0, "a"), process="tx"))
    assert found([], [], own) == ["precommitted-read"]
    assert found([sent("a", 0)], [polled((0, "a"), (1, "b"))], others) == []


def test_internal_poll_order() -> None:
    """Within one poll, the index may only step by one, unless the partition was rebalanced during it."""
    sends = [sent("a", 0), sent("b", 1), sent("c", 2)]
    others = [polled((0, "a"), (1, "b"), (2, "c"), process="c2")]
    assert found(sends, [polled((0, "a"), (2, "c")), *others]) == ["int-poll-skip"]
    assert found(sends, [polled((1, "b"), (0, "a")), *others]) == ["int-nonmonotonic-poll"]
    assert found(sends, [polled((0, "a"), (2, "c"), rebalanced=(P0,)), *others]) == []
    assert found(sends, [polled((1, "b"), (0, "a"), rebalanced=(P0,)), *others]) == []
    assert found(sends, [polled((0, "a"), (2, "c"), rebalanced=(P1,)), *others]) == ["int-poll-skip"]


def test_a_gap_where_nobody_ever_saw_a_record_is_no_skip() -> None:
    """Control records take offsets: what counts are places in the version order."""
    assert found([sent("a", 0), sent("c", 2)], [polled((0, "a"), (2, "c"))]) == []


def test_external_poll_order() -> None:
    """From poll to poll of one consumer, unless it was assigned anew; under subscribe it is legal."""
    sends = [sent("a", 0), sent("b", 1), sent("c", 2)]
    others = [polled((0, "a"), (1, "b"), (2, "c"), process="c2")]
    assert found(sends, [polled((0, "a")), polled((2, "c")), *others]) == ["poll-skip"]
    assert found(sends, [polled((1, "b")), polled((1, "b")), *others]) == ["nonmonotonic-poll"]
    assert found(sends, [polled((1, "b")), polled((0, "a"), generation=1), *others]) == []
    subscribed = [polled((0, "a"), subscribed=True), polled((2, "c"), subscribed=True)]
    assert found(sends, [*subscribed, *others]) == ["(poll-skip)"]
    back = [polled((1, "b"), subscribed=True), polled((0, "a"), subscribed=True)]
    assert found(sends, [*back, *others]) == ["(nonmonotonic-poll)"]
    assert found(sends, [polled((0, "a"), (2, "c"), subscribed=True), *others]) == ["int-poll-skip"]


def test_a_poll_that_failed_promises_no_order() -> None:
    """What it may have returned is returned again by the next one; it counts for the version order alone."""
    again = [polled((0, "a"), (1, "b"), status=FAIL), polled((0, "a"), (1, "b"))]
    assert found([sent("a", 0), sent("b", 1)], again) == []
    polls = [polled((1, "b"), process="c2", status=FAIL), polled((0, "a")), polled((2, "c"))]
    assert found([sent("a", 0), sent("c", 2)], polls) == ["poll-skip"]


def test_a_consumer_of_committed_data_passes_over_what_was_aborted() -> None:
    """The places of aborted records do not count for it; they do for one that reads uncommitted data."""
    sends = [sent("a", 0), sent("d", 4)]
    aborted = txn(sent("b", 1), sent("c", 2), status=FAIL)
    dirty = polled((0, "a"), (1, "b"), (2, "c"), (4, "d"), process="c2", uncommitted=True)
    assert found(sends, [dirty, polled((0, "a"), (4, "d"))], aborted) == []
    assert found(sends, [dirty, polled((0, "a"), (4, "d"), process="c3", uncommitted=True)], aborted) == [
        "int-poll-skip"
    ]
    ok = txn(sent("b", 1), sent("c", 2))
    assert found(sends, [dirty, polled((0, "a"), (4, "d"))], ok) == ["int-poll-skip"]


def test_nonmonotonic_send() -> None:
    """A producer's later record at a smaller offset; two producers have no order between them."""
    polls = [polled((0, "b"), (1, "a"))]
    assert found([sent("a", 1), sent("b", 0)], polls) == ["nonmonotonic-send"]
    assert found([sent("a", 1), sent("b", 0, process="p2")], polls) == []
    assert found([sent("a", 1), sent("b", 0, may_repeat=True)], polls) == ["(nonmonotonic-send)"]


def test_int_send_skip() -> None:
    """Another producer's record between two of one operation: reported, always legal."""
    polls = [polled((0, "a"), (1, "x"), (2, "b"))]
    sends = [sent("a", 0, group=1), sent("x", 1, process="p2"), sent("b", 2, group=1)]
    assert found(sends, polls) == ["(int-send-skip)"]
    assert judge(History(sends, polls)) == []
    assert found([sent("a", 0, group=1), sent("x", 1, process="p2"), sent("b", 2, group=2)], polls) == []


def test_unseen() -> None:
    """Acked and beyond all that was read: legal while running, an anomaly at the end."""
    assert found([sent("a", 0), sent("b", 1)], [polled((0, "a"))]) == ["unseen"]
    assert found([sent("a", 0), sent("b", 1)], [polled((0, "a"), (1, "b"))]) == []
    assert found([sent("a", 0), sent("b", 1, status=INFO)], [polled((0, "a"))]) == []


def test_g0_is_told_and_legal() -> None:
    """Writes of two transactions in a circle: Kafka interleaves them."""
    first = txn(sent("a", 0), sent("x", 1, partition=P1))
    second = txn(sent("b", 1), sent("y", 0, partition=P1), process="tx2")
    polls = [polled((0, "a"), (1, "b")), polled((0, "y"), (1, "x"), partition=P1)]
    assert found([], polls, first, second) == ["(G0)"]
    in_step = txn(sent("b", 1), sent("y", 2, partition=P1), process="tx2")
    polls = [polled((0, "a"), (1, "b")), polled((1, "x"), (2, "y"), partition=P1)]
    assert found([], polls, first, in_step) == []


def test_g1c() -> None:
    """Two committed transactions that read each other's writes. With a ww edge in the circle it is legal."""
    first = txn(sent("a", 0), polled((0, "x"), partition=P1, process="r1"))
    second = txn(sent("x", 0, partition=P1), polled((0, "a"), process="r2"), process="tx2")
    polls = [polled((0, "a")), polled((0, "x"), partition=P1)]
    assert found([], polls, first, second) == ["G1c"]
    one_way = txn(sent("x", 0, partition=P1), process="tx2")
    assert found([], polls, first, one_way) == []
    writes_before = txn(sent("a", 0), polled((0, "x"), partition=P1, process="r1"))
    writes_after = txn(sent("b", 1), sent("x", 0, partition=P1), process="tx2")
    polls = [polled((0, "a"), (1, "b")), polled((0, "x"), partition=P1)]
    assert found([], polls, writes_before, writes_after) == ["(G1c)"]
    aborted = txn(sent("a", 0), polled((0, "x"), partition=P1, process="r1"), status=FAIL)
    assert "G1c" not in found([], [], aborted, second)


@pytest.mark.parametrize("length", [2, 3, 7])
def test_circles_of_any_length(length: int) -> None:
    """Each transaction reads the next one's write."""
    where = [Partition("t", number) for number in range(length)]
    transactions = [
        txn(
            sent(f"v{number}", 0, partition=where[number]),
            polled((0, f"v{(number + 1) % length}"), partition=where[(number + 1) % length], process=f"r{number}"),
            process=f"tx{number}",
        )
        for number in range(length)
    ]
    assert found([], [], *transactions) == ["G1c"]
    assert "G1c" not in found([], [], *transactions[:-1])


def test_pair_duplicate() -> None:
    """Two committed outputs of one input: it was processed twice. One of an aborted attempt does not count."""
    first = txn(sent("out-1", 0, partition=P1, source="in"))
    second = txn(sent("out-2", 1, partition=P1, source="in"), process="tx2")
    both = [polled((0, "out-1"), (1, "out-2"), partition=P1)]
    assert found([sent("in", 0)], [polled((0, "in")), *both], first, second) == ["pair-duplicate"]
    aborted = txn(sent("out-1", 0, partition=P1, source="in"), status=FAIL)
    assert found([sent("in", 0)], [polled((0, "in")), polled((1, "out-2"), partition=P1)], aborted, second) == []


def test_pair_lost() -> None:
    """A committed transaction passes an input by the offset that it commits, and nothing of it comes out."""
    sends = [sent("a", 0), sent("b", 1)]
    polls = [polled((0, "a"), (1, "b")), polled((0, "out-a"), partition=P1)]
    read = polled((0, "a"), (1, "b"), process="tx")
    made = sent("out-a", 0, partition=P1, source="a")
    assert found(sends, polls, txn(read, made, committed(2, 0))) == ["pair-lost"]
    assert found(sends, polls, txn(read, made, committed(1, 0))) == []
    assert found(sends, polls[:1], txn(read, made, committed(2, 0), status=FAIL)) == []


def test_committed_offset_back() -> None:
    """A read of a group's offset below one known before, in the same generation."""
    assert found(commits=[committed(10, 0)], reads=[offset_read(5, 20)]) == ["committed-offset-back"]
    assert found(commits=[committed(10, 0)], reads=[offset_read(10, 20)]) == []
    assert found(commits=[committed(10, 0)], reads=[offset_read(5, 20, generation=2)]) == []
    assert found(reads=[offset_read(10, 0), offset_read(5, 20)]) == ["committed-offset-back"]
    assert found(commits=[committed(10, 0)], reads=[offset_read(-1, 20)]) == ["committed-offset-back"]


def test_a_committed_offset_that_nobody_promised_may_be_missing() -> None:
    """A commit whose end is unknown, or that was under way, proves nothing; a smaller one is its member's own will."""
    assert found(commits=[committed(10, 0, status=INFO)], reads=[offset_read(5, 20)]) == []
    assert found(commits=[committed(10, 0, 100)], reads=[offset_read(5, 20)]) == []
    own_will = [committed(10, 0), committed(5, 10)]
    assert found(commits=own_will, reads=[offset_read(5, 20)]) == []
    late = [committed(10, 0), committed(5, 20.5, status=INFO)]
    assert found(commits=late, reads=[offset_read(5, 20)]) == []
    aborted = txn(sent("a", 0), committed(10, 0), status=FAIL)
    assert found([], [], aborted, reads=[offset_read(5, 20)]) == []


def test_realtime_lag() -> None:
    """How long ago at least something unread had been acked when a poll began; an anomaly beyond a bound."""
    send = sent("b", 1)
    send.completed_ms = 100
    first, second = polled((0, "a")), polled()
    second.invoked_ms = 350
    history = History([sent("a", 0), send], [first, second])
    assert realtime_lag_ms(history) == 250
    assert [one.name for one in find_anomalies(history, lag_max_ms=200)] == ["realtime-lag", "unseen"][::-1]
    assert [one.name for one in find_anomalies(history, lag_max_ms=300)] == ["unseen"]


def test_realtime_lag_over_offsets_far_apart() -> None:
    """A log that was trimmed, or is sparse: the next ack beyond the position counts, however far it is."""
    send = sent("b", 1_000_000)
    send.completed_ms = 100
    first, second = polled((5, "a")), polled()
    second.invoked_ms = 350
    assert realtime_lag_ms(History([sent("a", 5), send], [first, second])) == 250
