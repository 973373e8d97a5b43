"""The whole quorum on real disks: elect, commit, fail over, restart, snapshot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from quorum_cluster import FAST, Cluster, Member
from tests.schedules.helpers import schedule

from strandline.controller.quorum.api import LeaderAndEpoch, NotLeader
from strandline.controller.quorum.metadata_log import MetadataLog, build_data_batch
from strandline.controller.quorum.recovery_point import RecoveryPoint
from strandline.controller.quorum.snapshots import SnapshotStore
from strandline.controller.raft.messages import Batch, OffsetAndEpoch
from strandline.log.batch import iter_batches
from strandline.log.real_disk import RealDisk
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, CorruptLogError, KafkaError
from strandline.proto.system import SystemClock


def run(test: Callable[[], Awaitable[None]]) -> None:
    """One loop a test."""

    async def main() -> None:
        await test()

    asyncio.run(main())


def log_bytes(member: Member) -> bytes:
    """All batches of a stopped member's log, without what its last segment was allocated ahead."""
    directory = Path(member.data_dir) / "__cluster_metadata-0"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def test_three_voters_elect_commit_and_hold_the_same_bytes(tmp_path: Path) -> None:
    """Committed batches reach every listener in order, atomically; the logs are byte-identical."""

    async def test() -> None:
        cluster = Cluster(tmp_path)
        async with cluster:
            await cluster.append(b"a", b"b")
            await cluster.append(b"c")
            members = list(cluster.members.values())
            await cluster.until(lambda: all(member.listener.values == [b"a", b"b", b"c"] for member in members))
            for member in members:
                assert [batch.records for batch in member.listener.batches] == [[b"a", b"b"], [b"c"]]
                assert member.listener.batches[0].epoch >= 1
                assert abs(member.listener.batches[0].timestamp_ms - time.time() * 1000) < 60_000
        logs = [log_bytes(member) for member in cluster.members.values()]
        common = min(len(log) for log in logs)
        assert common > 0
        assert len({log[:common] for log in logs}) == 1
        controls = [header.is_control for header, _ in iter_batches(logs[0])]
        assert controls[0] is True, "an epoch opens with its LeaderChange"
        assert controls.count(False) == 2

    run(test)


def test_append_is_refused_elsewhere_in_other_epochs_and_beyond_the_limit(tmp_path: Path) -> None:
    """NotLeader and RECORD_LIST_TOO_LARGE: nothing was appended."""

    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            leader = await cluster.elect()
            assert leader.quorum is not None
            epoch = leader.quorum.leader_and_epoch.epoch
            end = leader.quorum.log_end_offset
            for member in cluster.running():
                assert member.quorum is not None
                with pytest.raises(NotLeader) as caught:
                    member.quorum.append(epoch if member is not leader else epoch - 1, [b"x"])
                assert caught.value.code is ErrorCode.NOT_CONTROLLER
            with pytest.raises(KafkaError, match="RECORD_LIST_TOO_LARGE"):
                leader.quorum.append(epoch, [b"x" * (9 << 20)])
            assert leader.quorum.log_end_offset == end

    run(test)


def test_a_new_leader_is_told_so_when_it_has_everything(tmp_path: Path) -> None:
    """Rule A13: the controller may act at once when it hears that it leads; all others hear of a change at once."""

    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            for count in range(1, 6):
                await cluster.append(b"v%d" % count)
                old = await cluster.elect()
                resigned: set[int] = set()

                def another_leads(old: Member = old, resigned: set[int] = resigned) -> bool:
                    assert old.quorum is not None
                    epoch = old.quorum.leader_and_epoch.epoch
                    if cluster.leader() is old and epoch not in resigned:  # again, if it was elected again
                        resigned.add(epoch)
                        old.quorum.resign()
                    return cluster.leader() not in (None, old)

                await cluster.until(another_leads)
                leader = cluster.leader()
                assert leader is not None
                assert leader.listener.values_at_own_leadership[-1] == count
            for member in cluster.running():
                epochs = [told.epoch for told in member.listener.leaders]
                assert epochs == sorted(epochs)
                leaders = {told for told in member.listener.leaders if told.leader_id is not None}
                assert len(leaders) == len({told.epoch for told in leaders}), "one leader an epoch"

    run(test)


def test_a_killed_leader_is_replaced_within_half_a_second(tmp_path: Path) -> None:
    """Kill to the next commit, with the default settings: a few hundred milliseconds, not the fetch timeout; and what
    some commits cost on this machine while it is busy."""

    async def test() -> None:
        gaps, commits = [], []
        async with Cluster(tmp_path, config=FAST.replaced(fetch_timeout_ms=5000, suspicion_ms=60)) as cluster:
            for _ in range(4):
                begin = time.monotonic()
                await cluster.append(b"before")
                commits.append(time.monotonic() - begin)
                leader = await cluster.elect()
                leader.kill()
                begin = time.monotonic()
                await cluster.append(b"after")
                gaps.append(time.monotonic() - begin)
                await leader.start()
                await cluster.until(lambda leader=leader: leader.listener.values[-1:] == [b"after"])  # type: ignore[misc]
        assert sorted(gaps)[1] < 0.5 + 10 * max(commits[1:]), (gaps, commits)

    run(test)


def test_everything_committed_survives_the_kill_of_all_three(tmp_path: Path) -> None:
    """SIGKILL of all nodes at once, restart: what any listener was handed is there again."""

    async def test() -> None:
        cluster = Cluster(tmp_path)
        expected: list[bytes] = []
        for life in range(3):
            for member in cluster.members.values():
                await member.start()
            for i in range(10):
                expected.append(b"%d-%d" % (life, i))
                await cluster.append(expected[-1])
            everyone = cluster.running()
            await cluster.until(lambda everyone=everyone: all(m.listener.values == expected for m in everyone))  # type: ignore[misc]
            for member in everyone:
                member.kill()

    run(test)


def test_observers_get_commits_within_milliseconds(tmp_path: Path) -> None:
    """Rule A12: the leader answers parked fetches when the high watermark moves; nobody waits for a poll to end."""

    async def test() -> None:
        config = FAST.replaced(
            fetch_max_wait_ms=20_000,
            request_timeout_ms=30_000,
            fetch_timeout_ms=60_000,
        )
        async with Cluster(tmp_path, observers=2, config=config) as cluster:
            observers = [cluster.members[101], cluster.members[102]]
            await cluster.append(b"first")
            await cluster.until(lambda: all(observer.listener.values for observer in observers))
            delays = []
            for i in range(20):
                await cluster.append(b"%d" % i)
                begin = time.monotonic()
                await cluster.until(lambda i=i: all(o.listener.values[-1] == b"%d" % i for o in observers))  # type: ignore[misc]
                delays.append(time.monotonic() - begin)
            assert max(delays) < 5, "far from the end of a poll"
            leader = await cluster.elect()
            leader.kill()
            await cluster.append(b"after")
            await cluster.until(lambda: all(observer.listener.values[-1] == b"after" for observer in observers))

    run(test)


def test_describe(tmp_path: Path) -> None:
    """The leader knows everyone's progress; others know themselves."""

    async def test() -> None:
        async with Cluster(tmp_path, observers=1) as cluster:
            await cluster.append(b"x")
            leader = await cluster.elect()
            assert leader.quorum is not None
            quorum = leader.quorum

            def everybody_has_it() -> bool:
                seen = quorum.describe()
                ends = [replica.log_end_offset for replica in [*seen.voters, *seen.observers]]
                return ends == [quorum.log_end_offset] * 4

            await cluster.until(everybody_has_it)
            seen = quorum.describe()
            assert (seen.leader_id, seen.epoch) == leader.quorum.leader_and_epoch
            assert seen.high_watermark == leader.quorum.high_watermark == 2
            assert [voter.node_id for voter in seen.voters] == [1, 2, 3]
            assert [voter.directory_id for voter in seen.voters] == [UUID(int=n) for n in (1, 2, 3)]
            now = time.time() * 1000
            for replica in [*seen.voters, *seen.observers]:
                assert now - 5000 < replica.last_caught_up_timestamp_ms <= replica.last_fetch_timestamp_ms <= now + 50
            assert [observer.node_id for observer in seen.observers] == [101]
            other = next(m for m in cluster.running() if m is not leader and m.id < 100)
            assert other.quorum is not None
            ends = {voter.node_id: voter.log_end_offset for voter in other.quorum.describe().voters}
            assert ends[other.id] == 2
            assert ends[leader.id] == -1
            assert leader.quorum.endpoint_of(other.id) == other.endpoint
            assert leader.quorum.endpoint_of(cluster.members[101].id) is None

    run(test)


def test_snapshots_bound_the_log_and_serve_restarts_and_laggards(tmp_path: Path) -> None:
    """Rule A10: taken by size; the log is deleted only below the older kept one; a restart loads the latest; a follower
    that is too far behind fetches it, in pieces."""

    async def test() -> None:
        config = FAST.replaced(snapshot_max_new_record_bytes=2_000, snapshot_chunk_bytes=500, log_segment_bytes=1_000)
        cluster = Cluster(tmp_path, config=config)
        async with cluster:
            leader = await cluster.elect()
            laggard = next(member for member in cluster.running() if member is not leader)
            laggard.kill()
            expected = []
            for i in range(120):
                expected.append(b"value-%03d" % i)
                await cluster.append(expected[-1])
            leader = await cluster.elect()
            directory = Path(leader.data_dir) / "__cluster_metadata-0"
            await cluster.until(lambda: len(list(directory.glob("*.checkpoint"))) == 2)
            await cluster.until(lambda: not (directory / "00000000000000000000.log").exists())
            await laggard.start()
            await cluster.until(lambda: laggard.listener.values == expected)
            assert laggard.listener.loads, "it was so far behind that only a snapshot could help"
            await cluster.append(b"more")
            await cluster.until(lambda: laggard.listener.values == [*expected, b"more"])
        for member in cluster.members.values():
            await member.start()
            assert member.listener.loads, "the latest snapshot is loaded before anything else"
            assert member.listener.values == [*expected, b"more"][: len(member.listener.values)]
        await cluster.until(lambda: all(member.listener.values == [*expected, b"more"] for member in cluster.running()))
        for member in cluster.running():
            await member.stop()

    run(test)


def test_a_listener_registered_late_gets_everything(tmp_path: Path) -> None:
    """Snapshot first, then the log from there."""

    async def test() -> None:
        async with Cluster(tmp_path, config=FAST.replaced(snapshot_max_new_record_bytes=500)) as cluster:
            for i in range(20):
                await cluster.append(b"value-%d" % i * 5)
            leader = await cluster.elect()
            assert leader.quorum is not None
            late = type(leader.listener)()
            late.own_id, late.quorum = leader.id, leader.quorum
            leader.quorum.register(late)
            await cluster.until(lambda: late.values == leader.listener.values)
            await cluster.until(lambda: late.leaders[-1:] == [leader.quorum.leader_and_epoch])  # type: ignore[union-attr]
            assert late.loads

    run(test)


class SlowDisk:
    """From now on all that lies at `cold_from` or behind it comes when the disk answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cold_from: int) -> None:
        self.answers, self.asked = asyncio.Event(), asyncio.Event()
        warm, cold = MetadataLog.committed, MetadataLog.committed_cold

        def committed(log: MetadataLog, offset: int, limit: int, max_bytes: int) -> Any:
            found = warm(log, offset, limit, max_bytes)
            if self.answers.is_set() or found is None:
                return found
            batches = [batch for batch in found[0] if batch.last_offset < cold_from]
            return (batches, found[1]) if batches else None

        async def committed_cold(log: MetadataLog, offset: int, limit: int, max_bytes: int) -> Any:
            self.asked.set()
            await self.answers.wait()
            return await cold(log, offset, limit, max_bytes)

        monkeypatch.setattr(MetadataLog, "committed", committed)
        monkeypatch.setattr(MetadataLog, "committed_cold", committed_cold)


@schedule(113, rule="A10: a listener is never behind the log's start", mutant="snapshot-ahead-of-a-listener")
def test_113_a_snapshot_waits_for_the_slowest_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first listener has half of what is committed, and the disk is slow with the rest: the second, which is the
    active controller, has none of it. Were the log deleted up to where the first one is, it could not go on."""

    async def test() -> None:
        async with Cluster(tmp_path, voters=1, config=FAST.replaced(snapshot_max_new_record_bytes=500)) as cluster:
            leader = await cluster.elect()
            assert leader.quorum is not None
            second = type(leader.listener)()
            leader.quorum.register(second)
            await cluster.append(b"before")
            await cluster.until(lambda: second.values == [b"before"])
            disk = SlowDisk(monkeypatch, cold_from=20)
            values = [b"value-%02d" % number * 10 for number in range(40)]
            for half in (values[:10], values[10:]):
                leader.quorum.append(leader.quorum.leader_and_epoch.epoch, half)
            await cluster.until(disk.asked.is_set)
            await cluster.until(lambda: not leader.quorum._driver._snapshotting._taking)  # type: ignore[union-attr]
            assert len(leader.listener.values) == 11
            assert len(second.values) == 1
            disk.answers.set()
            await cluster.until(lambda: second.values == leader.listener.values == [b"before", *values])
            assert not second.loads
            assert not leader.fatal

    run(test)


def test_who_leads_is_told_while_the_disk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that was deposed is not active any more, though it has records to be handed over: a snapshot that
    another leader sends is loaded into a standby."""

    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            leader = await cluster.elect()
            assert leader.quorum is not None
            disk = SlowDisk(monkeypatch, cold_from=0)
            leader.quorum.append(leader.quorum.leader_and_epoch.epoch, [b"value"])
            await cluster.until(lambda: leader.quorum._driver._dispatcher._cold is not None)  # type: ignore[union-attr]
            leader.quorum.resign()
            await cluster.until(lambda: leader.listener.leaders[-1].leader_id != leader.id)
            disk.answers.set()

    run(test)


def test_a_long_replay_is_spread_over_turns_of_the_loop(tmp_path: Path) -> None:
    """About a megabyte a turn, so that it never costs an election; and it goes on by itself."""

    async def test() -> None:
        async with Cluster(tmp_path, voters=1) as cluster:
            leader = await cluster.elect()
            assert leader.quorum is not None
            for i in range(8):
                await cluster.append(b"%d" % i + b"x" * 600_000)
            late = type(leader.listener)()
            leader.quorum.register(late)
            turns = set()
            async with asyncio.timeout(20):
                while len(late.values) < 8:
                    await asyncio.sleep(0)
                    turns.add(len(late.values))
            assert late.values == leader.listener.values
            assert len(turns) > 3, "all at once"

    run(test)


def test_a_stopping_leader_hands_over_at_once(tmp_path: Path) -> None:
    """EndQuorumEpoch: no suspicion, no timeout."""

    async def test() -> None:
        config = FAST.replaced(fetch_timeout_ms=60_000, suspicion_ms=20_000)
        async with Cluster(tmp_path, config=config) as cluster:
            await cluster.append(b"a")
            await asyncio.sleep(0.05)
            await (await cluster.elect()).stop()
            await cluster.until(lambda: cluster.leader() is not None)

    run(test)


def test_a_wiped_voter_observes_and_catches_up(tmp_path: Path) -> None:
    """Schedule 26: under a new directory id it is no voter; `describe` shows both the voter's silence and the
    observer."""

    async def test() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.append(b"x")
            leader = await cluster.elect()
            wiped = next(member for member in cluster.running() if member is not leader)
            wiped.kill()
            wiped.data_dir += "-new"
            wiped.directory_id = UUID(int=999)
            await wiped.start()
            await cluster.until(lambda: wiped.listener.values == [b"x"])
            assert leader.quorum is not None
            await cluster.until(lambda: leader.quorum.describe().observers)  # type: ignore[union-attr]
            assert [o.directory_id for o in leader.quorum.describe().observers] == [UUID(int=999)]
            others = [m for m in cluster.running() if m not in (leader, wiped)]
            for member in others:
                member.kill()
            assert wiped.quorum is not None
            last = leader.quorum.append(leader.quorum.leader_and_epoch.epoch, [b"never"])
            await cluster.until(lambda: wiped.quorum.log_end_offset > last)  # type: ignore[union-attr]
            await asyncio.sleep(0.1)
            assert leader.quorum.high_watermark <= last, "the wiped disk must not count"

    run(test)


def test_damage_refuses_the_start_with_a_sentence(tmp_path: Path) -> None:
    """Rules A1, E5, schedule 31: quorum state in both its places, snapshot, and the middle of the log."""

    async def test() -> None:
        cluster = Cluster(tmp_path, voters=1, config=FAST.replaced(snapshot_max_new_record_bytes=300))
        member = cluster.members[1]
        await member.start()
        for i in range(40):
            await cluster.append(b"value-%d" % i)
        directory = Path(member.data_dir) / "__cluster_metadata-0"
        await cluster.until(lambda: len(list(directory.glob("*.checkpoint"))) == 2)
        await member.stop()
        log = sorted(directory.glob("*.log"))[-1]
        first, second = (header.size for header, _ in list(iter_batches(log.read_bytes()))[:2])
        places = {
            (directory / "quorum-state", Path(member.data_dir) / "quorum-promise"): 0,
            tuple(sorted(directory.glob("*.checkpoint"))): 40,
            (log,): first + second - 1,
        }
        for paths, position in places.items():
            good = [path.read_bytes() for path in paths]
            for path, content in zip(paths, good, strict=True):
                path.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
            with pytest.raises(CorruptLogError) as caught:
                await member.start()
            assert paths[-1].name in str(caught.value)
            for path, content in zip(paths, good, strict=True):
                path.write_bytes(content)
        await member.start()
        await cluster.until(lambda: len(member.listener.values) == 40)
        await member.stop()

    run(test)


def test_a_snapshot_ahead_of_the_log_replaces_it(tmp_path: Path) -> None:
    """Rule A10: stopped between the freeze of a fetched snapshot and the truncation of the log."""

    async def test() -> None:
        cluster = Cluster(tmp_path, voters=1)
        member = cluster.members[1]
        await member.start()
        await cluster.append(b"old")
        await member.stop()
        disk = member.disk
        assert disk is not None
        directory = f"{member.data_dir}/__cluster_metadata-0"
        await SnapshotStore(disk, directory).write(OffsetAndEpoch(50, 1), [b"fetched"], timestamp_ms=1)
        await member.start()
        assert member.listener.loads == [(50, 1)]
        await cluster.append(b"next")
        assert member.listener.values == [b"fetched", b"next"]
        assert member.listener.batches[-1].base_offset > 50
        await member.stop()

    run(test)


def test_role_and_voter_set_must_agree(tmp_path: Path) -> None:
    """The operator's mistake is named with the setting."""
    cluster = Cluster(tmp_path)
    member = cluster.members[1]

    async def test() -> None:
        with pytest.raises(ConfigError, match=r"controller\.quorum\.voters"):
            await member.start(claims_to_vote=False)
        cluster.voters = cluster.voters[1:]
        with pytest.raises(ConfigError, match=r"controller\.quorum\.voters"):
            await member.start(claims_to_vote=True)

    run(test)


def test_a_quorum_without_leader_knows_nothing(tmp_path: Path) -> None:
    """Before the start and alone: no leader, nothing committed, appends refused, calls answered as unavailable."""

    async def test() -> None:
        cluster = Cluster(tmp_path)
        quorum = await cluster.members[1].start()
        assert quorum.leader_and_epoch == LeaderAndEpoch(None, 0)
        assert (quorum.high_watermark, quorum.log_end_offset) == (0, 0)
        with pytest.raises(NotLeader):
            quorum.append(0, [b"x"])
        quorum.resign()
        await quorum.close()
        await quorum.close()
        with pytest.raises(NotLeader):
            quorum.append(0, [b"x"])

    run(test)


def test_a_truncation_lowers_the_recovery_point_first(tmp_path: Path) -> None:
    """Rule E5: recovery refuses damage below the recovery point, so it must never be above the log's end."""
    disk = RealDisk()
    clock = SystemClock()
    log = MetadataLog.open(disk, str(tmp_path), clock, FAST, rewriting=None)
    for base in range(5):
        data = build_data_batch([b"x"], base_offset=base, epoch=1, timestamp_ms=1)
        assert log.write(Batch(base, base + 1, 1, data), 1)
    log.partition_log.sync_now()
    log.note_recovery_point()
    assert RecoveryPoint(disk, str(tmp_path)).read().recovery_point == 5
    log.truncate_to(2)
    assert RecoveryPoint(disk, str(tmp_path)).read().recovery_point == 2
    log.abandon()
    again = MetadataLog.open(disk, str(tmp_path), clock, FAST, rewriting=None)
    assert (again.end_offset, again.summary([]).last_epoch) == (2, 1)
    again.close()
