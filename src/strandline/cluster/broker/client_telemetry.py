"""Metrics that clients push (KIP-714): the operator's subscriptions, and the latest values of each client.

Clients that no subscription matches cost no memory and no computation. For the others the numbers of instances and of
values per instance are bounded, whatever clients send. When too many instances are known, the principal or address with
the most instances loses one.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from strandline.cluster.broker.otlp import read_metrics
from strandline.cluster.broker.request import RequestContext
from strandline.controller.metadata.image import MetadataImage, ResourceType
from strandline.controller.metadata.settings import ClientMetricsSettings
from strandline.log.compression import Codec, decompress
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import BrokerEpoch, NodeId
from strandline.proto.ports import Clock

INSTANCES_MAX = 1_000
"""Maximum client instances kept by each broker: some 25 MB at most, with `SERIES_MAX` values each."""

TELEMETRY_BYTES_MAX = 1 << 20
"""Maximum bytes of a push, both compressed and decompressed; Kafka's `telemetry.max.bytes`."""

ACCEPTED = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
"""Codecs accepted in a push, in the order in which clients should prefer them."""

EVERYTHING = "*"

CLIENT_ID_CHARS_MAX = 128
"""Maximum characters of a client.id that are kept."""

KEPT_INTERVALS = 3
"""Push intervals without a push after which a client is forgotten."""

_EVERY_MS = int(ClientMetricsSettings.interval_ms.default or 0)


class Subscription(NamedTuple):
    """One subscription set by an operator: the metrics that matching clients are to push, and how often."""

    name: str
    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Any]

    def fits(self, client: Mapping[str, str]) -> bool:
        """Return whether each pattern of the subscription matches the client's value of that attribute completely."""
        return all(pattern.fullmatch(client[key]) is not None for key, pattern in self.match.items())


class Wanted(NamedTuple):
    """Metrics that one client is asked to push, and how often."""

    id: int
    metrics: tuple[str, ...]
    interval_ms: int


@dataclass(slots=True)
class Instance:
    """One client instance that has asked for its subscription, or pushed.

    Attributes:
        payer: principal or address whose instances are counted together (`Peer.payer`).
        heard_ms: monotonic time of its last request of either kind.
        pushed_ms: monotonic time of its last accepted push; None: there was none.
        asked_last: it has asked for its subscription and not pushed since; then its first push may come at once.
        may_ask: it was told to ask for its subscription again, and may do so at once.
        closed: it has sent its final push (`terminating`).
        left_out: number of metrics of its last push that were not kept.
    """

    id: UUID
    payer: str
    client: Mapping[str, str]
    interval_ms: int
    heard_ms: float
    pushed_ms: float | None = None
    asked_last: bool = False
    may_ask: bool = False
    closed: bool = False
    left_out: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


class ClientTelemetry:
    """Subscriptions and instances of one broker.

    Attributes:
        pushes, refused, evicted: numbers of accepted pushes, refused pushes, and instances evicted to make room.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        broker_epoch: Callable[[], BrokerEpoch],
        image: Callable[[], MetadataImage],
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._image = image
        self._clock = clock
        self._instances: dict[UUID, Instance] = {}
        """Instances by id, the most recently active last."""
        self._of_payer: dict[str, dict[UUID, None]] = {}
        self._configs: object = None
        self._subscriptions: tuple[Subscription, ...] = ()
        self._named = 0
        self.pushes = self.refused = self.evicted = 0

    # GetTelemetrySubscriptions

    def ask(self, context: RequestContext, instance_id: UUID | None) -> tuple[UUID, Wanted]:
        """Return the client's instance id, a new one for None, and the metrics that it is asked to push.

        Raises:
            KafkaError: THROTTLING_QUOTA_EXCEEDED: the client asks more often than its push interval allows.
        """
        named = instance_id or self._new_id()
        client = _said_of_itself(context, named)
        wanted = self._wanted(client, named)
        if not wanted.metrics and named not in self._instances:
            return named, wanted  # rule A42/clients-without-a-subscription-are-kept
        now_ms = self._clock.monotonic_ms()
        instance = self._heard(context, named, client, wanted.interval_ms)
        if now_ms - instance.heard_ms < instance.interval_ms and not instance.may_ask:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"it is asked again after {instance.interval_ms} ms")
        instance.heard_ms, instance.asked_last, instance.may_ask = now_ms, True, False
        instance.interval_ms = wanted.interval_ms
        return named, wanted

    # PushTelemetry

    def push(self, context: RequestContext, pushed: Any) -> None:
        """Keep the metrics that a client has pushed, in place of its previous ones.

        Raises:
            KafkaError: INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID (the client must ask for its
                subscription again), UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE, INVALID_RECORD.
        """
        try:
            self._push(context, pushed)
            self.pushes += 1
        except KafkaError:
            self.refused += 1
            raise

    def _push(self, context: RequestContext, pushed: Any) -> None:
        named = pushed.client_instance_id
        if named is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a push names its client by an instance id other than 0")
        client = _said_of_itself(context, named)
        wanted = self._wanted(client, named)
        known = self._instances.get(named)
        if known is None and not wanted.metrics:
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "nothing is asked of this client: it may ask again")
        now_ms = self._clock.monotonic_ms()
        instance = self._heard(context, named, client, wanted.interval_ms)
        if instance.closed:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the client has pushed for the last time before")
        too_soon = known is not None and now_ms - instance.heard_ms < instance.interval_ms and not instance.asked_last
        if too_soon and not pushed.terminating:  # rule A43/pushes-as-often-as-a-client-likes
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"a push each {instance.interval_ms} ms was asked for"
            )
        instance.heard_ms, instance.asked_last = now_ms, False
        if pushed.subscription_id != wanted.id:
            instance.may_ask = True
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the subscription has changed: ask for it again")
        instance.closed = pushed.terminating
        instance.metrics, instance.left_out = _unpacked(pushed)
        instance.pushed_ms = now_ms

    # Looking

    @property
    def size(self) -> int:
        """Number of client instances kept."""
        return len(self._instances)

    def instances(self) -> Iterator[Instance]:
        """Return an iterator over the instances that have pushed within `KEPT_INTERVALS` push intervals."""
        self._forget_silent()
        return (instance for instance in self._instances.values() if instance.pushed_ms is not None)

    def age_ms(self, instance: Instance) -> float:
        """Milliseconds since the instance's last push."""
        return self._clock.monotonic_ms() - (instance.pushed_ms or 0.0)

    # Inside

    def _new_id(self) -> UUID:
        """Return a new instance id, unique because broker epochs are never reused."""
        self._named += 1
        name = f"client instance {self._node_id} {self._broker_epoch()} {self._named} {self._clock.monotonic_ms()}"
        return UUID(bytes=hashlib.sha256(name.encode()).digest()[:16], version=4)

    def _wanted(self, client: Mapping[str, str], instance_id: UUID) -> Wanted:
        fitting = [one for one in self._all() if one.fits(client)]
        metrics = sorted({metric for one in fitting for metric in one.metrics})
        if EVERYTHING in metrics:
            metrics = [EVERYTHING]
        interval_ms = min((one.interval_ms for one in fitting if one.metrics), default=_EVERY_MS)
        seed = f"{metrics} {interval_ms} {instance_id}".encode()
        return Wanted(zlib.crc32(seed) - (1 << 31), tuple(metrics), interval_ms)

    def _all(self) -> tuple[Subscription, ...]:
        configs = self._image().configs
        if configs is not self._configs:
            self._configs = configs
            self._subscriptions = tuple(
                _subscription(name, values)
                for (kind, name), values in sorted(configs.items())
                if kind is ResourceType.CLIENT_METRICS
            )
        return self._subscriptions

    def _heard(self, context: RequestContext, named: UUID, client: Mapping[str, str], interval_ms: int) -> Instance:
        instance = self._instances.pop(named, None)
        if instance is None:
            payer = context.peer.payer
            self._make_room()
            instance = Instance(named, payer, client, interval_ms, float("-inf"))
            self._of_payer.setdefault(payer, {})[named] = None
        self._instances[named] = instance
        return instance

    def _make_room(self) -> None:
        if len(self._instances) < INSTANCES_MAX:
            return
        self._forget_silent()
        if len(self._instances) < INSTANCES_MAX:
            return
        most = max(self._of_payer.values(), key=len)  # rule A42/one-payers-instances-drive-out-others
        self._forget(next(name for name in self._instances if name in most))
        self.evicted += 1

    def _forget_silent(self) -> None:
        now_ms = self._clock.monotonic_ms()
        silent = [
            name for name, one in self._instances.items() if now_ms - one.heard_ms > KEPT_INTERVALS * one.interval_ms
        ]
        for name in silent:
            self._forget(name)

    def _forget(self, named: UUID) -> None:
        payer = self._instances.pop(named).payer
        held = self._of_payer[payer]
        del held[named]
        if not held:
            del self._of_payer[payer]


def _subscription(name: str, values: Mapping[str, str]) -> Subscription:
    import re2  # on first use: with its runtime it takes 3 MB

    row = ClientMetricsSettings
    options = re2.Options()
    options.log_errors = False
    return Subscription(
        name,
        row.metrics.read("metrics", values.get("metrics", "")),
        row.interval_ms.read("interval.ms", values.get("interval.ms", row.interval_ms.default)),
        {
            key: re2.compile(text, options=options)
            for key, text in row.match.read("match", values.get("match", "")).items()
        },
    )


def _said_of_itself(context: RequestContext, instance_id: UUID) -> dict[str, str]:
    """Return the attributes by which subscriptions match a client and metrics list it; most are the client's choice."""
    peer = context.peer
    return {
        "client_instance_id": str(instance_id),
        "client_id": context.client_id[:CLIENT_ID_CHARS_MAX],
        "client_software_name": peer.software_name,
        "client_software_version": peer.software_version,
        "client_source_address": peer.host,
    }


def _unpacked(pushed: Any) -> tuple[dict[str, float], int]:
    """Return the metrics of a push by name, and the number left out. Raises KafkaError as `ClientTelemetry.push`."""
    if pushed.compression_type not in (Codec.NONE, *ACCEPTED):
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {pushed.compression_type} is not known")
    try:
        if len(pushed.metrics) > TELEMETRY_BYTES_MAX:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "")
        # rule A42/telemetry-unpacks-without-bound
        data = decompress(Codec(pushed.compression_type), pushed.metrics, TELEMETRY_BYTES_MAX)
        return read_metrics(data)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            words = f"a push is of {TELEMETRY_BYTES_MAX} bytes at most, unpacked, too"
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, words) from error
        raise KafkaError(ErrorCode.INVALID_RECORD, error.message) from error
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from error
