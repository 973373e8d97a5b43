"""APIs of transactions at their coordinator, on a broker: 10, 22, 24, 25, 26, 65 and 66, in every version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka_node import KafkaNode, kafka_node
from kafka_wire import KafkaClient, connect

from strandline.controller.metadata.image import topic_resource
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import response_body

ID = "app-1"
OK = ErrorCode.NONE
NOT_YET = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


class Has(NamedTuple):
    """A producer, as a client has it."""

    producer_id: int
    producer_epoch: int


Body = Callable[[KafkaNode, KafkaClient], Awaitable[None]]


def run(tmp_path: Path, body: Body, level: int = 2, **options: Any) -> None:
    async def main() -> None:
        async with (
            kafka_node(tmp_path, transactions=level, **options) as node,
            connect(node.listener.endpoint) as client,
        ):
            node.create_topic("t", 3)
            await body(node, client)

    asyncio.run(main())


async def find(client: KafkaClient, name: str = ID, kind: int = 1, version: int = 6) -> Any:
    if version < 4:
        return await client.ask("find_coordinator", version, key=name, key_type=kind)
    return (await client.ask("find_coordinator", version, key_type=kind, coordinator_keys=(name,))).coordinators[0]


async def init(client: KafkaClient, name: str | None = ID, version: int = 5, timeout: int = 60_000, **has: int) -> Any:
    """Asks until the coordinator has loaded."""
    values = {"transactional_id": name, "transaction_timeout": timeout}
    if version >= 3:
        values |= {"producer_id": -1, "producer_epoch": -1, **has}
    for _ in range(500):
        answer = await client.ask("init_producer_id", version, **values)
        if answer.error_code not in NOT_YET:
            return answer
        await asyncio.sleep(0.01)
    raise AssertionError(answer)


async def begun(client: KafkaClient, name: str = ID) -> Has:
    for _ in range(500):
        if (await find(client, name)).error_code == OK:
            break
        await asyncio.sleep(0.01)
    answer = await init(client, name)
    assert answer.error_code == OK, answer
    return Has(answer.producer_id, answer.producer_epoch)


async def add(client: KafkaClient, has: Has, *partitions: tuple[str, int], version: int = 3, name: str = ID) -> Any:
    """By a client: the error of each partition."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    values = {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": has.producer_id,
        "v3_and_below_producer_epoch": has.producer_epoch,
        "v3_and_below_topics": [{"name": topic, "partitions": tuple(numbers)} for topic, numbers in topics.items()],
    }
    answer = await client.ask("add_partitions_to_txn", version, **values)
    return [
        ErrorCode(int(one.partition_error_code))
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    ]


async def end(client: KafkaClient, has: Has, *, commit: bool = True, version: int = 5, name: str = ID) -> Any:
    return await client.ask("end_txn", version, transactional_id=name, **has._asdict(), committed=commit)


async def described(client: KafkaClient, name: str = ID) -> Any:
    """By the project's own schema: kio reads no time of -1, which is none."""
    client.send("describe_transactions", 0, transactional_ids=(name,))
    frame = memoryview(await client.receive_frame())
    answer = schema.response(Api.DESCRIBE_TRANSACTIONS, 0).decode(response_body(frame, flexible=True))
    return answer.transaction_states[0]


async def ended(client: KafkaClient, name: str = ID) -> str:
    """The state once nothing is left to be written."""
    for _ in range(500):
        state: str = (await described(client, name)).transaction_state
        if state.startswith("Complete"):
            return state
        await asyncio.sleep(0.01)
    raise AssertionError("the transaction does not end")


def test_a_transaction_from_its_first_partition_to_its_last_marker(tmp_path: Path) -> None:
    """By the protocol of KIP-890, and by the one before on the same cluster."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        has = await begun(client)
        assert has.producer_epoch == 0
        assert await add(client, has, ("t", 0), ("t", 1)) == [OK, OK]
        seen = await described(client)
        assert (seen.transaction_state, seen.producer_id) == ("Ongoing", has.producer_id)
        assert {(one.topic, one.partitions) for one in seen.topics} == {("t", (0, 1))}
        answer = await end(client, has)
        assert answer.error_code == OK
        assert (answer.producer_id, answer.producer_epoch) == (has.producer_id, 1)
        assert await ended(client) == "CompleteCommit"
        assert {
            (one.topic, one.partition): one.log_end_offset for one in node.replicas.hosted() if one.topic == "t"
        } == {
            ("t", 0): 1,
            ("t", 1): 1,
            ("t", 2): 0,
        }
        again = Has(has.producer_id, 1)
        for commit in (False, True):
            assert await add(client, again, ("t", 2)) == [OK]
            assert (await end(client, again, commit=commit, version=4)).error_code == OK
            await ended(client)

    run(tmp_path, body)


def test_a_request_by_an_older_connection_closes_it(tmp_path: Path) -> None:
    """KAFKA-17754: an end of the first protocol that comes late is not answered, and ends nothing. A client that uses
    the connection still asks again by a new one."""

    async def body(node: KafkaNode, first: KafkaClient) -> None:
        has = await begun(first)
        assert await add(first, has, ("t", 0)) == [OK]
        async with connect(node.listener.endpoint) as second:
            assert (await end(second, has, version=4)).error_code == OK
            await ended(second)
            assert await add(second, has, ("t", 1)) == [OK]
            with pytest.raises(asyncio.IncompleteReadError):
                await end(first, has, version=4)
            assert (await described(second)).transaction_state == "Ongoing"
            async with connect(node.listener.endpoint) as third:
                assert (await end(third, has, version=4)).error_code == OK

    run(tmp_path, body)


@pytest.mark.parametrize("level", [1, 2])
def test_older_versions_have_the_errors_that_they_know(tmp_path: Path, level: int) -> None:
    """PRODUCER_FENCED came with KIP-588; before it was INVALID_PRODUCER_EPOCH."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        old = await begun(client)
        new = await begun(client)
        assert new == Has(old.producer_id, 1)
        fenced, before = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
        for version in range(4):
            assert await add(client, old, ("t", 0), version=version) == [fenced if version >= 2 else before]
        for version in range(6):
            expected = fenced if version >= 2 else before
            assert (await end(client, old, version=version)).error_code == expected
        await find(client, "g", kind=0)
        for version in range(5):
            values = {"transactional_id": ID, **old._asdict(), "group_id": "g"}
            answer = await client.ask("add_offsets_to_txn", version, **values)
            assert answer.error_code == (fenced if version >= 2 else before)
        stale = {"producer_id": old.producer_id, "producer_epoch": 17}
        for version in (3, 4, 5):
            expected = fenced if version >= 4 else before
            assert (await init(client, version=version, **stale)).error_code == expected
        for version in range(6):
            assert (await init(client, version=version)).error_code == OK

    run(tmp_path, body, level)


def test_partitions_are_added_all_or_none(tmp_path: Path) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        has = await begun(client)
        unknown, untried = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
        assert await add(client, has, ("t", 0), ("t", 9), ("no", 0)) == [untried, unknown, unknown]
        assert await add(client, has, ("t", 0), ("__transaction_state", 0)) == [
            untried,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
        assert (await described(client)).transaction_state == "Empty"
        assert await add(client, has, ("t", 0), ("t", 2)) == [OK, OK]
        assert await add(client, has, ("t", 0), name="") == [ErrorCode.INVALID_REQUEST]
        wrong = Has(has.producer_id + 1, 0)
        assert await add(client, wrong, ("t", 0)) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]

    run(tmp_path, body)


def test_brokers_of_kafka_may_ask_for_many(tmp_path: Path) -> None:
    """Versions 4 and 5: one result an entry, also where one id stands twice; what is not in the transaction is
    TRANSACTION_ABORTABLE in version 5."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        has = await begun(client)
        entry = {"transactional_id": ID, **has._asdict(), "topics": [{"name": "t", "partitions": (0, 1)}]}
        other = {**entry, "producer_epoch": 9, "verify_only": False}
        for version in (4, 5):
            verify, adds = {**entry, "verify_only": True}, {**entry, "verify_only": False}
            adds["topics"] = [{"name": "t", "partitions": (version - 4,)}]
            answer = await client.ask("add_partitions_to_txn", version, transactions=[verify, other, adds, verify])
            assert answer.error_code == OK
            told = [
                [int(one.partition_error_code) for topic in result.topic_results for one in topic.results_by_partition]
                for result in answer.results_by_transaction
            ]
            missing = ErrorCode.TRANSACTION_ABORTABLE if version == 5 else ErrorCode.INVALID_TXN_STATE
            fenced = ErrorCode.PRODUCER_FENCED
            before = [missing, missing] if version == 4 else [OK, missing]
            after = [OK, missing] if version == 4 else [OK, OK]
            assert told == [before, [fenced, fenced], [OK], after]

    run(tmp_path, body)


def test_offsets_of_a_group(tmp_path: Path) -> None:
    """The group's partition of __consumer_offsets is part of the transaction; the topic is made if need be."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        has = await begun(client)
        answer = await client.ask("add_offsets_to_txn", 4, transactional_id=ID, **has._asdict(), group_id="g")
        assert answer.error_code == OK
        [one] = (await described(client)).topics
        assert one.topic == "__consumer_offsets"
        assert len(one.partitions) == 1

    run(tmp_path, body)


def test_what_cannot_be_initialized(tmp_path: Path) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        await begun(client)
        for timeout in (0, -1, 900_001):
            assert (await init(client, timeout=timeout)).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert (await init(client, timeout=900_000)).error_code == OK
        assert (await init(client, "")).error_code == ErrorCode.INVALID_REQUEST
        assert (await init(client, producer_id=3)).error_code == ErrorCode.INVALID_REQUEST
        assert (await init(client, producer_epoch=3)).error_code == ErrorCode.INVALID_REQUEST
        plain = await init(client, None)
        assert (plain.error_code, plain.producer_epoch) == (OK, 0)

    run(tmp_path, body)


def test_kafka_20739_two_phase_commit_is_refused(tmp_path: Path) -> None:
    """InitProducerId 6 alone has it (KIP-939): it would keep a transaction that is prepared."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        has = await begun(client)
        assert await add(client, has, ("t", 0)) == [OK]
        kept = {"enable2_pc": True, "keep_prepared_txn": True}
        answer = await client.ask("init_producer_id", 6, transactional_id=ID, transaction_timeout=60_000, **kept)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await described(client)).transaction_state == "Ongoing"

    run(tmp_path, body)


def test_listed(tmp_path: Path) -> None:
    """By state, producer, age and (KIP-1152) an expression; of states that there are not the client is told."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        has = await begun(client)
        other = await begun(client, "other")
        assert await add(client, has, ("t", 0)) == [OK]

        async def listed(version: int = 2, states: tuple[str, ...] = (), ids: tuple[int, ...] = (), **more: Any) -> Any:
            values = {"state_filters": states, "producer_id_filters": ids, **more}
            if version >= 1:
                values.setdefault("duration_filter", -1)
            answer = await client.ask("list_transactions", version, **values)
            assert answer.error_code == OK
            return sorted(one.transactional_id for one in answer.transaction_states), answer.unknown_state_filters

        for version in range(3):
            assert await listed(version) == ([ID, "other"], ())
        assert await listed(states=("Ongoing", "Dreaming")) == ([ID], ("Dreaming",))
        assert await listed(states=("Dreaming",)) == ([], ("Dreaming",))
        assert await listed(ids=(other.producer_id,)) == (["other"], ())
        assert (await listed(duration_filter=3_600_000))[0] == []
        assert (await listed(transactional_id_pattern="app-.*"))[0] == [ID]
        assert (await listed(transactional_id_pattern="app"))[0] == []
        broken = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}
        answer = await client.ask("list_transactions", 2, **broken, transactional_id_pattern="(")
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert (await described(client, "none")).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await described(client, "")).error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, body)


def test_without_the_level_nothing_is_served(tmp_path: Path) -> None:
    """Every client gives up at once, and nothing is created."""

    async def body(node: KafkaNode, client: KafkaClient) -> None:
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        for version in (1, 3, 4, 6):
            assert (await find(client, version=version)).error_code == refused
        assert (await init(client)).error_code == refused
        has = Has(1, 0)
        assert await add(client, has, ("t", 0)) == [refused]
        assert (await end(client, has)).error_code == refused
        answer = await client.ask("add_offsets_to_txn", 4, transactional_id=ID, **has._asdict(), group_id="g")
        assert answer.error_code == refused
        assert (await described(client)).error_code == refused
        assert set(node.controller.image.topics) == {"t"}

    run(tmp_path, body, 0)


def test_the_topic_is_kafkas(tmp_path: Path) -> None:
    async def body(node: KafkaNode, client: KafkaClient) -> None:
        await begun(client)
        topic = node.controller.image.topics["__transaction_state"]
        assert len(topic.partitions) == 4
        assert node.controller.image.config(topic_resource("__transaction_state")) == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": str(100 * 1024**2),
            "unclean.leader.election.enable": "false",
        }

    run(tmp_path, body)
