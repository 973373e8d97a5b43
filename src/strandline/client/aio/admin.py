"""The admin client for coroutines: topics, configs, cluster, quorum, offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from strandline.client.config import AdminConfig
from strandline.client.descriptions import (
    by_topic,
    config_change,
    config_entry,
    config_error,
    described,
    described_with_elr,
    new_topic,
    none_if_negative,
    quorum_replica,
    resource_type,
    topic_error,
)
from strandline.client.errors import ClientTimeout, ManyErrors
from strandline.client.leaders import Leaders
from strandline.client.metadata import topic_view
from strandline.client.network import CONTROL
from strandline.client.session import Session
from strandline.client.types import (
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    Election,
    ListedOffset,
    NewTopic,
    NodeInfo,
    QuorumDescription,
    TopicDescription,
)
from strandline.client.watch import INTERVAL_MS, Change, look, watch
from strandline.client.wire.apis import Api
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError, StrandlineError
from strandline.proto.ids import TopicPartition
from strandline.proto.ports import Clock, Rng

T = TypeVar("T")

_METADATA_TOPIC = "__cluster_metadata"

NEW_TOPIC_GRACE_MS = 500
"""How long an unknown topic is asked for again: a broker may not have heard yet of one that was just created."""


class Admin:
    """Describes and changes a cluster. Calls may run concurrently.

    Every call retries what a retry may mend, for `default.api.timeout.ms`, and then raises ClientTimeout. For one name
    that fails its KafkaError is raised; for several, ManyErrors with `results` and `errors`.

    Args:
        bootstrap: ``"host:port,..."`` or a sequence of them.
        clock, rng: the world; the machine's own when left out.
        settings: see docs/client.md.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] = "127.0.0.1:9092",
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **settings: object,
    ) -> None:
        self._config = AdminConfig.of(settings)
        self._session = Session(bootstrap, self._config, clock=clock, rng=rng)
        self._network = self._session.network
        self._metadata = self._session.metadata
        self._clock = self._session.clock
        self._leaders = Leaders(self._session, self._config.request_timeout_ms)

    # -- topics -----------------------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic]:
        """Create topics; with `validate_only` the brokers check everything and create nothing.

        Raises:
            KafkaError: TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR, INVALID_PARTITIONS, INVALID_CONFIG.
        """
        wanted = list(topics)
        values = {
            "topics": [new_topic(topic) for topic in wanted],
            "timeout": self._config.request_timeout_ms,
            "validate_only": validate_only,
        }
        answer = await self._call(Api.CREATE_TOPICS, values, lambda told: [item.error_code for item in told.topics])
        results: dict[str, CreatedTopic] = {}
        errors: dict[Any, Exception] = {}
        for told in answer.topics:
            if told.error_code is ErrorCode.NONE:
                configs = {item.name: item.value for item in getattr(told, "configs", None) or ()}
                results[told.name] = CreatedTopic(
                    told.name,
                    getattr(told, "topic_id", None),
                    getattr(told, "num_partitions", -1),
                    getattr(told, "replication_factor", -1),
                    configs,
                )
            else:
                errors[told.name] = KafkaError(
                    told.error_code, getattr(told, "error_message", None) or "", topic=told.name
                )
        return _results(results, errors)

    async def delete_topics(self, names: Iterable[str], *, dry_run: bool = False) -> list[str]:
        """Delete topics with all their records; `dry_run` only checks that they exist. The names, as deleted.

        Raises:
            UnknownTopic, KafkaError.
        """
        wanted = list(dict.fromkeys(names))
        if dry_run:
            return [topic.name for topic in await self.describe_topics(wanted)]
        values = {
            "topics": [{"name": name, "topic_id": None} for name in wanted],
            "topic_names": wanted,
            "timeout": self._config.request_timeout_ms,
        }
        answer = await self._call(Api.DELETE_TOPICS, values, lambda told: [item.error_code for item in told.responses])
        deleted: dict[str, str] = {}
        errors: dict[Any, Exception] = {}
        for told in answer.responses:
            if told.error_code is ErrorCode.NONE:
                deleted[told.name] = told.name
            else:
                errors[told.name] = topic_error(told.name, told.error_code, getattr(told, "error_message", None))
        return list(_results(deleted, errors))

    async def create_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Raise the number of partitions of topics to these totals. Keys then map to other partitions than before.

        Raises:
            UnknownTopic; KafkaError: INVALID_PARTITIONS when the total is not more than there are.
        """
        values = {
            "topics": [{"name": name, "count": total, "assignments": None} for name, total in totals.items()],
            "timeout": self._config.request_timeout_ms,
            "validate_only": validate_only,
        }
        answer = await self._call(
            Api.CREATE_PARTITIONS, values, lambda told: [item.error_code for item in told.results]
        )
        _results(
            {told.name: told for told in answer.results if told.error_code is ErrorCode.NONE},
            {
                told.name: topic_error(told.name, told.error_code, told.error_message)
                for told in answer.results
                if told.error_code is not ErrorCode.NONE
            },
        )

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None, *, unclean: bool, dry_run: bool = False
    ) -> list[Election]:
        """Give leadership to the preferred replicas or, `unclean`, to any live replica of partitions without a leader:
        committed records that it lacks are lost. None: every partition that needs it. `dry_run` only tells what each
        election would do and lose, which Strandline alone can (Apache Kafka refuses it).

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST. What befalls one partition stands in its result.
        """
        named = None if partitions is None else by_topic(partitions)
        values = {
            "election_type": (-2 if unclean else -1) if dry_run else int(unclean),
            "topic_partitions": named,
            "timeout": self._config.request_timeout_ms,
        }
        answer = await self._call(Api.ELECT_LEADERS, values, lambda told: [told.error_code])
        found = [
            Election(topic.topic, one.partition_id, one.error_code, one.error_message or "")
            for topic in answer.replica_election_results
            for one in topic.partition_result
        ]
        if answer.error_code is not ErrorCode.NONE:
            raise KafkaError(answer.error_code, found[0].message if found else "")
        return sorted(found, key=lambda one: (one.topic, one.partition))

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        answer = await self._retrying(lambda: self._metadata.ask(None, self._config.request_timeout_ms))
        topics = [told for told in answer.topics if told.error_code is ErrorCode.NONE]
        return sorted(told.name for told in topics if include_internal or not told.is_internal)

    async def describe_topics(self, names: Iterable[str]) -> list[TopicDescription]:
        """Leaders, replicas, ISR and eligible leader replicas of every partition, in the order of `names`.

        Raises:
            UnknownTopic, KafkaError.
        """
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return []
        results: dict[str, TopicDescription] = {}
        errors: dict[str, ErrorCode] = {}
        until_ms = self._clock.monotonic_ms() + NEW_TOPIC_GRACE_MS
        asked = wanted
        while asked:
            for name, code, description in await self._retrying(partial(self._describe_topics, asked)):
                errors.pop(name, None)
                if code is ErrorCode.NONE and description is not None:
                    results[name] = description
                else:
                    errors[name] = code
            asked = [name for name, code in errors.items() if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            if asked and self._clock.monotonic_ms() >= until_ms:
                break
            if asked:
                await asyncio.sleep(self._config.retry_backoff_ms / 1000)
        _results(results, {name: topic_error(name, code, None) for name, code in errors.items()})
        return [results[name] for name in wanted]

    # -- cluster ----------------------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """The brokers, fenced ones included where the cluster tells them."""

        async def ask() -> ClusterDescription:
            connection = await self._network.to_any(list(self._metadata.nodes.values()))
            if Api.DESCRIBE_CLUSTER not in connection.versions:
                told = await self._metadata.ask([], self._config.request_timeout_ms)
                nodes = tuple(self._metadata.nodes[number] for number in sorted(self._metadata.nodes))
                return ClusterDescription(told.cluster_id, none_if_negative(told.controller_id), nodes)
            values = {
                "include_cluster_authorized_operations": False,
                "endpoint_type": 1,
                "include_fenced_brokers": True,
            }
            told = await connection.call(Api.DESCRIBE_CLUSTER, values, self._config.request_timeout_ms)
            if told.error_code is not ErrorCode.NONE:
                raise KafkaError(told.error_code, told.error_message or "")
            nodes = tuple(
                NodeInfo(node.broker_id, node.host, node.port, node.rack, getattr(node, "is_fenced", False))
                for node in sorted(told.brokers, key=lambda node: int(node.broker_id))
            )
            return ClusterDescription(told.cluster_id, none_if_negative(told.controller_id), nodes)

        return await self._retrying(ask)

    async def describe_quorum(self) -> QuorumDescription:
        """The metadata quorum: leader, epoch, high watermark, voters and observers with their log ends (KIP-595)."""
        values = {"topics": [{"topic_name": _METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}
        answer = await self._call(
            Api.DESCRIBE_QUORUM,
            values,
            lambda told: [told.error_code, *(item.error_code for topic in told.topics for item in topic.partitions)],
        )
        if answer.error_code is not ErrorCode.NONE:
            raise KafkaError(answer.error_code, getattr(answer, "error_message", None) or "")
        partition = answer.topics[0].partitions[0]
        if partition.error_code is not ErrorCode.NONE:
            raise KafkaError(partition.error_code, getattr(partition, "error_message", None) or "")
        return QuorumDescription(
            partition.leader_id,
            partition.leader_epoch,
            partition.high_watermark,
            tuple(quorum_replica(item) for item in partition.current_voters),
            tuple(quorum_replica(item) for item in partition.observers),
        )

    async def list_offsets(
        self, wanted: Mapping[TopicPartition | tuple[str, int], int], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset for EARLIEST, LATEST, MAX_TIMESTAMP or a time in ms, asked of each partition's leader.

        Raises:
            UnknownTopic, KafkaError, ClientTimeout.
        """
        asked = {TopicPartition(*item): timestamp for item, timestamp in wanted.items()}
        timeout_ms = self._config.default_api_timeout_ms
        return await self._leaders.list_offsets(asked, timeout_ms, read_committed=read_committed)

    # -- configs ----------------------------------------------------------------------------------------------------

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, documentation: bool = False
    ) -> dict[ConfigResource, list[ConfigEntry]]:
        """Every setting of topics and brokers with where its value comes from.

        Raises:
            UnknownTopic, KafkaError.
        """
        results: dict[ConfigResource, list[ConfigEntry]] = {}
        errors: dict[Any, Exception] = {}
        for node, group in self._by_broker(resources):
            values = {
                "resources": [
                    {"resource_type": resource_type(item), "resource_name": item.name, "configuration_keys": None}
                    for item in group
                ],
                "include_synonyms": False,
                "include_documentation": documentation,
            }
            answer = await self._call(
                Api.DESCRIBE_CONFIGS, values, lambda told: [item.error_code for item in told.results], node
            )
            for item, told in zip(group, answer.results, strict=True):
                if told.error_code is ErrorCode.NONE:
                    results[item] = sorted((config_entry(entry) for entry in told.configs), key=_name)
                else:
                    errors[item] = config_error(item, told.error_code, told.error_message)
        return _results(results, errors)

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigChange]], *, validate_only: bool = False
    ) -> None:
        """Change single settings and leave the others (KIP-339); `validate_only` checks and changes nothing.

        Raises:
            UnknownTopic; KafkaError: INVALID_CONFIG with the broker's sentence.
        """
        errors: dict[Any, Exception] = {}
        done: dict[ConfigResource, None] = {}
        for node, group in self._by_broker(changes):
            values = {
                "resources": [
                    {
                        "resource_type": resource_type(item),
                        "resource_name": item.name,
                        "configs": [config_change(change) for change in changes[item]],
                    }
                    for item in group
                ],
                "validate_only": validate_only,
            }
            answer = await self._call(
                Api.INCREMENTAL_ALTER_CONFIGS, values, lambda told: [item.error_code for item in told.responses], node
            )
            for item, told in zip(group, answer.responses, strict=True):
                if told.error_code is ErrorCode.NONE:
                    done[item] = None
                else:
                    errors[item] = config_error(item, told.error_code, told.error_message)
        _results(done, errors)

    def watch(self, *, interval_ms: float = INTERVAL_MS) -> AsyncIterator[Change]:
        """What changes in the cluster from now on: brokers that come and go, topics, leaders, in-sync replicas.

        Args:
            interval_ms: how often one broker is asked for the metadata of all topics.

        Raises:
            ClientTimeout: no broker answered for default.api.timeout.ms.
        """
        patience_ms = self._config.default_api_timeout_ms
        looking = partial(look, self._network, self._metadata)
        return watch(looking, self._clock, interval_ms=interval_ms, patience_ms=patience_ms)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _call(
        self,
        api: Api,
        values: Mapping[str, Any],
        codes: Callable[[Any], list[ErrorCode]],
        node_id: int | None = None,
    ) -> Any:
        """One request to any broker (or to `node_id`); sent again while it meets NOT_CONTROLLER and the like."""

        async def ask() -> Any:
            if node_id is None:
                connection = await self._network.to_any(self._controller_first())
            else:
                connection = await self._network.to_node(await self._node(node_id), CONTROL)
            answer = await connection.call(api, values, self._config.request_timeout_ms)
            again = [code for code in codes(answer) if code in _SEND_AGAIN]
            if again:
                await self._metadata.update(self._config.request_timeout_ms)
                raise KafkaError(again[0], f"{connection.endpoint} answered {api.name} so")
            return answer

        return await self._retrying(ask)

    async def _retrying(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        timeout_ms = self._config.default_api_timeout_ms
        start = self._clock.monotonic_ms()
        failures = 0
        last_error: StrandlineError | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    try:
                        return await ask()
                    except KafkaError as error:
                        if not error.retriable:
                            raise
                        last_error = error
                    except StrandlineError as error:
                        last_error = error
                    failures += 1
                    waited_ms = self._clock.monotonic_ms() - start
                    if waited_ms >= timeout_ms:
                        raise TimeoutError
                    await asyncio.sleep(self._session.backoff_ms(failures) / 1000)
        except TimeoutError:
            raise ClientTimeout(f"no answer within default.api.timeout.ms={timeout_ms}", last_error) from None

    def _controller_first(self) -> list[NodeInfo]:
        nodes = list(self._metadata.nodes.values())
        return sorted(nodes, key=lambda node: node.node_id != self._metadata.controller_id)

    async def _node(self, node_id: int) -> NodeInfo:
        if node_id not in self._metadata.nodes:
            await self._metadata.update(self._config.request_timeout_ms)
        node = self._metadata.nodes.get(node_id)
        if node is None:
            known = ", ".join(str(number) for number in sorted(self._metadata.nodes))
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no broker {node_id}; the brokers are {known}")
        return node

    def _by_broker(self, resources: Iterable[ConfigResource]) -> list[tuple[int | None, list[ConfigResource]]]:
        """A named broker answers for its own settings; everything else any broker answers."""
        groups: dict[int | None, list[ConfigResource]] = {}
        for item in dict.fromkeys(resources):
            own = item.kind == "broker" and item.name != ""
            if own and not item.name.isdecimal():
                raise ConfigError("broker", item.name, "a broker's number, or nothing for every broker")
            groups.setdefault(int(item.name) if own else None, []).append(item)
        return list(groups.items())

    async def _describe_topics(self, names: list[str]) -> list[tuple[str, ErrorCode, TopicDescription | None]]:
        connection = await self._network.to_any(list(self._metadata.nodes.values()))
        timeout_ms = self._config.request_timeout_ms
        if Api.DESCRIBE_TOPIC_PARTITIONS not in connection.versions:
            told = (await self._metadata.ask(names, timeout_ms)).topics
            return [
                (item.name, item.error_code, described(topic_view(item)) if not item.error_code else None)
                for item in told
            ]
        found: dict[str, tuple[Any, list[Any]]] = {}
        cursor: dict[str, Any] | None = None
        while True:
            values = {"topics": [{"name": name} for name in sorted(names)], "cursor": cursor}
            answer = await connection.call(Api.DESCRIBE_TOPIC_PARTITIONS, values, timeout_ms)
            for topic in answer.topics:
                found.setdefault(topic.name, (topic, []))[1].extend(topic.partitions)
            if answer.next_cursor is None:
                break
            cursor = {
                "topic_name": answer.next_cursor.topic_name,
                "partition_index": answer.next_cursor.partition_index,
            }
        return [
            (name, topic.error_code, described_with_elr(topic, partitions) if not topic.error_code else None)
            for name, (topic, partitions) in found.items()
        ]


_SEND_AGAIN = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


def _name(item: Any) -> str:
    return str(item.name)


def _results(results: dict[Any, T], errors: Mapping[Any, Exception]) -> dict[Any, T]:
    if len(errors) == 1 and not results:
        raise next(iter(errors.values()))
    if errors:
        raise ManyErrors(results, errors)
    return results
