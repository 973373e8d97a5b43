"""Settings of compaction, scrub and reserve, altered by an admin client while simulated production nodes run."""

from __future__ import annotations

import re
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.stage import ClusterStage

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Producer
from strandline.client.types import ConfigChange, ConfigResource
from strandline.cluster.node.metrics import Metrics
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.marks import counts
from strandline.replica import compaction
from strandline.replica.compaction import Compactor
from strandline.replica.manager import ReplicaManager

HOUR_MS = 3_600_000
QUICK = {"broker.session.timeout.ms": "3000"}
ALL = ConfigResource("broker", "")
N2 = ConfigResource("broker", "2")
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": "2048",
    "min_cleanable_dirty_ratio": "0.01",
    "file_delete_delay_ms": "0",
}


class Site(ClusterStage):
    def __init__(self, **static: str) -> None:
        super().__init__(1, QUICK | {key.replace("_", "."): value for key, value in static.items()})

    async def alter(self, resource: ConfigResource, **values: object) -> None:
        """A name has _ for its dots; None: the setting is removed."""
        changes = [
            ConfigChange(name.replace("_", "."), operation="delete")
            if value is None
            else ConfigChange(name.replace("_", "."), str(value))
            for name, value in values.items()
        ]
        await self.admin(lambda admin: admin.alter_configs({resource: changes}))

    async def described(self, resource: ConfigResource, name: str) -> Any:
        described = await self.admin(lambda admin: admin.describe_configs([resource]))
        return next(entry for entry in described[resource] if entry.name == name)

    async def write(self, topic: str, count: int, size: int = 100) -> None:
        async def work(ports: Ports) -> None:
            async with Producer(self.cluster.bootstrap, clock=ports.clock, rng=ports.rng, linger_ms=0) as producer:
                for number in range(count):
                    await producer.send_and_wait(topic, b"." * size, key=b"k%d" % (number % 4), partition=0)

        await self.process("client", work)

    def replicas(self, name: str) -> ReplicaManager:
        broker = next(live.node.broker for live in self.cluster.nodes() if f"n{live.number}" == name)
        assert broker is not None
        return broker.replicas

    def compactor(self, name: str) -> Compactor:
        return self.replicas(name).compactor

    def scrubbed(self, name: str) -> float:
        node = next(live.node for live in self.cluster.nodes() if f"n{live.number}" == name)
        found = re.search(r"^strandline_scrubbed_bytes\S* (\S+)$", Metrics(node).render().decode(), re.MULTILINE)
        assert found is not None
        return float(found[1])

    def is_full(self, name: str) -> bool:
        return self.replicas(name).directories.full


@pytest.mark.parametrize(
    ("name", "field", "static", "of_all", "own"),
    [
        ("log.cleaner.backoff.ms", "cleaner_backoff_ms", 700, 800, 900),
        ("log.cleaner.dedupe.buffer.size", "cleaner_dedupe_buffer_bytes", 2_000_000, 3_000_000, 4_000_000),
        ("log.cleaner.io.max.bytes.per.second", "cleaner_io_max_bytes_per_second", 1e6, 2e6, 3e6),
        ("log.dir.reserve.bytes", "disk_reserve_bytes", 1_000, 2_000, 3_000),
        ("log.scrub.interval.ms", "scrub_interval_ms", 0, 50_000, 60_000),
        ("log.scrub.max.bytes.per.second", "scrub_bytes_per_second", 100_000, 200_000, 300_000),
    ],
)
def test_each_is_altered_described_kept_and_removed(name: str, field: str, static: Any, of_all: Any, own: Any) -> None:
    """For all brokers, and for one, whose own value wins; over a kill -9; and back to the file's value."""
    key = name.replace(".", "_")

    async def scenario(site: Site) -> None:
        def holds(on_n1: Any, on_n2: Any) -> bool:
            return [getattr(site.replicas(node).config, field) for node in ("n1", "n2")] == [on_n1, on_n2]

        assert holds(static, static)
        assert (await site.described(N2, name)).source == "STATIC_BROKER_CONFIG"
        await site.alter(ALL, **{key: of_all})
        await site.until(lambda: holds(of_all, of_all), "the value of all", within_ms=2_000)
        entry = await site.described(N2, name)
        assert (float(entry.value), entry.source, entry.read_only) == (of_all, "DYNAMIC_DEFAULT_BROKER_CONFIG", False)
        await site.alter(N2, **{key: own})
        await site.until(lambda: holds(of_all, own), "its own value", within_ms=2_000)
        assert (await site.described(N2, name)).source == "DYNAMIC_BROKER_CONFIG"
        site.kill("n2")
        site.cluster.start("n2")
        await site.cluster.wait_ready(30_000)
        await site.until(lambda: holds(of_all, own), "its own value after a restart", within_ms=5_000)
        await site.alter(N2, **{key: None})
        await site.alter(ALL, **{key: None})
        await site.until(lambda: holds(static, static), "the file's value", within_ms=2_000)
        assert (await site.described(N2, name)).source == "STATIC_BROKER_CONFIG"

    Site(**{key: str(static)}).play(scenario)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("log.cleaner.backoff.ms", "0", "a whole number from 1 to 2147483647"),
        ("log.cleaner.dedupe.buffer.size", "1048575", "a whole number from 1048576 to"),
        ("log.cleaner.io.max.bytes.per.second", "0", "a number above 0"),
        ("log.cleaner.io.max.bytes.per.second", "nan", "a number above 0"),
        ("log.dir.reserve.bytes", "-1", "a whole number from 0 to"),
        ("log.scrub.interval.ms", "1 day", "a whole number from 0 to"),
        ("log.scrub.max.bytes.per.second", "65535", "a whole number from 65536 to"),
        ("log.cleaner.threads", "2", "runs in the event loop: there are no threads"),
        ("log.retention.check.interval.ms", "1000", "no broker config of this name may change while the broker runs"),
    ],
)
@pytest.mark.parametrize("resource", [ALL, N2], ids=["all", "one"])
def test_what_is_not_allowed_is_refused(resource: ConfigResource, name: str, value: str, why: str) -> None:
    """With key, value and what is allowed; nothing is set."""

    async def scenario(site: Site) -> None:
        with pytest.raises(KafkaError) as refused:
            await site.alter(resource, **{name.replace(".", "_"): value})
        assert refused.value.code is ErrorCode.INVALID_CONFIG
        assert f"{name} = '{value}' is not allowed: " in str(refused.value)
        assert why in str(refused.value)
        image = site.cluster.newest_image()
        assert image is not None
        assert not image.configs

    Site().play(scenario)


def test_compaction_goes_by_what_is_set_while_it_waits_and_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait the old time out, nor rest by the old rate; a pass keeps its memory, and the next has other."""
    buffers: list[int] = []

    class Seen(compaction.Compaction):
        def __init__(self, *args: Any, buffer_bytes: int, **more: Any) -> None:
            buffers.append(buffer_bytes)
            super().__init__(*args, buffer_bytes=buffer_bytes, **more)

    monkeypatch.setattr(compaction, "Compaction", Seen)

    async def scenario(site: Site) -> None:
        await site.create("t", **COMPACTED)
        await site.write("t", 100)
        await site.world.sleep_ms(10_000)
        assert not buffers
        await site.alter(N2, log_cleaner_io_max_bytes_per_second=1, log_cleaner_backoff_ms=200)
        await site.until(lambda: buffers, "a pass begins", within_ms=2_000)
        await site.alter(N2, log_cleaner_dedupe_buffer_size=1 << 20)
        await site.world.sleep_ms(60_000)
        assert site.compactor("n2").figures.passes == 0
        await site.alter(N2, log_cleaner_io_max_bytes_per_second=None)
        await site.until(lambda: site.compactor("n2").figures.passes, "it ends", within_ms=2_000)
        assert buffers == [128 << 20]
        assert site.compactor("n1").figures.passes == 0
        await site.write("t", 100)
        await site.until(lambda: len(buffers) > 1, "another pass", within_ms=2_000)
        assert set(buffers[1:]) == {1 << 20}

    Site(log_cleaner_backoff_ms=str(HOUR_MS)).play(scenario)


def test_the_scrub_goes_by_what_is_set_while_it_sleeps_and_while_it_reads() -> None:
    """It does not sleep the old interval out, nor read on at the old rate; 0 ends a pass, and the next interval
    begins anew."""

    async def scenario(site: Site) -> None:
        await site.create("t")
        await site.write("t", 40, 500_000)
        await site.world.sleep_ms(10_000)
        assert site.scrubbed("n2") == 0
        await site.alter(N2, log_scrub_interval_ms=1_000)
        await site.until(lambda: site.scrubbed("n2"), "a pass begins", within_ms=2_000)
        await site.world.sleep_ms(5_000)
        passes = counts()["scrubbed"]
        assert site.scrubbed("n2") < 2_000_000
        await site.alter(N2, log_scrub_max_bytes_per_second=1 << 30)
        await site.until(lambda: counts()["scrubbed"] > passes, "the pass ends", within_ms=2_000)
        await site.alter(N2, log_scrub_interval_ms=HOUR_MS // 2)
        await site.world.sleep_ms(1_000)
        before = site.scrubbed("n2")
        await site.world.sleep_ms(20_000)
        assert site.scrubbed("n2") == before
        await site.alter(N2, log_scrub_interval_ms=1_000, log_scrub_max_bytes_per_second=1 << 16)
        await site.until(lambda: site.scrubbed("n2") > before, "the next pass begins", within_ms=1_000)
        await site.alter(N2, log_scrub_interval_ms=0)
        await site.world.sleep_ms(1_000)
        before = site.scrubbed("n2")
        await site.world.sleep_ms(20_000)
        assert site.scrubbed("n2") == before
        await site.alter(N2, log_scrub_interval_ms=1_000)
        await site.until(lambda: site.scrubbed("n2") > before, "it begins anew", within_ms=3_000)
        assert site.scrubbed("n1") == 0

    Site(log_scrub_max_bytes_per_second=str(1 << 16)).play(scenario)


def test_a_reserve_beyond_what_is_free_stops_writes_and_lowered_lets_them_go_on() -> None:
    """The broker's log says so, with the figures; others lead meanwhile, and clients' writes go on."""

    async def scenario(site: Site) -> None:
        await site.create("t")
        name = site.leader("t")
        disk = site.world.machines[name].disk
        disk.foreign_bytes += disk.free_bytes - (160 << 20)
        await site.world.sleep_ms(3_000)
        assert not site.is_full(name)
        broker = ConfigResource("broker", name.removeprefix("n"))
        with capture_logs() as lines:
            await site.alter(broker, log_dir_reserve_bytes=200 << 20)
            await site.until(lambda: site.is_full(name), "it is full", within_ms=200)
            await site.until(lambda: site.leader("t") != name, "another leads", within_ms=5_000)
            await site.write("t", 10)
            await site.alter(broker, log_dir_reserve_bytes=None)
            await site.until(lambda: not site.is_full(name), "it has room again", within_ms=5_000)
        full = next(line for line in lines if line["event"].startswith("the disk is full"))
        assert full["reserve_bytes"] == 200 << 20
        assert 100 << 20 < full["free_bytes"] < 200 << 20
        await site.cluster.wait_in_sync(30_000)

    Site().play(scenario)
