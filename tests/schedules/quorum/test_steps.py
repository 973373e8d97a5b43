"""Schedule 157 and rule A39: what changes very many partitions is done in steps, and is whole at every one of them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.controller import api, broker_api
from strandline.controller.command_queue import Command, CommandQueue
from strandline.controller.controller import Controller, ControllerConfig
from strandline.controller.machine import brokers, topics
from strandline.controller.machine.sessions import SessionTimes
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.publisher import ImagePublisher, ImageRehearsal
from strandline.controller.metadata.records import PartitionRecord
from strandline.controller.quorum.api import LeaderAndEpoch
from strandline.controller.quorum.snapshots import Snapshot, SnapshotStore
from strandline.controller.raft.messages import OffsetAndEpoch
from strandline.log.disk import File
from strandline.log.findings import LogCondition
from strandline.log.real_disk import RealDisk
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_NODE, Endpoint, NodeId
from strandline.proto.steps import ITEMS, Steps
from tests.controller.conftest import MachineCluster
from tests.schedules.helpers import schedule

PARTITIONS = 40
STEP = 6
PATIENT = SessionTimes(
    session_timeout_ms=60_000, silence_timeout_ms=60_000, suspicion_ms=60_000.0, refused_grace_ms=60_000.0
)


class SmallLog:
    """A metadata log whose batches have room for a dozen changes; it commits at once."""

    max_append_bytes = 2_000
    leader_and_epoch = LeaderAndEpoch(NodeId(1), 1)

    def __init__(self, end_offset: int) -> None:
        self.log_end_offset = end_offset
        self.appends = 0

    def append(self, epoch: int, records: Sequence[bytes]) -> int:
        self.appends += 1
        self.log_end_offset += len(records)
        return self.log_end_offset - 1

    def endpoint_of(self, node_id: NodeId) -> Endpoint | None:
        return None

    def resign(self) -> None:
        raise AssertionError("it gave up")


def looped(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test in an event loop of its own."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class AtOnce(RealDisk):
    """A disk whose syncs take no turn of the loop."""

    async def sync(self, files: Sequence[File], directories: Sequence[str] = ()) -> None:
        self.sync_now(files, directories)


class Stage:
    """The commands of an active controller, over a cluster of three with one topic on all of them."""

    def __init__(self, *, min_insync_replicas: int = 2) -> None:
        self.cluster = MachineCluster(3)
        replicas = [[1 + (number + place) % 3 for place in range(3)] for number in range(PARTITIONS)]
        self.cluster.create(replicas=replicas, min_insync_replicas=str(min_insync_replicas))
        self.cluster.state.settings = self.cluster.settings.replaced(max_changes_per_step=STEP)
        self.log = SmallLog(len(self.cluster.log))
        self.errors: list[BaseException] = []
        self.queue = CommandQueue(self.log, lambda: None, self.errors.append)
        self.queue.begin(self.cluster.state, 1)
        self.seen: list[MetadataImage] = []

    def heartbeat(self, node: int, **changes: Any) -> Command[broker_api.HeartbeatReply]:
        fields: dict[str, Any] = {"metadata_offset": self.log.log_end_offset, "want_fence": False}
        beat = broker_api.Heartbeat(
            NodeId(node), self.cluster.epoch(node), **{**fields, "want_shutdown": False, **changes}
        )
        return lambda state, offset: brokers.heartbeat(state, beat, offset, self.cluster.now_ms)

    def gone(self, node: int) -> Command[Any]:
        """A session that is over, until its broker is fenced."""
        self.cluster.state.sessions.stream_opened(NodeId(node))
        self.cluster.state.sessions.stream_broke(NodeId(node), self.cluster.now_ms)
        self.cluster.now_ms += 1_000.0
        return lambda state, _: brokers.fence_expired(state, self.cluster.now_ms)

    async def run(self, command: Command[Any], between: Any = lambda: None) -> Any:
        """Run it to its end; `between` is called after each turn that did not end it."""
        asked = self.queue.submit(command)
        for _ in range(200):
            await asyncio.sleep(0)
            self.seen.append(self.image)
            assert not self.errors, self.errors
            self.queue.committed(self.log.log_end_offset - 1)
            if asked.done():
                return asked.result()
            between()
        raise AssertionError("it never ended")

    @property
    def image(self) -> MetadataImage:
        return self.cluster.state.image

    def led_by(self, node: int, image: MetadataImage | None = None) -> int:
        return sum(one.leader == node for _, one in (image or self.image).partitions())

    def in_isr(self, node: int, image: MetadataImage | None = None) -> int:
        return sum(node in one.isr for _, one in (image or self.image).partitions())

    def check_fenced(self, node: int) -> None:
        """Rule B12 at each step: who is fenced, or shuts down, is in no ISR and leads nothing."""
        for image in self.seen:
            if not image.is_active(NodeId(node)):
                assert (self.in_isr(node, image), self.led_by(node, image)) == (0, 0)
        assert not self.image.is_active(NodeId(node))


@schedule(
    157,
    rule="A39: a broker in very many ISRs leaves them in steps",
    mutant=("a-broker-leaves-in-one-step", "fenced-before-its-last-step", "the-first-step-is-answered"),
)
async def test_157_a_broker_in_more_isrs_than_a_batch_holds_dies() -> None:
    """It leads and follows a hundred thousand partitions. What takes it out of all ISRs is more than a batch of the
    metadata log may hold, and is refused; a second later again, and so on: nobody leads its partitions any more."""
    stage = Stage()
    assert await stage.run(stage.gone(1)) == (1, "it is gone")
    assert stage.led_by(NO_NODE) == 0, "each has another leader"
    assert stage.log.appends > PARTITIONS // STEP
    stage.check_fenced(1)


@schedule(157, rule="A39: leaderships move first", mutant="leaderships-wait-for-the-rest")
async def test_157_its_leaderships_move_first() -> None:
    """Each partition that it leads takes no write until then; where it follows the others go on without it."""
    stage = Stage()
    led, followed = stage.led_by(1), PARTITIONS - stage.led_by(1)
    await stage.run(stage.gone(1))
    moved = next(image for image in stage.seen if stage.led_by(1, image) == 0)
    assert stage.in_isr(1, moved) >= followed - STEP
    assert led > STEP


@schedule(157, rule="A39: who leaves joins no ISR", mutant="who-leaves-comes-back-between-two-steps")
async def test_157_a_leader_brings_back_who_shuts_down() -> None:
    """It lives and follows, so its leaders find it in sync again, between two steps."""
    stage = Stage()
    refused = []

    def bring_back() -> None:
        for number in range(PARTITIONS):
            part: PartitionRecord = stage.cluster.partition(number=number)
            if 1 not in part.isr:
                cluster = stage.cluster
                cluster.log += [None] * (stage.log.log_end_offset - len(cluster.log))  # type: ignore[list-item]
                outcome = cluster.alter_isr([*part.isr, 1], number=number)
                stage.log.log_end_offset = len(cluster.log)
                refused.append(outcome.error)
                return

    reply = await stage.run(stage.heartbeat(1, want_shutdown=True), bring_back)
    assert reply.in_controlled_shutdown
    assert set(refused) == {ErrorCode.INELIGIBLE_REPLICA}
    stage.check_fenced(1)
    assert not stage.cluster.state.leaving, "from here on the metadata say it"


@schedule(157, rule="A39: new partitions count, too", mutant="new-partitions-keep-who-leaves")
async def test_157_a_topic_is_created_between_two_steps() -> None:
    """Its replicas are those that are active: the broker that is about to be fenced among them."""
    stage = Stage()
    assignments = tuple(api.ReplicaAssignment(number, (NodeId(1), NodeId(2))) for number in range(3))
    request = api.CreateTopicsRequest((api.CreatableTopic("between", assignments=assignments),))

    def create() -> None:
        if "between" not in stage.image.topics:
            stage.queue.submit(lambda state, _: topics.create_topics(state, request))

    await stage.run(stage.gone(1), create)
    assert stage.image.partition("between", 0) is not None
    stage.check_fenced(1)


@looped
async def test_a39_a_broker_that_answers_again_stays() -> None:
    """Rule A39: the controller stops taking it out when its heartbeat comes, and it joins its ISRs again."""
    stage = Stage()
    cluster = stage.cluster
    command = stage.gone(1)
    asked = stage.queue.submit(command)
    await asyncio.sleep(0)
    assert cluster.state.leaving
    stage.queue.submit(stage.heartbeat(1))
    for _ in range(10):
        await asyncio.sleep(0)
        stage.queue.committed(stage.log.log_end_offset - 1)
    assert asked.done()
    assert stage.image.is_active(NodeId(1))
    assert not cluster.state.leaving
    number = next(one.partition for _, one in stage.image.partitions() if 1 not in one.isr)
    cluster.log += [None] * (stage.log.log_end_offset - len(cluster.log))  # type: ignore[list-item]
    assert cluster.alter_isr([*cluster.partition(number=number).isr, 1], number=number).error is ErrorCode.NONE


@looped
async def test_a39_who_comes_back_is_elected_in_steps() -> None:
    """Rule A39: the last member of all ISRs is back; it is unfenced first, and leads everything in the end."""
    stage = Stage()
    for node in (2, 3, 1):
        await stage.run(stage.gone(node))
    assert stage.led_by(NO_NODE) == PARTITIONS
    reply = await stage.run(stage.heartbeat(1))
    assert not reply.fenced
    assert stage.led_by(1) == PARTITIONS


@schedule(157, rule="A39: what a controller left undone the next one does", mutant="what-was-left-is-left")
def test_157_the_controller_changes_while_leaders_are_elected() -> None:
    """The broker is unfenced by the first step, and leads some of its partitions. The next controller finds it
    unfenced: no heartbeat of it elects it where nobody leads."""
    world = World(157)
    world.add_machine("n2")
    led = []

    async def main(ports: Ports) -> None:
        stage = Stage()
        for node in (2, 3, 1):
            await stage.run(stage.gone(node))
        stage.queue.submit(stage.heartbeat(1))
        await asyncio.sleep(0)
        led.append(stage.led_by(1))
        publisher = ImagePublisher("test-cluster")
        publisher.image = stage.image
        successor = Controller(
            node_id=NodeId(2),
            quorum=SmallLog(stage.image.offset + 1),  # type: ignore[arg-type]  # no more than the log is asked for
            publisher=publisher,
            rpc=ports.rpc,
            clock=ports.clock,
            rng=ports.rng,
            config=ControllerConfig().replaced(machine=stage.cluster.state.settings.replaced(times=PATIENT)),
            on_fatal=stage.errors.append,
        )
        successor.handle_leader_change(LeaderAndEpoch(NodeId(2), 2))
        await asyncio.sleep(2.0)  # it does not know whose logs are whole, and waits half a second for the others
        assert not stage.errors
        led.append(stage.led_by(1, successor.working_image))
        successor.close()

    async def story() -> None:
        world.spawn("n2", main)
        await world.sleep_ms(5_000)

    world.run(story())
    assert 0 < led[0] < PARTITIONS
    assert led[1] == PARTITIONS


@looped
async def test_a39_a_registration_is_judged_in_steps() -> None:
    """Rule A39: a process takes the place of one that died unseen, its logs are whole; it leaves every ISR first."""
    stage = Stage()
    cluster = stage.cluster
    cluster.state.sessions.get(NodeId(1)).dead = True  # type: ignore[union-attr]
    request = cluster.registration(1, LogCondition.INTACT)
    reply = await stage.run(lambda state, offset: brokers.register_broker(state, request, offset, cluster.now_ms))
    assert reply.broker_epoch == stage.image.brokers[NodeId(1)].broker_epoch
    stage.check_fenced(1)


@looped
async def test_a39_a_disk_that_fails_is_left_in_steps() -> None:
    """Rule A39: a broker reports all replicas of a directory as failed; each leaves its ISR, whatever the step."""
    stage = Stage()
    topic = stage.image.topics["t"].topic_id
    failed = broker_api.ReplicaSet((broker_api.TopicReplicaSet(topic, tuple(range(PARTITIONS))),))
    reply = await stage.run(stage.heartbeat(1, unserved=failed))
    assert not reply.fenced
    assert stage.in_isr(1) == 0
    assert stage.image.is_active(NodeId(1))


@looped
async def test_a39_a_full_disk_is_left_in_steps() -> None:
    """Rule A39: it is marked with the last step, so that another controller would begin anew."""
    stage = Stage()
    await stage.run(stage.heartbeat(1, disk_full=True))
    for image in stage.seen:
        if image.brokers[NodeId(1)].disk_full:
            assert stage.in_isr(1, image) == 0
    assert stage.image.brokers[NodeId(1)].disk_full


@looped
async def test_a39_a_broker_is_unregistered_in_steps() -> None:
    """Rule A39: it is registered until nothing counts on it any more."""
    stage = Stage()
    await stage.run(stage.gone(1))
    request = broker_api.UnregisterBrokerRequest(NodeId(1))
    await stage.run(lambda state, _: brokers.unregister_broker(state, request))
    assert 1 not in stage.image.brokers


@schedule(
    157,
    rule="A39: a snapshot of everything is made and tried in steps",
    mutant=("snapshots-are-encoded-in-one-turn", "snapshots-are-tried-in-one-turn"),
)
async def test_157_a_snapshot_of_very_much_holds_nobody_up(tmp_path: Path) -> None:
    """The metadata of 100,000 partitions are encoded, written, read back and replayed: in one go that takes seconds, in
    which a controller answers no vote and no heartbeat, and the next one is elected."""
    cluster = MachineCluster(3)
    cluster.create("large", [[1, 2, 3]] * 3_000)
    publisher = ImagePublisher("test-cluster")
    publisher.image = cluster.image
    rehearsal = ImageRehearsal(publisher)
    taken = publisher.take_snapshot()
    assert taken is not None
    end, epoch, records = taken
    turns = {"encoded": 0, "tried": 0}
    now = "encoded"

    async def look_on() -> None:
        while True:
            turns[now] += 1
            await asyncio.sleep(0)

    def check(content: Snapshot) -> Steps[None]:
        nonlocal now
        now = "tried"
        yield from rehearsal.load(end, epoch, content.records)

    looking = asyncio.create_task(look_on())
    await SnapshotStore(AtOnce(), str(tmp_path)).write(OffsetAndEpoch(end, epoch), records, timestamp_ms=1, check=check)
    looking.cancel()
    assert min(turns.values()) >= 3_000 // ITEMS
