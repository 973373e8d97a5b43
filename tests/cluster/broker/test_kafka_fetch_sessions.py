"""Incremental fetch sessions (KIP-227), as a table of what a request with an id and an epoch meets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
from kafka_case import run
from kafka_node import KafkaNode, until
from kafka_wire import KafkaClient, connect
from test_kafka_fetch import fetch

from strandline.cluster.broker.handlers.fetch_sessions import EVICTION_MS_MIN, FetchedPartition, FetchSessions
from strandline.cluster.broker.memory import FETCH_BYTES, PARTITION_BYTES, KeptMemory
from strandline.cluster.broker.request import Action, AllowAll, RequestContext
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.fetch import FINAL_EPOCH, FetchPartition, PartitionKey
from strandline.proto.steps import ITEMS, at_once


class HandClock:
    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return 0


class NobodyReads(AllowAll):
    enabled = True

    def authorize(self, context: RequestContext, actions: Sequence[Action], *, noted: bool = True) -> Sequence[bool]:
        return [False] * len(actions)


OWNER, OTHER = object(), object()


def want(*partitions: int, offset: int = 0) -> list[FetchPartition]:
    return [FetchPartition("t", None, partition, offset, 1000) for partition in partitions]


def result(partition: int, *, size: int = 0, high_watermark: int = 5, error: ErrorCode = ErrorCode.NONE):
    one = FetchedPartition(want(partition)[0])
    one.high_watermark, one.log_start_offset, one.size, one.error = high_watermark, 0, size, error
    return one


class Driver:
    def __init__(self, slots: int = 10, kept_partitions: int = 1000) -> None:
        self.clock = HandClock()
        self.kept = KeptMemory(kept_partitions * PARTITION_BYTES * 4 // 3 + 2)
        self.sessions = FetchSessions(self.clock, slots, self.kept)

    def ask(
        self,
        session_id: int,
        epoch: int,
        wanted: list[FetchPartition],
        *,
        forgotten: list[PartitionKey] | None = None,
        owner: object = OWNER,
        principal: str = "User:a",
        by_id: bool = False,
    ):
        return at_once(
            self.sessions.open(
                owner,
                principal=principal,
                session_id=session_id,
                epoch=epoch,
                by_id=by_id,
                wanted=wanted,
                forgotten=forgotten or [],
            )
        )


def test_a_session_is_opened_used_and_closed() -> None:
    """Epoch 0 opens, 1, 2, ... continue, -1 with the id closes."""
    driver = Driver()
    opened = driver.ask(0, 0, want(0, 1))
    assert opened.session is not None
    assert not opened.incremental
    session_id = opened.session.session_id
    assert session_id > 0
    again = driver.ask(session_id, 1, [])
    assert again.incremental
    assert [wanted.partition for wanted in again.wanted] == [0, 1]
    third = driver.ask(session_id, 2, want(2), forgotten=[("t", 0)])
    assert [wanted.partition for wanted in third.wanted] == [1, 2]
    moved = driver.ask(session_id, 3, want(1, offset=77))
    assert moved.wanted[0].fetch_offset == 77
    closed = driver.ask(session_id, FINAL_EPOCH, want(5))
    assert closed.session is None
    assert [wanted.partition for wanted in closed.wanted] == [5]
    assert len(driver.sessions) == 0


def test_errors_of_a_session() -> None:
    """Unknown id, wrong epoch, another connection's id, ids where names were."""
    driver = Driver()
    session = driver.ask(0, 0, want(0)).session
    assert session is not None
    assert driver.ask(99, 1, []).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert driver.ask(session.session_id, 1, [], owner=OTHER).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert driver.ask(session.session_id, 2, []).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert driver.ask(session.session_id, 1, [], by_id=True).error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert driver.ask(session.session_id, 1, []).error is ErrorCode.NONE


def test_epoch_zero_replaces_the_named_session() -> None:
    """A full request with an id closes that session and opens another."""
    driver = Driver()
    first = driver.ask(0, 0, want(0)).session
    assert first is not None
    second = driver.ask(first.session_id, 0, want(1)).session
    assert second is not None
    assert len(driver.sessions) == 1
    assert driver.ask(first.session_id, 1, []).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_only_news_are_told() -> None:
    """Data, a moved high watermark or log start, and errors for as long as they last; quiet partitions cost nothing."""
    driver = Driver()
    session = driver.ask(0, 0, want(0, 1)).session
    assert session is not None
    session.changed([result(0), result(1)])
    assert session.changed([result(0), result(1)]) == []
    moved = result(1, high_watermark=6)
    assert session.changed([result(0), moved]) == [moved]
    data = result(0, size=10)
    assert session.changed([data, result(1, high_watermark=6)]) == [data]
    broken = result(0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert session.changed([broken]) == [broken]
    assert session.changed([broken]) == [broken]
    healed = result(0)
    assert session.changed([healed]) == [healed]


def test_partitions_that_gave_data_move_to_the_end() -> None:
    """So that a busy partition does not starve the others of the answer's bytes."""
    driver = Driver()
    session = driver.ask(0, 0, want(0, 1, 2)).session
    assert session is not None
    session.changed([result(0, size=10), result(1), result(2)])
    assert [wanted.partition for wanted in driver.ask(session.session_id, 1, []).wanted] == [1, 2, 0]


def test_a_session_without_partitions_ends() -> None:
    """Forgetting the last partition closes the session."""
    driver = Driver()
    session = driver.ask(0, 0, want(0)).session
    assert session is not None
    assert driver.ask(session.session_id, 1, [], forgotten=[("t", 0)]).session is None
    assert len(driver.sessions) == 0


def test_the_cache_is_bounded() -> None:
    """Full of fresh sessions, a fetch is served without one; the least recently used makes room after two minutes."""
    driver = Driver(slots=2)
    first = driver.ask(0, 0, want(0)).session
    second = driver.ask(0, 0, want(0)).session
    assert first is not None
    assert second is not None
    assert driver.ask(0, 0, want(0)).session is None
    driver.clock.now_ms = EVICTION_MS_MIN - 1
    driver.ask(first.session_id, 1, [])
    driver.clock.now_ms = EVICTION_MS_MIN + 1
    assert driver.ask(0, 0, want(0)).session is not None
    assert driver.ask(second.session_id, 1, []).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert driver.ask(first.session_id, 2, []).error is ErrorCode.NONE
    assert driver.sessions.evictions == 1


def test_sessions_end_with_their_connection() -> None:
    """A lost connection's sessions hold no memory."""
    driver = Driver()
    driver.ask(0, 0, want(0))
    kept = driver.ask(0, 0, want(0), owner=OTHER).session
    assert kept is not None
    driver.sessions.drop_all_of(OWNER)
    assert len(driver.sessions) == 1
    assert driver.ask(kept.session_id, 1, [], owner=OTHER).error is ErrorCode.NONE


def test_sessions_by_topic_id() -> None:
    """Version 13 and later name topics by id."""
    driver = Driver()
    topic_id = UUID(int=7)
    wanted = [FetchPartition(None, topic_id, 0, 0, 1000)]
    session = driver.ask(0, 0, wanted, by_id=True).session
    assert session is not None
    assert driver.ask(session.session_id, 1, [], forgotten=[(topic_id, 0)], by_id=True).session is None


def test_what_sessions_keep_is_bounded_for_each_principal() -> None:
    """Beyond that a fetch is served without a session, and one that grows beyond it ends; others have theirs. What
    ends, shrinks or is replaced gives its room back."""
    driver = Driver(kept_partitions=4)
    first = driver.ask(0, 0, want(0, 1)).session
    assert first is not None
    assert driver.ask(0, 0, want(0, 1, 2)).session is None
    assert driver.ask(0, 0, want(0), principal="User:b").session is not None
    assert driver.ask(first.session_id, 1, want(2, 3)).error is ErrorCode.NONE
    assert driver.ask(first.session_id, 2, want(4)).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert driver.kept.held_for("User:a") == 0
    second = driver.ask(0, 0, want(0, 1, 2, 3)).session
    assert second is not None
    assert driver.ask(second.session_id, 1, want(0), forgotten=[("t", 1), ("t", 9)]).error is ErrorCode.NONE
    assert driver.kept.held_for("User:a") == 3 * PARTITION_BYTES
    third = driver.ask(second.session_id, 0, want(0)).session
    assert third is not None
    assert driver.kept.held_for("User:a") == PARTITION_BYTES
    driver.ask(third.session_id, FINAL_EPOCH, [])
    driver.sessions.drop_all_of(OWNER)
    assert driver.kept.used_bytes == 0
    assert driver.kept.refused == 2


def test_a_session_that_ends_while_it_is_made_keeps_nothing() -> None:
    """The connection goes between two steps: what was held is given back, and the next step holds no more."""
    driver = Driver()
    wanted = want(*range(3 * ITEMS))
    steps = driver.sessions.open(
        OWNER, principal="User:a", session_id=0, epoch=0, by_id=False, wanted=wanted, forgotten=[]
    )
    next(steps)
    next(steps)
    assert driver.kept.used_bytes == ITEMS * PARTITION_BYTES
    driver.sessions.drop_all_of(OWNER)
    assert at_once(steps).session is None
    assert driver.kept.used_bytes == 0
    session = driver.ask(0, 0, wanted).session
    assert session is not None
    assert len(session.partitions) == 3 * ITEMS
    again = driver.ask(session.session_id, 1, [], forgotten=[("t", number) for number in range(1, 3 * ITEMS)])
    assert [one.partition for one in again.wanted] == [0]
    assert driver.kept.used_bytes == PARTITION_BYTES


def test_all_principals_together_have_a_bound() -> None:
    """Three quarters of it may be one's, and the rest is for others."""
    kept = KeptMemory(100)
    assert kept.hold("a", 75)
    assert not kept.hold("a", 1)
    assert kept.hold("b", 25)
    assert not kept.hold("c", 1)
    kept.release("b", 25)
    assert kept.hold("c", 25)
    assert kept.held_for("b") == 0
    with pytest.raises(AssertionError):
        kept.release("b", 1)


def test_105_no_session_begins_with_what_the_client_may_not_read(tmp_path: Path) -> None:
    """Schedule 105: the partitions are answered with their errors, as often as they are asked for, and nothing of them
    is kept; nor of partitions that are not there."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        partitions = dict.fromkeys(range(5000), 0)
        for denied, topic, error in (
            (True, "t", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            (False, "nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            node.authorizer.chosen = NobodyReads() if denied else AllowAll()
            answer = await client.receive(fetch(client, 11, topic, partitions, session_id=0, session_epoch=0))
            assert answer.session_id == 0
            assert {one.error_code for one in answer.responses[0].partitions} == {error}
            assert node.fetch_sessions == node.broker.kept.used_bytes == 0
        answer = await client.receive(fetch(client, 11, "t", {0: 0}, session_id=0, session_epoch=0))
        assert answer.session_id > 0
        assert node.broker.kept.used_bytes == PARTITION_BYTES
        answer = await client.receive(fetch(client, 11, "t", {}, session_id=answer.session_id, session_epoch=1))
        assert answer.error_code == 0

    run(tmp_path, main)


def test_fetches_that_wait_are_kept_within_bounds(tmp_path: Path) -> None:
    """One that there is no room for is answered at once with what there is; when others have ended, it waits again."""

    async def main(node: KafkaNode, client: KafkaClient) -> None:
        node.create_topic("t")
        each = FETCH_BYTES + PARTITION_BYTES
        room = node.broker.kept.of_principal_bytes // each
        assert room > 100
        assert node.broker.kept.hold("User:ANONYMOUS", (room - 2) * each)
        async with connect(node.listener.endpoint) as other:
            waiting = [other.receive(fetch(other, 11, "t", {0: 0}, max_wait_ms=600_000)) for _ in range(2)]
            await until(lambda: node.broker.kept.held_for("User:ANONYMOUS") == room * each)
            answer = await client.receive(fetch(client, 11, "t", {0: 0}, max_wait_ms=600_000))
            assert answer.responses[0].partitions[0].error_code == 0
            for one in waiting:
                one.close()
        await until(lambda: node.broker.kept.held_for("User:ANONYMOUS") == (room - 2) * each)
        node.broker.kept.release("User:ANONYMOUS", (room - 2) * each)
        fetch(client, 11, "t", {0: 0}, max_wait_ms=600_000)
        await until(lambda: node.broker.kept.used_bytes == each)

    run(tmp_path, main)
