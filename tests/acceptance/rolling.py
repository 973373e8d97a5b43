"""A cluster whose nodes run one of two builds each, under load of a foreign client: for tests of upgrades and the way
back."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from strandline.client import Admin, QuotaEntity
from strandline.client.types import ScramChange
from strandline.cluster.node.dev import DevCluster, NodeProcess
from strandline.proto.acls import WILDCARD, AclBinding, Operation, PatternType, Permission, ResourceKind
from tests.acceptance.helpers import QUICK, eventually

ROOT = Path(__file__).parents[2]

SETTINGS = QUICK | {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "min.insync.replicas": "2",
}
TIERED = {
    "remote_storage_enable": "true",
    "segment_bytes": "20000",
    "local_retention_ms": "300",
    "file_delete_delay_ms": "0",
}


def sources_of(commit: str, where: Path) -> Path:
    """The source tree of an earlier build: what is compiled is left out. Skips where there is no history of it."""
    command = ["git", "-C", str(ROOT), "archive", commit]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the history of this checkout has no commit {commit}: fetch it whole (git fetch --unshallow)")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(where, filter="data")
    return where


def wheel_of(sources: Path, work: Path) -> Path:
    """The wheel of a source tree, unpacked."""
    work.mkdir()
    config = work / "setup.cfg"  # a build directory of its own: another's still holds modules that have moved
    config.write_text(f"[build]\nbuild_base = {work / 'build'}\n")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work), str(sources)]
    environment = {**os.environ, "DIST_EXTRA_CONFIG": str(config)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = work.glob("strandline-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work / "site")
    return work / "site"


class RollingCluster(DevCluster):
    """Three nodes, formatted and started with the `old` build; each runs the one that it was rolled to last."""

    def __init__(self, root: Path, old: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        super().__init__(root, nodes=3, settings=settings)
        self.old = old
        self.builds = dict.fromkeys(self.broker_ids, old)

    def _make_directories(self) -> None:
        for node_id in self.broker_ids:
            given = [word for key, value in self._layout.settings(node_id).items() for word in ("-X", f"{key}={value}")]
            words = ["format", "--ignore-formatted", "--cluster-id", self._layout.cluster_id, *given]
            command = [sys.executable, "-c", "from strandline.cli.main import main; main()", *words]
            surroundings = {**os.environ, "PYTHONPATH": str(self.old)}
            done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr

    def _spawn(self, node: NodeProcess) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(self.builds[node.node_id]))
            super()._spawn(node)

    def roll(self, node_id: int, build: Path, *, kill: bool = False) -> None:
        """Restart a node with a build, and wait until all is in sync."""
        if kill:
            self.kill(node_id)
        else:
            self.stop_node(node_id)
        self.builds[node_id] = build
        self.start_node(node_id)
        self.settle()

    def settle(self) -> None:
        """Wait until every replica of every partition is in sync."""

        def whole() -> bool:
            with Admin(self.responsive) as admin:
                found = admin.describe_topics(list(admin.list_topics(include_internal=True)))
            for topic in found:
                for part in topic.partitions:
                    assert part.leader is not None, (topic.name, part)
                    assert set(part.isr) == set(part.replicas), (topic.name, part)
            return True

        eventually(whole, 90)


class Load:
    """librdkafka's producer and a group of its consumer, for as long as the block lasts.

    Attributes:
        acknowledged: value by place, of all that was acknowledged.
        handled: how often each place was handed out to the group.
    """

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.handled: dict[tuple[int, int], int] = defaultdict(int)
        self.refused: list[str] = []
        self.topic = topic
        self._bootstrap = bootstrap
        self._group = group
        self._left = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, args=(one,)) for one in (self._write, self._read)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Load."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._left.set()
            for thread in self._threads:
                thread.join(90)
        assert not any(thread.is_alive() for thread in self._threads)
        assert not self._failures, self._failures
        assert not self.refused, self.refused[:5]

    def wait_more(self, count: int = 300) -> None:
        """Return once so many more were acknowledged, and so many handed out."""
        acknowledged, handled = len(self.acknowledged) + count, len(self.handled) + count

        def more() -> bool:
            assert not self._failures, self._failures
            assert len(self.acknowledged) >= acknowledged, (len(self.acknowledged), self.refused[:3])
            assert len(self.handled) >= handled, (len(self.handled), len(self.acknowledged))
            return True

        eventually(more, 90)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failures.append(error)

    def _write(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "delivery.timeout.ms": 80_000}
        )

        def told(error: Any, message: Any) -> None:
            if error is not None:
                self.refused.append(str(error))
            else:
                self.acknowledged[message.partition(), message.offset()] = message.value()

        number = 0
        while not self._left.is_set():
            for _ in range(20):
                producer.produce(self.topic, b"%d" % number, key=b"%d" % (number % 50), on_delivery=told)
                number += 1
            producer.poll(0.1)
        producer.flush(80)

    def _read(self) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": self._group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([self.topic])
        try:
            while not self._left.is_set():
                for message in consumer.consume(500, timeout=0.2):
                    if message.error() is None:
                        self.handled[message.partition(), message.offset()] += 1
        finally:
            consumer.close()

    def hold(self, committed: Mapping[int, int]) -> None:
        """Every acknowledged record is where it was acknowledged, no value twice; the group missed none below what it
        has committed."""
        found = self._all()
        for place, value in self.acknowledged.items():
            assert found.get(place) == value, (place, value, found.get(place))
        assert len(set(found.values())) == len(found), "a value stands there twice"
        for partition, offset in committed.items():
            missed = [at for at in range(offset) if (partition, at) in found and not self.handled[partition, at]]
            assert not missed, (partition, offset, missed[:5])

    def _all(self) -> dict[tuple[int, int], bytes]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._bootstrap, "group.id": "judge"})
        try:
            parts = sorted(consumer.list_topics(self.topic, timeout=30).topics[self.topic].partitions)
            places = [confluent_kafka.TopicPartition(self.topic, number, 0) for number in parts]
            ends = {place.partition: consumer.get_watermark_offsets(place, timeout=30)[1] for place in places}
            consumer.assign(places)
            found: dict[tuple[int, int], bytes] = {}

            def complete() -> bool:
                for message in consumer.consume(2000, timeout=1):
                    if message.error() is None:
                        found[message.partition(), message.offset()] = message.value()
                return all((number, end - 1) in found for number, end in ends.items() if end)

            eventually(complete, 60)
            return found
        finally:
            consumer.close()


ALICE = AclBinding(
    ResourceKind.TOPIC, "secret", PatternType.LITERAL, "User:alice", WILDCARD, Operation.READ, Permission.ALLOW
)


def make_state(bootstrap: str) -> dict[str, object]:
    """A user, an entry of access, a quota; as `state_of` tells them."""
    with Admin(bootstrap) as admin:
        admin.alter_scram_credentials({"alice": [ScramChange("SCRAM-SHA-256", "alice-secret")]})
        admin.create_acls([ALICE])
        admin.alter_client_quotas({QuotaEntity(user="alice"): {"producer_byte_rate": 12345.0}})
    return eventually(lambda: _whole(state_of(bootstrap)))


def _whole(state: dict[str, object]) -> dict[str, object]:
    assert all(state.values()), state
    return state


def state_of(bootstrap: str) -> dict[str, object]:
    """What is not records: users, access and quotas."""
    with Admin(bootstrap) as admin:
        return {
            "users": admin.describe_scram_credentials(),
            "access": sorted(map(str, admin.describe_acls())),
            "quotas": admin.describe_client_quotas(),
        }
