"""Questions that only a partition's leader can answer: routed to the leaders, repeated when leadership has moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from strandline.client.descriptions import by_topic
from strandline.client.limits import Limit, note
from strandline.client.network import CONTROL, Connection
from strandline.client.rights import answered
from strandline.client.session import Session
from strandline.client.types import EpochEnd, ListedOffset, NodeInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api

T = TypeVar("T")
Answers = dict[TopicPartition, T | KafkaError]
Question = Callable[[Connection, list[TopicPartition]], Awaitable[Answers[T]]]
"""Function that asks one leader about some of its partitions."""


NAMED_MAX = 5
"""Maximum partitions named in the error of a question that no leader answered."""


class Leaders:
    """Asks leaders. Runs on one event loop."""

    def __init__(self, session: Session, request_timeout_ms: int) -> None:
        self._session = session
        self._network = session.network
        self._metadata = session.metadata
        self._request_timeout_ms = request_timeout_ms

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], timeout_ms: float, *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset for a time (ms), or for EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL or LATEST_TIERED, of each
        partition.

        Raises:
            UnknownTopic, KafkaError, ClientTimeout.
        """

        async def ask(connection: Connection, partitions: list[TopicPartition]) -> Answers[ListedOffset]:
            values = {
                "replica_id": -1,
                "isolation_level": 1 if read_committed else 0,
                "timeout": self._request_timeout_ms,
                "topics": by_topic(
                    partitions,
                    "name",
                    lambda item: {
                        "partition_index": item.partition,
                        "current_leader_epoch": self._epoch(item),
                        "timestamp": wanted[item],
                    },
                ),
            }
            # MAX_TIMESTAMP is known since version 7, EARLIEST_LOCAL since 8, LATEST_TIERED since 9; brokers refuse them
            # before (KIP-734, KIP-405, KIP-1005).
            answer = await connection.call(Api.LIST_OFFSETS, values, self._request_timeout_ms)
            return {
                TopicPartition(topic.name, entry.partition_index): self._or_error(
                    Api.LIST_OFFSETS,
                    topic.name,
                    entry,
                    ListedOffset(entry.offset, entry.timestamp, getattr(entry, "leader_epoch", -1)),
                )
                for topic in answer.topics
                for entry in topic.partitions
            }

        return await self.ask(wanted, ask, timeout_ms)

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, EpochEnd]:
        """Ends of the given leader epochs in the leaders' logs (KIP-320).

        Raises:
            UnknownTopic, KafkaError, ClientTimeout.
        """

        async def ask(connection: Connection, partitions: list[TopicPartition]) -> Answers[EpochEnd]:
            values = {
                "replica_id": -1,
                "topics": by_topic(
                    partitions,
                    "topic",
                    lambda item: {
                        "partition": item.partition,
                        "current_leader_epoch": self._epoch(item),
                        "leader_epoch": epochs[item],
                    },
                ),
            }
            answer = await connection.call(Api.OFFSET_FOR_LEADER_EPOCH, values, self._request_timeout_ms)
            return {
                TopicPartition(topic.topic, entry.partition): self._or_error(
                    Api.OFFSET_FOR_LEADER_EPOCH, topic.topic, entry, EpochEnd(entry.leader_epoch, entry.end_offset)
                )
                for topic in answer.topics
                for entry in topic.partitions
            }

        return await self.ask(epochs, ask, timeout_ms)

    async def ask(
        self, partitions: Iterable[TopicPartition], question: Question[T], timeout_ms: float
    ) -> dict[TopicPartition, T]:
        """Put `question` to every leader until each partition has its answer.

        Raises:
            UnknownTopic, KafkaError: an error that a retry does not mend.
            ClientTimeout: it takes longer than `timeout_ms`; names what failed last.
        """
        asked = list(dict.fromkeys(partitions))
        names = ", ".join(map(str, asked[:NAMED_MAX])) + (", ..." if len(asked) > NAMED_MAX else "")
        limit = Limit(timeout_ms, f"no answer for {names} within {timeout_ms:g} ms")
        return await limit.keep(self._ask_all(asked, question, timeout_ms))

    async def _ask_all(
        self, asked: list[TopicPartition], question: Question[T], timeout_ms: float
    ) -> dict[TopicPartition, T]:
        open_ones = asked
        answers: dict[TopicPartition, T] = {}
        failures = 0
        while open_ones:
            by_leader = await self._by_leader(open_ones, timeout_ms)
            groups = list(by_leader.values())
            results = await asyncio.gather(*(self._ask_one(node, group, question) for node, group in groups))
            for error, entry in results:
                if error is not None:
                    note(error)
                for item, value in entry.items():
                    if not isinstance(value, KafkaError):
                        answers[item] = value
                    elif not value.retriable:
                        raise value
                    else:
                        note(value)
            open_ones = [item for item in open_ones if item not in answers]
            if open_ones:
                self._raise_if_gone(open_ones)
                failures += 1
                await asyncio.sleep(self._session.backoff_ms(failures) / 1000)
                self._metadata.request_update()
        return {item: answers[item] for item in asked}

    async def _ask_one(
        self, node: NodeInfo, partitions: list[TopicPartition], question: Question[T]
    ) -> tuple[StrandlineError | None, Answers[T]]:
        try:
            connection = await self._network.to_node(node, CONTROL)
            return None, await question(connection, partitions)
        except KafkaError as error:
            if not error.retriable:
                raise
            return error, {}
        except StrandlineError as error:
            return error, {}

    async def _by_leader(
        self, partitions: list[TopicPartition], timeout_ms: float
    ) -> dict[int, tuple[NodeInfo, list[TopicPartition]]]:
        for topic in dict.fromkeys(item.topic for item in partitions):
            view = await self._metadata.wait_for_topic(topic, timeout_ms)
            if any(item.topic == topic and item.partition not in view.partitions for item in partitions):
                await self._metadata.update(timeout_ms)
        grouped: dict[int, tuple[NodeInfo, list[TopicPartition]]] = {}
        for item in partitions:
            leader = self._metadata.leader_of(item)
            if leader is not None:
                grouped.setdefault(leader[0].node_id, (leader[0], []))[1].append(item)
        if not grouped:
            self._metadata.request_update()
        return grouped

    def _or_error(self, api: Api, topic: str, entry: Any, value: T) -> T | KafkaError:
        code, words = entry.error_code, getattr(entry, "error_message", None)
        return value if code is ErrorCode.NONE else answered(self._session.config, api, code, words, of=topic)

    def _raise_if_gone(self, partitions: list[TopicPartition]) -> None:
        for item in partitions:
            gone = self._metadata.absence(item)
            if gone is not None:
                raise gone

    def _epoch(self, item: TopicPartition) -> int:
        leader = self._metadata.leader_of(item)
        return -1 if leader is None else leader[1]
