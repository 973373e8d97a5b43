"""The admin clients' part about transactions (KIP-664): what their coordinators know, and how an operator ends one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strandline.client.aio.admin_base import AdminBase, Operation, Question, Route, done, nothing
from strandline.client.coordinator import TRANSACTION, Coordinator
from strandline.client.descriptions import by_topic, each_once, none_if_negative
from strandline.client.types import FencedProducer, NodeInfo, TransactionDescription, TransactionListing
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api

_SENTENCES = {ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id, or it has expired"}

_DURATION_SINCE = 1
_PATTERN_SINCE = 2
"""Versions of ListTransactions (KIP-994, KIP-1152)."""

_EPOCH_OF_DATA = 1
"""Version of transactions in which a marker has the epoch of the data that it ends (KIP-1228)."""

_Listed = tuple[tuple[str, ...], list[tuple[str, int, str]]]


class TransactionAdmin(AdminBase):
    """Transactional ids and their transactions."""

    @Operation(Api.LIST_TRANSACTIONS, route=Route.EVERY_BROKER)
    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> Question[list[TransactionListing]]:
        """Transactional ids of the cluster, by their names: all that the user may see.

        Args:
            states: only those in one of these, as Kafka names them (Ongoing).
            producer_ids: only those of one of these.
            longer_than_ms: only those whose last transaction began longer ago; open or not, see `states`.
            pattern: only those that match this regular expression (RE2) as a whole.

        Raises:
            ConfigError: there is no such state.
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS, INVALID_REGULAR_EXPRESSION; UNSUPPORTED_VERSION: a broker is too
                old for an argument.
        """
        values = {
            "state_filters": tuple(states),
            "producer_id_filters": tuple(producer_ids),
            "duration_filter": -1 if longer_than_ms is None else longer_than_ms,
            "transactional_id_pattern": pattern,
        }
        least = _PATTERN_SINCE if pattern else 0 if longer_than_ms is None else _DURATION_SINCE
        return Question(values, _listed, _sorted, least=least)

    @Operation(Api.DESCRIBE_TRANSACTIONS, also=(Api.FIND_COORDINATOR,), route=Route.COORDINATORS)
    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """State, producer and partitions of each, in the order of `transactional_ids`.

        Raises:
            KafkaError: TRANSACTIONAL_ID_NOT_FOUND, TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
        """

        async def describe(coordinator: Coordinator) -> TransactionDescription:
            values = {"transactional_ids": (coordinator.key,)}
            [answer] = (await coordinator.call(Api.DESCRIBE_TRANSACTIONS, values)).transaction_states
            coordinator.check(Api.DESCRIBE_TRANSACTIONS, answer.error_code)
            return _described(answer, await coordinator.find())

        return await self._ask_coordinators(self._coordinators(transactional_ids), describe, _SENTENCES)

    @Operation(Api.INIT_PRODUCER_ID, also=(Api.FIND_COORDINATOR,), route=Route.COORDINATORS)
    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, FencedProducer]:
        """Have the coordinator abort what is open of each, and refuse its producer from now on (KIP-588): answered once
        the transaction has ended in each of its partitions.

        Raises:
            KafkaError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
            ClientTimeout: a partition is not there to end its part.
        """

        async def fence(coordinator: Coordinator) -> FencedProducer:
            values = {
                "transactional_id": coordinator.key,
                "transaction_timeout": self.config.request_timeout_ms,
                "producer_id": -1,
                "producer_epoch": -1,
            }
            answer = await coordinator.call(Api.INIT_PRODUCER_ID, values)
            coordinator.check(Api.INIT_PRODUCER_ID, answer.error_code)
            return FencedProducer(answer.producer_id, answer.producer_epoch)

        return await self._ask_coordinators(self._coordinators(transactional_ids), fence, {})

    @Operation(Api.WRITE_TXN_MARKERS, route=Route.LEADERS, each="markers.topics.partitions")
    async def abort_transaction(
        self,
        partition: TopicPartition | tuple[str, int],
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int | None = None,
    ) -> Question[None]:
        """Abort a transaction that hangs in a partition: its leader writes the marker, and no coordinator is asked. A
        transaction that a coordinator knows is aborted by `fence_producers`: half of it would be committed otherwise.

        Args:
            producer_id, producer_epoch, coordinator_epoch: as `describe_producers` tells them.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED: they are others by now;
                CLUSTER_AUTHORIZATION_FAILED.
            UnknownTopic, ClientTimeout.
        """
        place = TopicPartition(*partition)
        marker = {
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "transaction_result": False,
            "topics": by_topic([place], "name", lambda item: item.partition, "partition_indexes"),
            "coordinator_epoch": coordinator_epoch or 0,
            "transaction_version": _EPOCH_OF_DATA,
        }
        return Question({"markers": [marker]}, nothing, done, items=[place])

    def _coordinators(self, transactional_ids: Iterable[str]) -> list[Coordinator]:
        timeout_ms = self.config.request_timeout_ms
        return [Coordinator(self.session, name, TRANSACTION, timeout_ms) for name in each_once(transactional_ids)]


def _listed(answer: Any) -> _Listed:
    listed = [(one.transactional_id, one.producer_id, one.transaction_state) for one in answer.transaction_states]
    return answer.unknown_state_filters, listed


def _sorted(told: Mapping[int, _Listed]) -> list[TransactionListing]:
    unknown = sorted({state for states, _ in told.values() for state in states})
    if unknown:
        raise ConfigError("states", unknown[0], "a state that the brokers know, as Ongoing or CompleteCommit")
    return sorted(TransactionListing(*one, node_id) for node_id, (_, listed) in told.items() for one in listed)


def _described(answer: Any, coordinator: NodeInfo) -> TransactionDescription:
    return TransactionDescription(
        answer.transactional_id,
        coordinator,
        answer.transaction_state,
        answer.producer_id,
        answer.producer_epoch,
        answer.transaction_timeout,
        none_if_negative(answer.transaction_start_time),
        tuple(sorted(TopicPartition(topic.topic, number) for topic in answer.topics for number in topic.partitions)),
    )
