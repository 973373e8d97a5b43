"""Several log directories on each node: production nodes in virtual time."""

from __future__ import annotations

from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Admin, Producer
from strandline.client.types import LogDirDescription
from strandline.proto.ids import NodeId, TopicPartition
from strandline.proto.marks import counts, reset
from strandline.replica.states import Role
from tests.chaos.site import Site
from tests.stage import READY_MS

PARTITIONS = 6


def site(seed: int = 1) -> Site:
    """Three nodes of two directories."""
    reset()
    return Site(seed, False, directories=2)


def in_second(site: Site, name: str) -> list[int]:
    """The partitions that lie in a node's second directory."""
    replicas = site.cluster.replicas(site.cluster.live[name])
    return sorted(one.state.partition for one in replicas if one.log is not None and one.log.home == "/data2")


def second(site: Site, name: str) -> SimDisk:
    """The disk of that one."""
    return site.world.machines[name].mounted["/data2"]


def served(site: Site, name: str) -> list[int]:
    """The partitions whose ISR has the node."""
    image = site.cluster.newest_image()
    assert image is not None
    node = NodeId(int(name[1:]))
    return sorted(number for number, info in image.topics["t"].partitions.items() if node in info.isr)


def offline(site: Site, name: str) -> list[int]:
    """The partitions that are offline there."""
    replicas = site.cluster.replicas(site.cluster.live[name])
    return sorted(one.state.partition for one in replicas if one.role is Role.OFFLINE)


async def leads(site: Site, name: str) -> list[int]:
    """What the node leads, by the metadata."""
    image = site.cluster.newest_image()
    assert image is not None
    led = image.topics["t"].partitions.items()
    return sorted(number for number, info in led if info.leader == NodeId(int(name[1:])))


def test_a_disk_that_fails_takes_its_partitions_alone() -> None:
    """They leave the ISRs and lead nothing; the node goes on with the others. Once the machine was rebooted and the
    disk is well, they come back."""
    one = site()

    async def story(site: Site) -> None:
        await site.create("t", PARTITIONS)
        lost = in_second(site, "n1")
        assert 0 < len(lost) < PARTITIONS
        kept = [number for number in range(PARTITIONS) if number not in lost]
        site.cluster.may_fall = ()
        faults = second(site, "n1").faults
        faults.syncs = faults.dir_syncs = 1_000_000
        for number in range(PARTITIONS):
            await send_to(site, number)
        await site.until(lambda: served(site, "n1") == kept, "what lies on the other disk stays in sync")
        assert offline(site, "n1") == lost
        assert not set(await leads(site, "n1")) & set(lost)
        faults.syncs = faults.dir_syncs = 0
        site.world.power_cut("n1")
        site.cluster.start("n1")
        await site.cluster.wait_in_sync(READY_MS)

    one.play(story)
    assert counts()["directory-offline"] == 1


async def send_to(site: Site, number: int) -> None:
    """A record for one partition."""

    async def work(ports: Ports) -> None:
        async with Producer(site.cluster.bootstrap, clock=ports.clock, rng=ports.rng) as producer:
            await producer.send_and_wait("t", b"x", partition=number)

    await site.process("client", work)


def test_a_disk_that_is_missing_at_a_start_takes_its_partitions_alone() -> None:
    """Nothing is made in their place on the other disk; DescribeLogDirs says which directory is offline; once it is
    back so are they, with what they had."""
    one = site(2)

    async def story(site: Site) -> None:
        await site.create("t", PARTITIONS)
        for number in range(PARTITIONS):
            await send_to(site, number)
        lost = in_second(site, "n1")
        kept = [number for number in range(PARTITIONS) if number not in lost]
        site.world.kill("n1")
        second(site, "n1").unmount()
        site.cluster.start("n1")
        await site.until(lambda: served(site, "n1") == kept, "what lies on the other disk is in sync")
        assert offline(site, "n1") == lost
        held = site.cluster.live["n1"].node.log_dirs.first.logs
        assert sorted(tp.partition for tp in held if tp.topic == "t") == kept
        found = (await site.admin(described))[1]
        assert [(one.path, one.error is None) for one in found] == [("/data", True), ("/data2", False)]
        assert TopicPartition("t", kept[0]) in found[0].replicas
        site.world.kill("n1")
        second(site, "n1").mounted = True
        site.cluster.start("n1")
        await site.cluster.wait_in_sync(READY_MS)
        assert in_second(site, "n1") == lost

    one.play(story)
    assert counts()["replica-away"] >= 1


async def described(admin: Admin) -> dict[int, list[LogDirDescription]]:
    """What the brokers say of their disks."""
    return dict(await admin.describe_log_dirs())


def test_a_disk_that_is_replaced_is_fetched_again() -> None:
    """Its replicas count for nothing before they have caught up."""
    one = site(3)

    async def story(site: Site) -> None:
        await site.create("t", PARTITIONS)
        for number in range(PARTITIONS):
            await send_to(site, number)
        site.world.power_cut("n1")
        second(site, "n1").wipe()
        await site.until(lambda: not served(site, "n1"), "n1 is fenced")
        site.cluster.start("n1")
        await site.cluster.wait_in_sync(READY_MS)
        assert counts()["replica-of-lost-directory"] >= 1
        for partition in site.cluster.replicas(site.cluster.live["n1"]):
            assert partition.log is not None
            assert partition.log.log_end_offset == 1

    one.play(story)


def test_a_full_disk_refuses_its_own_partitions_alone() -> None:
    """Others lead them; the node leads on what lies where there is room."""
    one = site(4)

    async def story(site: Site) -> None:
        await site.create("t", PARTITIONS)
        lost = in_second(site, "n1")
        disk = second(site, "n1")
        disk.config.capacity_bytes = disk.used_bytes
        kept = [number for number in range(PARTITIONS) if number not in lost]
        await site.until(lambda: served(site, "n1") == kept, "what lies where there is room stays in sync")
        assert not offline(site, "n1")
        for number in range(PARTITIONS):
            await send_to(site, number)
        broker = site.cluster.live["n1"].node.broker
        assert broker is not None
        assert not broker.replicas.directories.full
        disk.config.capacity_bytes = 1 << 34
        await site.cluster.wait_in_sync(READY_MS)

    one.play(story)
    assert counts()["replica-without-room"] >= 2


def test_95_the_order_of_log_dirs_changes_node_by_node() -> None:
    """Each node starts from the directory that has its metadata, wherever that stands: one quorum, nothing stray, every
    record there. And so it does when the order changes back."""
    one = site()

    async def story(site: Site) -> None:
        await site.create("t", PARTITIONS)
        for order in (lambda paths: paths[::-1], lambda paths: paths):
            site.cluster.ordered = order
            for name in site.cluster.names:
                before = site.cluster.live[name].node
                site.cluster.stop(name)
                await site.until(lambda name=name: not site.is_alive(name), "a polite stop")  # type: ignore[misc]
                site.cluster.start(name)
                await site.cluster.wait_in_sync(READY_MS)
                await site.until(lambda name=name: site.cluster.live[name].node.ready, "its work")  # type: ignore[misc]
                assert site.cluster.live[name].node.log_dirs.first.directory_id == before.log_dirs.first.directory_id
            for number in range(PARTITIONS):
                await send_to(site, number)

    one.play(story)
    assert counts()["main-directory-by-content"] == 3
    assert not counts()["stray-set-aside"]
    assert not counts()["member-lost"]
