"""What clients tell of themselves (rule A42, rule A43): who is asked for what, how often, and what of it is kept."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from strandline.cluster.broker import client_telemetry
from strandline.cluster.broker.client_telemetry import TELEMETRY_BYTES_MAX, ClientTelemetry, Wanted
from strandline.cluster.broker.otlp import POINTS_MAX, SERIES_MAX, metrics_data, read_metrics
from strandline.cluster.broker.request import Peer, RequestContext
from strandline.cluster.node.metrics_clients import of_clients
from strandline.controller.metadata.image import MetadataImage, ResourceType
from strandline.log.compression import Codec, compress
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import BrokerEpoch, NodeId

EVERY_MS = 1_000


class Clock:
    now_ms = 1.0

    def monotonic_ms(self) -> float:
        return self.now_ms


class Trial:
    """One broker's telemetry, with the subscriptions that a test sets."""

    def __init__(self, **subscriptions: Mapping[str, str]) -> None:
        self.clock = Clock()
        self.image = MetadataImage("cluster")
        self.subscribe(**subscriptions)
        self.telemetry = ClientTelemetry(
            node_id=NodeId(1),
            broker_epoch=lambda: BrokerEpoch(7),
            image=lambda: self.image,
            clock=self.clock,  # type: ignore[arg-type]
        )

    def subscribe(self, **subscriptions: Mapping[str, str]) -> None:
        configs = {(ResourceType.CLIENT_METRICS, name): values for name, values in subscriptions.items()}
        self.image = MetadataImage("cluster", configs=configs)

    def context(self, client_id: str = "app", host: str = "10.0.0.1", software: str = "librdkafka") -> RequestContext:
        peer = Peer("PLAINTEXT", host)
        peer.software_name, peer.software_version = software, "2.6.0"
        return RequestContext(peer, client_id, "PushTelemetry", 0, 1, self.clock.now_ms)

    def ask(self, named: UUID | None = None, **of: str) -> tuple[UUID, Wanted]:
        return self.telemetry.ask(self.context(**of), named)

    def push(self, named: UUID | None, subscription: int, data: bytes = b"", **other: Any) -> ErrorCode:
        codec, terminating = other.pop("codec", Codec.NONE), other.pop("terminating", False)
        pushed = SimpleNamespace(
            client_instance_id=named, subscription_id=subscription, terminating=terminating, compression_type=codec,
            metrics=data,
        )  # fmt: skip
        try:
            self.telemetry.push(self.context(**other), pushed)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def kept(self) -> dict[str, Mapping[str, float]]:
        return {one.client["client_id"]: one.metrics for one in self.telemetry.instances()}


ALL = {"metrics": "*", "interval.ms": str(EVERY_MS)}


def metrics(numbers: Mapping[str, list[float]], kind: str = "gauge") -> bytes:
    """MetricsData as a client sends it."""
    message = metrics_data()()
    scope = message.resource_metrics.add().scope_metrics.add()
    for name, points in numbers.items():
        metric = scope.metrics.add(name=name)
        for point in points:
            if kind == "histogram":
                metric.histogram.data_points.add(count=4, sum=point)
            else:
                getattr(metric, kind).data_points.add(as_double=point)
    return bytes(message.SerializeToString())


def test_nobody_is_asked_for_anything_until_somebody_subscribes() -> None:
    """The default: no metrics, and nothing is kept of the client."""
    trial = Trial()
    named, wanted = trial.ask()
    assert wanted.metrics == ()
    assert wanted.interval_ms == 300_000
    assert trial.telemetry.size == 0
    assert trial.push(named, wanted.id) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert trial.telemetry.size == 0
    assert not list(of_clients(SimpleNamespace(kafka=SimpleNamespace(telemetry=Trial().telemetry))))  # type: ignore[arg-type]


def test_who_is_asked_for_what() -> None:
    """Subscriptions that fit are one: all of their metrics, the shortest of their intervals; patterns match wholly."""
    trial = Trial(
        lags={"metrics": "org.apache.kafka.consumer.", "interval.ms": "60000"},
        rd={"metrics": "a,b", "match": "client_software_name=lib.*,client_id=app"},
        java={"metrics": "*", "match": "client_software_name=apache-kafka-java,client_source_address=10[.]0[.].*"},
        none={"interval.ms": "100"},
    )
    assert trial.ask()[1][1:] == (("a", "b", "org.apache.kafka.consumer."), 60_000)
    assert trial.ask(client_id="app2")[1][1:] == (("org.apache.kafka.consumer.",), 60_000)
    assert trial.ask(software="apache-kafka-java")[1][1:] == (("*",), 60_000)
    assert trial.ask(software="apache-kafka-java", host="11.0.0.1")[1].metrics == ("org.apache.kafka.consumer.",)


def test_a_push_takes_the_place_of_the_one_before() -> None:
    trial = Trial(all=ALL)
    named, wanted = trial.ask()
    assert trial.push(named, wanted.id, metrics({"lag": [3.0, 9.0], "rate": [0.5]})) is ErrorCode.NONE
    assert trial.kept() == {"app": {"lag": 9.0, "rate": 0.5}}
    trial.clock.now_ms += EVERY_MS
    assert trial.push(named, wanted.id, metrics({"sent": [3.0, 9.0]}, "sum")) is ErrorCode.NONE
    trial.clock.now_ms += EVERY_MS
    assert trial.kept() == {"app": {"sent": 12.0}}
    assert trial.push(named, wanted.id, metrics({"time": [3.0, 9.0]}, "histogram")) is ErrorCode.NONE
    assert trial.kept() == {"app": {"time": 1.5}}
    trial.clock.now_ms += 4 * EVERY_MS
    assert trial.kept() == {}, "it has not pushed for long"


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_every_codec_is_taken_and_none_unpacks_without_bound(codec: Codec) -> None:
    """Rule A42: a push that unpacks to more than 1 MiB is refused before it is there."""
    trial = Trial(all=ALL)
    named, wanted = trial.ask()
    assert trial.push(named, wanted.id, compress(codec, metrics({"lag": [5.0]})), codec=codec) is ErrorCode.NONE
    assert trial.kept() == {"app": {"lag": 5.0}}
    trial.clock.now_ms += EVERY_MS
    bomb = compress(codec, bytes(8 * TELEMETRY_BYTES_MAX))
    assert trial.push(named, wanted.id, bomb, codec=codec) is ErrorCode.TELEMETRY_TOO_LARGE
    assert trial.kept() == {"app": {"lag": 5.0}}
    assert trial.telemetry.refused == 1


def test_pushes_come_as_often_as_was_asked_for() -> None:
    """Rule A43: the first one may come at once; the last one, of a client that ends, may come at any time, once."""
    trial = Trial(all=ALL)
    named, wanted = trial.ask()
    with pytest.raises(KafkaError) as early:
        trial.ask(named)
    assert early.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert trial.push(named, wanted.id) is ErrorCode.NONE
    trial.clock.now_ms += EVERY_MS / 2
    assert trial.push(named, wanted.id) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    trial.clock.now_ms += EVERY_MS / 2
    assert trial.push(named, wanted.id) is ErrorCode.NONE
    assert trial.push(named, wanted.id, metrics({"lag": [1.0]}), terminating=True) is ErrorCode.NONE
    trial.clock.now_ms += EVERY_MS
    assert trial.push(named, wanted.id) is ErrorCode.INVALID_REQUEST
    assert trial.push(named, wanted.id, terminating=True) is ErrorCode.INVALID_REQUEST
    assert [one.closed for one in trial.telemetry.instances()] == [True]
    assert trial.push(None, wanted.id) is ErrorCode.INVALID_REQUEST


def test_a_changed_subscription_is_asked_for_anew() -> None:
    """The old one's number is unknown, and the client may ask at once. Another broker asks for the same: the number
    does not depend on who gives it."""
    trial = Trial(all=ALL)
    named, wanted = trial.ask()
    assert trial.push(named, wanted.id) is ErrorCode.NONE
    other = Trial(all=ALL)
    assert other.push(named, wanted.id) is ErrorCode.NONE, "the first broker has died"
    trial.subscribe(all={**ALL, "metrics": "lag"})
    trial.clock.now_ms += EVERY_MS
    assert trial.push(named, wanted.id) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    again, new = trial.ask(named)
    assert (again, new.metrics) == (named, ("lag",))
    assert trial.push(named, new.id) is ErrorCode.NONE


def test_what_is_no_push_is_refused() -> None:
    trial = Trial(all=ALL)
    named, wanted = trial.ask()
    for number, (data, codec, error) in enumerate(
        (
            (b"\xff\xff\xff", Codec.NONE, ErrorCode.INVALID_RECORD),
            (b"\x01\x02", Codec.ZSTD, ErrorCode.INVALID_RECORD),
            (b"", 7, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
            (bytes(TELEMETRY_BYTES_MAX + 1), Codec.NONE, ErrorCode.TELEMETRY_TOO_LARGE),
        )
    ):
        trial.clock.now_ms += EVERY_MS
        assert trial.push(named, wanted.id, data, codec=codec) is error
        assert trial.telemetry.refused == number + 1


def test_random_bytes_are_metrics_or_a_value_error() -> None:
    rng = random.Random(42)
    whole = metrics({f"lag{number}": [1.0, 2.0] for number in range(20)})
    for _ in range(2_000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found, _ = read_metrics(bytes(data[: rng.randrange(len(data))]))
        except ValueError:
            continue
        assert len(found) <= SERIES_MAX


def test_what_is_kept_of_a_client_has_a_bound() -> None:
    """Rule A42: so many metrics, with plain names; a push full of empty ones is not looked through to its end."""
    found, left_out = read_metrics(metrics({f"metric.{number}": [1.0] for number in range(SERIES_MAX + 50)}))
    assert (len(found), left_out) == (SERIES_MAX, 50)
    found, left_out = read_metrics(metrics({"x" * 200: [1.0], 'a"b\n': [1.0], "good": [float("nan"), 2.0]}))
    assert (found, left_out) == ({"good": 2.0}, 2)
    found, left_out = read_metrics(metrics({"big": [1.0] * (POINTS_MAX + 10), "behind": [1.0]}))
    assert found == {}
    assert left_out == 1


def test_one_payer_makes_no_other_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule A42: at the bound, who has most instances makes room."""
    monkeypatch.setattr(client_telemetry, "INSTANCES_MAX", 10)
    trial = Trial(all=ALL)
    named, wanted = trial.ask(client_id="quiet", host="10.0.0.9")
    assert trial.push(named, wanted.id, metrics({"lag": [1.0]}), client_id="quiet", host="10.0.0.9") is ErrorCode.NONE
    for number in range(200):
        flood, asked = trial.ask(client_id=f"flood-{number}", host="10.0.0.66")
        assert trial.push(flood, asked.id, client_id=f"flood-{number}", host="10.0.0.66") is ErrorCode.NONE
    assert trial.telemetry.size == 10
    assert trial.telemetry.evicted == 191
    assert trial.kept()["quiet"] == {"lag": 1.0}


def test_the_page_of_metrics_has_a_bound() -> None:
    """Rule A43: instances of one client id are one; what is beyond the bound is counted."""
    trial = Trial(all=ALL)
    for number in range(50):
        client = f"client-{number // 2}"
        named, wanted = trial.ask(client_id=client)
        pushed = metrics({f"metric.{each}": [float(number)] for each in range(SERIES_MAX)})
        assert trial.push(named, wanted.id, pushed, client_id=client) is ErrorCode.NONE
    families = {one.name: one for one in of_clients(SimpleNamespace(kafka=SimpleNamespace(telemetry=trial.telemetry)))}  # type: ignore[arg-type]
    samples = families["strandline_client_metric"].samples
    assert len(samples) == 2_000
    assert families["strandline_client_telemetry_series_left_out"].samples[0].value == 500
    assert families["strandline_client_telemetry_instances"].samples[0].value == 50
    first = {one.labels["client_id"]: one.value for one in samples}
    assert first["client-0"] == 1.0, "the greatest of both"
