"""A disk without room, under a leader, under a follower, under all (schedule 57): production nodes in virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Producer
from strandline.client.errors import ClientError
from strandline.client.types import NewTopic
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.replica.states import Role
from tests.schedules.helpers import schedule
from tests.schedules.recovery.ruin import CHECKPOINT_MS, Ruin, both_layouts

GAP_MS = 1_000
"""A refusal, an election, its news and the client's next attempt."""
VALUE = bytes(100_000)


class Stream:
    """A producer with acks=all that sends large values without end, and when each was acknowledged."""

    def __init__(self, ruin: Ruin, topic: str) -> None:
        self.ruin = ruin
        self.topic = topic
        self.acked_ms: list[float] = []
        self.refused = 0
        self.machine = f"client-{topic}"
        ruin.world.add_machine(self.machine)
        ruin.world.spawn(self.machine, self._produce)

    async def _produce(self, ports: Ports) -> None:
        settings = {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_500, "linger_ms": 0}
        bootstrap = self.ruin.cluster.bootstrap
        async with Producer(bootstrap, clock=ports.clock, rng=ports.rng, **settings) as producer:
            for number in range(100_000):
                value = b"%s-%d:" % (self.topic.encode(), number) + VALUE
                try:
                    ack = await producer.send_and_wait(self.topic, value, partition=0)
                except (KafkaError, ClientError, TimeoutError):
                    self.refused += 1
                else:
                    self.acked_ms.append(self.ruin.world.now_ms)
                    if self.topic == "t":
                        self.ruin.acked[value] = ack.offset
                await asyncio.sleep(0.1)

    async def runs(self) -> None:
        await self.ruin.until(lambda: len(self.acked_ms) > 3, f"acks come in {self.topic}")

    def longest_gap_ms(self, since_ms: float) -> float:
        """The longest time without an ack since then."""
        times = [since_ms, *(at for at in self.acked_ms if at >= since_ms), self.ruin.world.now_ms]
        return max(later - sooner for sooner, later in pairwise(times))

    def stop(self) -> None:
        self.ruin.world.kill(self.machine)


def fill(ruin: Ruin, name: str, but: int = 0) -> None:
    """Another program takes every byte that is left, but for so many."""
    disk = ruin.disk(name)
    disk.foreign_bytes += disk.free_bytes - but


def make_room(ruin: Ruin, *names: str) -> None:
    for name in names:
        ruin.disk(name).foreign_bytes = 0


def isr_names(ruin: Ruin) -> list[str]:
    return sorted(f"n{node}" for node in ruin.partition().isr)


async def make_topics(ruin: Ruin, *names: str) -> None:
    """Nobody waits for their replicas."""
    await ruin.admin(lambda admin: admin.create_topics([NewTopic(name, 1, 3) for name in names]))


def replicated(ruin: Ruin, name: str) -> int:
    """Bytes that a leader's broker has sent to followers."""
    broker = ruin.cluster.live[name].node.broker
    assert broker is not None
    return broker.replicas.replicated_out_bytes


async def led_elsewhere(ruin: Ruin, topic: str, leader: str) -> str:
    """A topic with a leader that is not `leader`, and the leader's name."""
    for number in range(8):
        name = f"{topic}{number}"
        await ruin.create(name)
        if ruin.leader(name) != leader:
            return name
    raise AssertionError("everything is led by one broker")


@both_layouts
@schedule(
    57,
    rule="a broker whose disk is full says so, leads no more, and leaves every ISR",
    mutant=("full-disk-is-not-told", "full-leader-keeps-the-leadership", "full-replica-stays-in-the-isr"),
)
def test_57_a_leaders_disk_fills(split: bool) -> None:
    """Another replica leads at once, and acks go on there and in every topic that the full one follows; with room it is
    in sync again by itself."""

    async def story(ruin: Ruin) -> None:
        leader = ruin.leader_name
        assert leader is not None
        other = await led_elsewhere(ruin, "other", leader)
        here, there = Stream(ruin, "t"), Stream(ruin, other)
        await here.runs()
        await there.runs()
        began = ruin.world.now_ms
        fill(ruin, leader)
        await ruin.until(lambda: ruin.leader_name in ruin.others(leader), "another leads", within_ms=10_000)
        await ruin.world.sleep_ms(15_000)
        assert here.longest_gap_ms(began) < GAP_MS
        assert there.longest_gap_ms(began) < GAP_MS
        assert isr_names(ruin) == ruin.others(leader)
        assert ruin.cluster.live[leader].node.ready, "it lives, and serves what it has"
        epoch = ruin.partition().leader_epoch
        make_room(ruin, leader)
        await ruin.until(lambda: leader in isr_names(ruin), "it is in sync again", within_ms=15_000)
        assert ruin.partition().leader_epoch <= epoch + 1, "one election at most: for the preferred leader"
        here.stop()
        there.stop()
        await ruin.nothing_is_lost()

    Ruin(1, split).play(story)


async def fills_again_and_again(ruin: Ruin, place: int) -> None:
    """Now one, now another disk fills: of the leader and the two others the one at `place`. Acks go on. Segments are
    short, so that little is preallocated."""
    gaps = []
    here = Stream(ruin, "t")
    await here.runs()
    for number in range(7):
        await ruin.world.sleep_ms(150 * number)  # at any instant between two looks
        leader = ruin.leader_name
        assert leader is not None
        full = [leader, *ruin.others(leader)][place]
        began = ruin.world.now_ms
        fill(ruin, full)
        await ruin.until(lambda full=full: full_brokers(ruin) == [full], "it says so")  # type: ignore[misc]
        await ruin.until(lambda: here.acked_ms[-1] > ruin.world.now_ms - 200, "acks go on")
        gaps.append(here.longest_gap_ms(began))
        make_room(ruin, full)
        await ruin.until(lambda: not full_brokers(ruin), "it has room", within_ms=90_000)
        await ruin.cluster.wait_in_sync(30_000)
    here.stop()
    assert max(gaps) < 400, gaps


@schedule(
    57,
    rule="it is said at once",
    mutant=("full-disk-waits-for-the-next-heartbeat", "full-leader-says-nothing"),
)
def test_57_a_leader_says_so_at_once() -> None:
    """By the append that fails, and not by the next look or the next heartbeat."""
    Ruin(8, split=True).play(lambda ruin: fills_again_and_again(ruin, 0), segment_bytes="250000")


@schedule(
    57,
    rule="it is said at once",
    mutant=("full-disk-waits-for-the-next-heartbeat", "full-follower-says-nothing"),
)
def test_57_a_follower_says_so_at_once() -> None:
    """Likewise."""
    Ruin(9, split=True).play(lambda ruin: fills_again_and_again(ruin, 1), segment_bytes="250000")


@both_layouts
@schedule(
    57,
    rule="a broker whose disk is full leaves every ISR at once",
    mutant=("full-disk-is-not-told", "full-replica-stays-in-the-isr", "full-replica-joins-the-isr"),
)
def test_57_a_followers_disk_fills(split: bool) -> None:
    """Acks do not wait for it, not even until it counts as lagging; it joins no ISR while there is no room."""

    async def story(ruin: Ruin) -> None:
        leader = ruin.leader_name
        assert leader is not None
        full = ruin.others(leader)[0]
        await ruin.create("quiet")
        here = Stream(ruin, "t")
        await here.runs()
        began = ruin.world.now_ms
        fill(ruin, full)
        await ruin.until(lambda: full not in isr_names(ruin), "it left the ISR", within_ms=10_000)
        assert here.longest_gap_ms(began) < GAP_MS
        epochs = partition_epochs(ruin)
        await ruin.world.sleep_ms(20_000)
        assert partition_epochs(ruin) == epochs, "nothing moves while nothing happens"
        assert here.longest_gap_ms(began) < GAP_MS
        assert ruin.leader_name == leader
        make_room(ruin, full)
        await ruin.until(lambda: full in isr_names(ruin), "it is in sync again", within_ms=15_000)
        here.stop()
        await ruin.nothing_is_lost()

    Ruin(2, split, settings={"replica.lag.time.max.ms": "30000"}).play(story)


def partition_epochs(ruin: Ruin) -> dict[str, int]:
    image = ruin.cluster.newest_image()
    assert image is not None
    return {
        f"{topic.name}-{info.partition}": info.partition_epoch
        for topic in image.topics.values()
        for info in topic.partitions.values()
    }


@schedule(57, rule="who is full leads where nobody has room", mutant="full-replicas-leave-every-isr")
def test_57_all_disks_are_full() -> None:
    """Nothing moves in circles: one of them leads, what it has is read, writes are refused; with room for two it goes
    on by itself."""

    async def story(ruin: Ruin) -> None:
        here = Stream(ruin, "t")
        await here.runs()
        for name in ruin.brokers:
            fill(ruin, name)
        await ruin.until(lambda: len(full_brokers(ruin)) == 3, "all say so", within_ms=10_000)
        await ruin.world.sleep_ms(1_000)
        acked, epochs = len(here.acked_ms), partition_epochs(ruin)
        await ruin.world.sleep_ms(20_000)
        assert partition_epochs(ruin) == epochs
        assert len(here.acked_ms) == acked
        assert ruin.leader_name is not None
        values = await ruin.read("t")
        assert [values[offset] for offset in ruin.acked.values()] == list(ruin.acked)
        make_room(ruin, *ruin.others(ruin.leader_name))
        await ruin.until(lambda: len(here.acked_ms) > acked, "acks come again", within_ms=15_000)
        make_room(ruin, *ruin.brokers)
        here.stop()
        await ruin.nothing_is_lost()

    Ruin(3, split=True).play(story)


@schedule(57, rule="a reserve is kept for what is not clients' records", mutant="full-leader-takes-the-last-byte")
def test_57_the_reserve_is_kept_where_nobody_has_room() -> None:
    """Less than log.dir.reserve.bytes is left everywhere, though records would fit, and one replica in sync is enough:
    writes are refused, and the metadata go on."""

    async def story(ruin: Ruin) -> None:
        await ruin.admin(lambda admin: admin.create_topics([NewTopic("one", 1, 3, {"min.insync.replicas": "1"})]))
        here = Stream(ruin, "one")
        await here.runs()
        for name in ruin.brokers:
            fill(ruin, name, but=8_000_000)
        await ruin.until(lambda: len(full_brokers(ruin)) == 3, "all say so", within_ms=10_000)
        await ruin.world.sleep_ms(1_000)
        acked = len(here.acked_ms)
        await ruin.world.sleep_ms(10_000)
        assert len(here.acked_ms) == acked
        assert here.refused
        assert min(ruin.disk(name).free_bytes for name in ruin.brokers) > 5_000_000
        await make_topics(ruin, "more")
        make_room(ruin, *ruin.brokers)
        await ruin.until(lambda: len(here.acked_ms) > acked, "acks come again", within_ms=15_000)
        here.stop()
        await ruin.nothing_is_lost()

    Ruin(12, split=True).play(story)


@schedule(57, rule="what the leader deletes makes room on full followers", mutant="full-follower-keeps-what-is-deleted")
def test_57_deletions_reach_full_followers() -> None:
    """They fetch nothing that they cannot keep, and hear of the leader's log start all the same: retention, or an
    operator's trim, makes room everywhere."""

    async def story(ruin: Ruin) -> None:
        here = Stream(ruin, "t")
        await here.runs()
        leader = ruin.leader_name
        assert leader is not None
        for name in ruin.others(leader):
            fill(ruin, name, but=8_000_000)
        await ruin.until(lambda: len(full_brokers(ruin)) == 2, "both say so", within_ms=10_000)
        await ruin.until(lambda: isr_names(ruin) == [leader], "they left the ISR")
        here.stop()
        trim = asyncio.get_running_loop().create_task(_trim(ruin))
        await ruin.until(lambda: log_starts(ruin) == {2}, "it is deleted on all of them", within_ms=15_000)
        assert len(full_brokers(ruin)) == 2
        make_room(ruin, *ruin.brokers)
        await trim

    Ruin(13, split=True).play(story)


async def _trim(ruin: Ruin) -> None:
    """Answered only once enough replicas are in sync: one that left may be elected until then."""
    await ruin.admin(lambda admin: admin.delete_records({TopicPartition("t", 0): 2}))


def log_starts(ruin: Ruin) -> set[int]:
    """Of the brokers' logs of the topic."""
    starts = set()
    for name in ruin.brokers:
        broker = ruin.cluster.live[name].node.broker
        partition = broker and broker.replicas.partition(TopicPartition("t", 0))
        assert partition is not None
        assert partition.log is not None
        starts.add(int(partition.log.log_start_offset))
    return starts


def full_brokers(ruin: Ruin) -> list[str]:
    image = ruin.cluster.newest_image()
    assert image is not None
    return [f"n{node}" for node, broker in image.brokers.items() if broker.disk_full]


@schedule(57, rule="who left an ISR for lack of room may be eligible", mutant="full-replica-is-not-eligible")
def test_57_who_is_full_is_eligible() -> None:
    """One is away, one is full, the leader dies: the full one has all that was acknowledged, and leads, to be read.
    Once the leader is back and in sync, it leads again, for it has room."""

    async def story(ruin: Ruin) -> None:
        leader = ruin.leader_name
        assert leader is not None
        full, third = ruin.others(leader)
        await ruin.write(0, 10)
        await ruin.fall_in_turn(third)
        fill(ruin, full)
        await ruin.until(lambda: full_brokers(ruin) == [full], "it says so")
        await ruin.until(lambda: int(full[1:]) in ruin.partition().eligible_leader_replicas, "it left the ISR")
        ruin.kill(leader)
        await ruin.until(lambda: ruin.leader_name == full, "the full one leads")
        values = await ruin.read("t")
        assert [values[offset] for offset in ruin.acked.values()] == list(ruin.acked)
        ruin.start(leader)
        await ruin.until(lambda: ruin.leader_name == leader, "who has room leads")
        ruin.start(third)
        await ruin.write(20, 30)
        assert full not in isr_names(ruin)
        make_room(ruin, full)
        await ruin.nothing_is_lost()

    Ruin(4, split=True).play(story)


@schedule(57, rule="a restart forgets nothing of it", mutant="full-disk-is-found-by-writes-alone")
def test_57_a_broker_starts_on_a_full_disk() -> None:
    """It says so before it writes anything: it joins no ISR meanwhile, and a topic that is made is served elsewhere and
    copied to it once there is room."""

    async def story(ruin: Ruin) -> None:
        leader = ruin.leader_name
        assert leader is not None
        full = ruin.others(leader)[0]
        await ruin.fall_in_turn(full)
        fill(ruin, full, but=500_000)
        ruin.start(full)
        await ruin.until(lambda: full_brokers(ruin) == [full], "it says so")
        await ruin.world.sleep_ms(5_000)
        assert full not in isr_names(ruin)
        await ruin.write(0, 10)
        make_room(ruin, full)
        await ruin.nothing_is_lost()

    Ruin(5, split=True).play(story)


@schedule(
    57,
    rule="what is left is for the metadata log and the checkpoints",
    mutant=("full-follower-takes-the-last-byte", "full-follower-fetches-on"),
)
def test_57_what_is_left_is_for_the_metadata() -> None:
    """A disk is full by its bound although some bytes are left: its broker follows nobody with them, hears of every
    change of the metadata, and is sent nothing that it would throw away."""

    async def story(ruin: Ruin) -> None:
        leader = ruin.leader_name
        assert leader is not None
        full = ruin.others(leader)[0]
        fill(ruin, full, but=900_000)
        await ruin.until(lambda: full_brokers(ruin) == [full], "it says so")
        here = Stream(ruin, "t")
        await here.runs()
        sent = replicated(ruin, leader)
        await make_topics(ruin, *(f"more{number}" for number in range(10)))
        acked = len(here.acked_ms)
        await ruin.until(lambda: len(here.acked_ms) > acked + 100, "acks go on")
        here.stop()
        assert ruin.disk(full).free_bytes > 400_000
        assert replicated(ruin, leader) - sent < 1.2 * len(VALUE) * (len(here.acked_ms) - 3)
        image = ruin.cluster.newest_image()
        await ruin.until(lambda: ruin.cluster.live[full].node.publisher.image == image, "it knows everything")
        make_room(ruin, full)
        await ruin.nothing_is_lost()

    Ruin(10, split=True).play(story)


@schedule(57, rule="a topic that is made meanwhile", mutant="no-log-is-made-once-there-is-room")
def test_57_a_topic_is_made_while_a_disk_is_full() -> None:
    """Its replica there has no log yet, others lead; with room it gets one without a restart."""

    async def story(ruin: Ruin) -> None:
        full = ruin.brokers[0]
        fill(ruin, full)
        await ruin.until(lambda: full_brokers(ruin) == [full], "it says so")

        await make_topics(ruin, "new0", "new1", "new2")
        for number in range(3):
            before = len(ruin.acked)
            await ruin.send(ruin.cluster.bootstrap, f"new{number}", 10 * number, 10 * number + 10)
            assert len(ruin.acked) == before + 10
        make_room(ruin, full)
        await ruin.cluster.wait_in_sync(30_000)
        ruin.acked.clear()
        await ruin.nothing_is_lost()

    Ruin(6, split=True).play(story)


@schedule(57, rule="a truncation waits for room", mutant="full-disk-fences-a-truncation")
def test_57_a_truncation_on_a_full_disk() -> None:
    """A former leader has to cut its tail, and there is no room to write down that it promises less: it tries again,
    and follows once there is room."""

    async def story(ruin: Ruin) -> None:
        leader = ruin.leader_name
        assert leader is not None
        await ruin.write(0, 10)
        for name in [*ruin.cluster.names, "client"]:
            if name != leader:
                ruin.world.partition(leader, name)
                ruin.world.partition("beside", name)
        await ruin.send(f"{leader}:9092", "t", 10, 20, machine="beside")
        assert not any(b"%d" % number in ruin.acked for number in range(10, 20))
        await ruin.world.sleep_ms(CHECKPOINT_MS)
        await ruin.until(lambda: ruin.leader_name in ruin.others(leader), "another leads")
        await ruin.write(20, 25)
        fill(ruin, leader)
        ruin.world.heal()
        await ruin.until(lambda: full_brokers(ruin) == [leader], "it says so")
        await ruin.world.sleep_ms(3_000)
        assert ruin.role(leader) is Role.FOLLOWER, "nothing is fenced"
        make_room(ruin, leader)
        await ruin.nothing_is_lost()

    Ruin(7, split=True).play(story)
