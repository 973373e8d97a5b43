"""The admin clients' part about transactions (KIP-664): what their coordinators know, and how an operator ends one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strandline.client.aio.admin_base import AdminBase, Operation, Question, Route
from strandline.client.coordinator import TRANSACTION, Coordinator
from strandline.client.descriptions import each_once, none_if_negative
from strandline.client.types import NodeInfo, TransactionDescription, TransactionListing
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api

_SENTENCES = {ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id, or it has expired"}

_DURATION_SINCE = 1
_PATTERN_SINCE = 2
"""Versions of ListTransactions (KIP-994, KIP-1152)."""

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

        coordinators = [
            Coordinator(self.session, name, TRANSACTION, self.config.request_timeout_ms)
            for name in each_once(transactional_ids)
        ]
        return await self._ask_coordinators(coordinators, describe, _SENTENCES)


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
