"""Picture that a client has of the cluster: brokers, topics, leaders. Fetched when needed, stale or proved wrong.

Views are immutable and replaced whole, so that another thread may read them. A partition's leader is only replaced by
one of an equal or higher leader epoch (KIP-320): brokers learn of an election at different times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from strandline.client import logs
from strandline.client.backoff import backoff_ms
from strandline.client.config import CommonConfig
from strandline.client.errors import AuthenticationFailed, ClientTimeout, ClosedError, TopicReplaced, UnknownTopic
from strandline.client.limits import note
from strandline.client.network import Network
from strandline.client.rights import answered
from strandline.client.types import NodeInfo
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.ids import Endpoint, TopicPartition
from strandline.proto.kafka.apis import Api
from strandline.proto.ports import Clock, Rng

UNKNOWN_TOPIC_GRACE_MS = 3_000
"""Time that an unknown topic is asked for before it counts as missing: a new one takes moments to reach every broker.

Kafka's clients wait max.block.ms (60 s) and then report a timeout, which tells nobody that the name was wrong.
"""


SUSPICION_MS = 10_000
"""Time that a broker is not asked for metadata, if another can be, after it let a request time out or knew nothing new
twice."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition's leader (None: none known now) and its epoch (-1: the broker does not tell)."""

    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic's partitions by number; `partition_count` is what a partitioner divides by."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: Mapping[int, PartitionView]

    @property
    def partition_count(self) -> int:
        """Number of partitions, those without a leader included."""
        return len(self.partitions)


class Metadata:
    """Keeps the topics in use up to date. Runs on one event loop; `topics` and `nodes` may be read from any thread."""

    def __init__(
        self, network: Network, config: CommonConfig, clock: Clock, rng: Rng, *, allow_auto_create: bool = False
    ) -> None:
        self.topics: dict[str, TopicView] = {}
        self.nodes: dict[int, NodeInfo] = {}
        self.cluster_id: str | None = None
        self.controller_id: int | None = None
        self.errors: dict[str, ErrorCode] = {}
        self.unknown_since_ms: dict[str, float] = {}
        self.last_error: StrandlineError | None = None
        self._network = network
        self._config = config
        self._clock = clock
        self._rng = rng
        self._allow_auto_create = allow_auto_create
        self._wanted: dict[str, float] = {}
        self._idle_after_ms: float | None = None
        self._listeners: list[Callable[[], None]] = []
        self._running: asyncio.Task[None] | None = None
        self._begun = 0
        self._needed = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._age_timer: asyncio.TimerHandle | None = None
        self._expected: dict[str, UUID] = {}
        self._missing: dict[TopicPartition, float] = {}
        self._suspected_ms: dict[int, float] = {}
        self._aged = False
        """Whether the next fetch is for age alone, not because something was missing or proved wrong."""
        self._unchanged: tuple[int, float] | None = None
        """The broker that was asked last and had nothing new, and when."""
        self._closed = False

    # -- what is known ----------------------------------------------------------------------------------------------

    def leader_of(self, partition: TopicPartition) -> tuple[NodeInfo, int] | None:
        """The leader's node and epoch, or None while unknown."""
        topic = self.topics.get(partition.topic)
        view = None if topic is None else topic.partitions.get(partition.partition)
        if view is None or view.leader is None or (self._expected and self._replaced(partition.topic)):
            return None
        node = self.nodes.get(view.leader)
        return None if node is None else (node, view.leader_epoch)

    def topic_id(self, name: str) -> UUID | None:
        """Id of the topic with this name; None if it is not known, or if the brokers have no topic ids."""
        view = self.topics.get(name)
        return None if view is None else view.topic_id

    def is_missing(self, name: str) -> bool:
        """Whether brokers have known no such topic for the grace period; what was known before stays in `topics`."""
        since = self.unknown_since_ms.get(name)
        return since is not None and self._clock.monotonic_ms() - since >= UNKNOWN_TOPIC_GRACE_MS

    def is_known(self, name: str) -> bool:
        """True if this client knows that the topic exists."""
        return name in self.topics and not self.is_missing(name)

    def is_forgotten(self, name: str) -> bool:
        """Whether the topic is missing, or not kept up to date any more."""
        return self.is_missing(name) or (name not in self.topics and name not in self._wanted)

    def topic_name(self, topic: str | UUID) -> str | None:
        """The name of a topic that an answer names by id."""
        if isinstance(topic, str):
            return topic
        return next((view.name for view in self.topics.values() if view.topic_id == topic), None)

    def expect(self, name: str, topic_id: UUID) -> None:
        """Expect the topic with this id under the name: another one counts as missing (see `absence`)."""
        self._expected[name] = topic_id

    def _replaced(self, name: str) -> TopicReplaced | None:
        expected, found = self._expected.get(name), self.topic_id(name)
        if expected is None or found is None or expected == found:
            return None
        return TopicReplaced(name, str(expected), str(found))

    def absence(self, partition: TopicPartition) -> StrandlineError | None:
        """The error of a topic or partition that has been missing for the grace period, or of a client whom the brokers
        do not let in; None while there is hope."""
        if self._network.denied is not None:
            return self._network.denied
        replaced = self._replaced(partition.topic) if self._expected else None
        if replaced is not None:
            return replaced
        now = self._clock.monotonic_ms()
        if partition.topic in self.unknown_since_ms:
            return UnknownTopic(partition.topic) if self.is_missing(partition.topic) else None
        view = self.topics.get(partition.topic)
        if view is None or partition.partition in view.partitions:
            self._missing.pop(partition, None)
            return None
        if now - self._missing.setdefault(partition, now) < UNKNOWN_TOPIC_GRACE_MS:
            return None
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {partition.topic!r} has partitions 0 to {view.partition_count - 1}",
            partition=partition.partition,
        )

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every update, successful or not."""
        self._listeners.append(listener)

    def drop_idle_topics_after(self, idle_ms: float) -> None:
        """Forget topics that `want` was not called for in this long (`metadata.max.idle.ms`)."""
        self._idle_after_ms = idle_ms

    def want(self, topics: Iterable[str]) -> None:
        """Keep these topics up to date from the next update on."""
        now = self._clock.monotonic_ms()
        for topic in topics:
            self._wanted[topic] = now

    def set_wanted(self, topics: Iterable[str]) -> None:
        """Keep these topics up to date, and no others."""
        self._wanted.clear()
        self.want(topics)

    def apply_leader(self, partition: TopicPartition, leader: int, epoch: int) -> bool:
        """Take over the leader that a broker named in an answer (KIP-951); true when it is new, of a known node."""
        topic = self.topics.get(partition.topic)
        view = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or view is None or epoch <= view.leader_epoch or leader not in self.nodes:
            return False
        _log_leader(str(partition), (view.leader, view.leader_epoch), (leader, epoch))
        changed = {**topic.partitions, partition.partition: replace(view, leader=leader, leader_epoch=epoch)}
        self.topics[partition.topic] = replace(topic, partitions=changed)
        return True

    # -- updates ----------------------------------------------------------------------------------------------------

    def suspect(self, node_id: int) -> None:
        """Ask others for a while, for this broker did not do its work in time: it may be on the wrong side of a cut,
        and know of no election since."""
        self._suspected_ms[node_id] = self._clock.monotonic_ms()

    def _trusted(self) -> list[NodeInfo]:
        """Brokers to ask: those that are not suspected, or all if every one is."""
        since_ms = self._clock.monotonic_ms() - SUSPICION_MS
        self._suspected_ms = {node_id: at for node_id, at in self._suspected_ms.items() if at > since_ms}
        every = list(self.nodes.values())
        return [node for node in every if node.node_id not in self._suspected_ms] or every

    def request_update(self) -> None:
        """Fetch anew in the background, after any fetch that is under way; failures are retried with back-off."""
        self._aged = False
        self._want_update()

    def _want_update(self) -> None:
        if self._closed:
            return
        self._needed = self._begun + 1
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._update())

    async def update(self, timeout_ms: float) -> None:
        """Return after the first fetch that began after this call and was answered, whatever it found.

        One that failed says nothing: what was known before it would be taken for what is.

        Raises:
            ClientTimeout: no broker answered in time.
            ClosedError: the client was closed meanwhile.
            AuthenticationFailed: the brokers do not let this client in.
        """
        self.request_update()
        done = asyncio.get_running_loop().create_future()
        waiter = (self._needed, done)
        self._waiters.append(waiter)
        try:
            if not self._closed:
                async with asyncio.timeout(timeout_ms / 1000):
                    await done
        except TimeoutError:
            raise ClientTimeout(f"no metadata within {timeout_ms:.0f} ms", self.last_error) from None
        finally:
            self._waiters.remove(waiter)
            if self.last_error is not None:
                note(self.last_error)
        if self._closed:
            raise ClosedError("the client is closed")
        if isinstance(self.last_error, AuthenticationFailed):  # rule A19/denied-clients-try-on
            raise self.last_error

    async def wait_for_topic(self, name: str, timeout_ms: float) -> TopicView:
        """The topic's view, fetched if need be.

        Raises:
            UnknownTopic: it still does not exist after a grace period.
            KafkaError: another error that a retry does not mend (TOPIC_AUTHORIZATION_FAILED, INVALID_TOPIC_EXCEPTION).
            ClientTimeout: no broker answered in time.
        """
        start = self._clock.monotonic_ms()
        failures = 0
        while True:
            self.want((name,))
            view = self.topics.get(name)
            if view is not None and view.partitions:
                return view
            left = timeout_ms - (self._clock.monotonic_ms() - start)
            if left <= 0:
                raise ClientTimeout(f"no metadata of topic {name!r} within {timeout_ms:.0f} ms", self.last_error)
            await self.update(left)
            view = self.topics.get(name)
            if view is not None and view.partitions:
                return view
            error = self.errors.get(name)
            waited = self._clock.monotonic_ms() - start
            if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if waited >= min(timeout_ms, UNKNOWN_TOPIC_GRACE_MS):
                    raise UnknownTopic(name)
            elif error is not None and not error.retriable:
                raise answered(self._config, Api.METADATA, error, of=name, topic=name)
            failures += 1
            config = self._config
            wait = backoff_ms(failures, config.retry_backoff_ms, config.retry_backoff_max_ms, self._rng)
            await asyncio.sleep(min(wait, max(timeout_ms - waited, 1.0)) / 1000)

    def stop(self) -> None:
        """Update no more, and tell who waits for it. Idempotent."""
        self._closed = True
        if self._age_timer is not None:
            self._age_timer.cancel()
        if self._running is not None:
            self._running.cancel()
        self._tell()

    async def close(self) -> None:
        """Stop updating, and return when that has ended."""
        self.stop()
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _update(self) -> None:
        # A login that was refused is remembered, and fails again at once: whoever is told so and asks again must wait.
        failures = int(isinstance(self.last_error, AuthenticationFailed))
        try:
            while self._begun < self._needed:
                if failures:
                    wait = backoff_ms(
                        failures, self._config.retry_backoff_ms, self._config.retry_backoff_max_ms, self._rng
                    )
                    await asyncio.sleep(wait / 1000)
                self._begun += 1
                try:
                    await self._fetch()
                except StrandlineError as error:
                    self.last_error = error
                    failures += 1
                    if not isinstance(error, AuthenticationFailed):  # whoever asks next tries it again
                        self._needed = self._begun + 1
                else:
                    self.last_error = None
                    failures = 0
                self._tell()
                if not failures and self._begun < self._needed:
                    await asyncio.sleep(self._config.retry_backoff_ms / 1000)
        finally:
            self._running = None
            self._set_age_timer()

    def _tell(self) -> None:
        """Tell the listeners that a fetch has ended, and its waiters if it was answered, or never will be."""
        error = self.last_error
        failed = error is not None and not isinstance(error, AuthenticationFailed)
        for needed, done in self._waiters:
            told = self._closed or (needed <= self._begun and not failed)  # rule C32/failed-fetch-is-an-answer
            if told and not done.done():
                done.set_result(None)
        for listener in self._listeners:
            listener()

    def _set_age_timer(self) -> None:
        if self._age_timer is not None:
            self._age_timer.cancel()
        if not self._closed:
            age_s = self._config.metadata_max_age_ms / 1000
            self._age_timer = asyncio.get_running_loop().call_later(age_s, self._has_aged)

    def _has_aged(self) -> None:
        self._aged = True
        self._want_update()

    async def _fetch(self) -> None:
        if self._idle_after_ms is not None:
            limit = self._clock.monotonic_ms() - self._idle_after_ms
            self._wanted = {name: used for name, used in self._wanted.items() if used >= limit}
        wanted = list(self._wanted)
        before, aged = _leaders(self.topics), self._aged
        self._aged = False
        node_id, answer = await self._ask(wanted, self._config.request_timeout_ms)
        self._apply(answer, wanted)
        after = _leaders(self.topics)
        if after != before:
            _log_leaders(before, after)
        if not aged and node_id is not None:
            self._weigh(node_id, after != before)

    def _weigh(self, node_id: int, changed: bool) -> None:
        """Ask others for a while when this broker had nothing new twice in a row although an answer was wanted.

        A broker that can be reached from here and does not hear the cluster names the former leaders for ever. A client
        that stays with it writes to leaders that are gone.
        """
        now = self._clock.monotonic_ms()
        if changed:
            self._unchanged = None
        elif self._unchanged is not None and self._unchanged[0] == node_id and now - self._unchanged[1] < SUSPICION_MS:
            self._unchanged = None
            self.suspect(node_id)
        else:
            self._unchanged = (node_id, now)

    async def ask(self, topics: list[str] | None, timeout_ms: float) -> Any:
        """One Metadata request to any broker; None asks for every topic. The view is left as it is.

        Raises:
            BrokerUnreachable, Disconnected, ClientTimeout, KafkaError, ProtocolError.
        """
        return (await self._ask(topics, timeout_ms))[1]

    async def _ask(self, topics: list[str] | None, timeout_ms: float) -> tuple[int | None, Any]:
        """The node that answered (None: not by an address that brokers advertise), and its answer."""
        connection = await self._network.to_any(self._trusted())
        values = {
            "topics": None if topics is None else [{"name": name, "topic_id": None} for name in topics],
            "allow_auto_topic_creation": self._allow_auto_create,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        answer = await connection.call(Api.METADATA, values, timeout_ms)
        code = getattr(answer, "error_code", ErrorCode.NONE)
        if code is not ErrorCode.NONE:
            if code is ErrorCode.REBOOTSTRAP_REQUIRED:  # KIP-1102
                self.nodes = {}
                self._network.sent_away(connection)  # rule B42/who-is-sent-away-asks-there-again
            raise KafkaError(code, f"{connection.endpoint} gave no metadata")
        self.nodes = nodes_of(answer)
        self.cluster_id = getattr(answer, "cluster_id", None)
        self._network.found(self.cluster_id, connection)
        asked = (node.node_id for node in self.nodes.values() if Endpoint(node.host, node.port) == connection.endpoint)
        return next(asked, None), answer

    def _apply(self, answer: Any, wanted: list[str]) -> None:
        self.controller_id = None if answer.controller_id < 0 else answer.controller_id
        errors: dict[str, ErrorCode] = {}
        topics: dict[str, TopicView] = {}
        for entry in answer.topics:
            if entry.error_code is ErrorCode.NONE:
                topics[entry.name] = _merged(self.topics.get(entry.name), topic_view(entry))
            elif entry.name is not None:
                errors[entry.name] = entry.error_code
                previous = self.topics.get(entry.name)
                if previous is not None and entry.error_code.retriable:
                    topics[entry.name] = previous
        now = self._clock.monotonic_ms()
        self.unknown_since_ms = {
            name: self.unknown_since_ms.get(name, now)
            for name, code in errors.items()
            if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        for name, view in self.topics.items():
            if name not in topics and name in self._wanted and name not in wanted:
                topics[name] = view
        self.topics = topics
        self.errors = errors


def _leaders(topics: Mapping[str, TopicView]) -> dict[str, dict[int, tuple[int | None, int]]]:
    """The leader of each partition, and its epoch."""
    return {
        name: {number: (view.leader, view.leader_epoch) for number, view in topic.partitions.items()}
        for name, topic in topics.items()
    }


Led = tuple[int | None, int]
"""(leader, leader epoch); the leader is None if there is none."""


def _log_leaders(before: Mapping[str, Mapping[int, Led]], after: Mapping[str, Mapping[int, Led]]) -> None:
    for name, partitions in after.items():
        known = before.get(name, {})
        for number, led in partitions.items():
            if number in known and known[number][0] != led[0]:
                _log_leader(f"{name}-{number}", known[number], led)


def _log_leader(partition: str, before: Led, after: Led) -> None:
    was = "was led by nobody" if before[0] is None else f"was led by broker {before[0]}"
    if after[0] is None:
        logs.metadata.warning("%s has no leader, and %s: nothing is written or read there", partition, was)
    else:
        logs.metadata.info("%s is led by broker %s in epoch %s, and %s", partition, *after, was)


def nodes_of(answer: Any) -> dict[int, NodeInfo]:
    """The brokers of a Metadata answer."""
    return {node.node_id: NodeInfo(node.node_id, node.host, node.port, node.rack) for node in answer.brokers}


def topic_view(entry: Any) -> TopicView:
    """One topic of a Metadata answer."""
    partitions = {
        item.partition_index: PartitionView(
            leader=None if item.leader_id < 0 else item.leader_id,
            leader_epoch=getattr(item, "leader_epoch", -1),
            replicas=item.replica_nodes,
            isr=item.isr_nodes,
            offline=getattr(item, "offline_replicas", ()),
        )
        for item in sorted(entry.partitions, key=lambda item: int(item.partition_index))
    }
    return TopicView(entry.name, getattr(entry, "topic_id", None), entry.is_internal, partitions)


def _merged(old: TopicView | None, new: TopicView) -> TopicView:
    """`new`, but where `old` knows of a later election of the same topic, that stays."""
    if old is None or old.topic_id != new.topic_id:
        return new
    partitions = dict(new.partitions)
    for number, view in old.partitions.items():
        newer = partitions.get(number)
        if newer is not None and newer.leader_epoch < view.leader_epoch:
            partitions[number] = view
    return replace(new, partitions=partitions)
