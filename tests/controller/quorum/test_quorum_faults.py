"""The quorum on disks that fail, fill up and lose power, in virtual time."""

from __future__ import annotations

from quorum_trial import Node, Trial

from strandline.chaos.sim.disk import DiskConfig
from strandline.controller.quorum.api import LeaderAndEpoch, QuorumConfig


def test_a_failed_sync_stops_the_node_and_acks_nothing() -> None:
    """Schedule 32: never retried; a second fsync would succeed over bytes that are gone. The others go on without
    it."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        leader = await trial.commit(b"a")
        trial.world.machines[f"n{leader.number}"].disk.faults.syncs = 1
        trial.append(leader, b"unsure")
        await trial.until(lambda: leader.fatal)
        assert len(leader.fatal) == 1
        committed = list(leader.values)
        trial.kill(leader.number)
        leader.leader = LeaderAndEpoch(None, 0)
        await trial.commit(b"b")
        assert leader.values == committed, "it handed over nothing more"

    trial.play(test)


def test_a_single_voter_with_a_failed_sync_commits_nothing() -> None:
    """Rule A9, schedule 32: the own disk is the majority here."""
    trial = Trial(voters=1)

    async def test(trial: Trial) -> None:
        trial.start()
        node = await trial.commit(b"a")
        trial.world.machines["n1"].disk.faults.syncs = 1
        trial.append(node, b"lost")
        await trial.until(lambda: node.fatal)
        await trial.world.sleep_ms(1000)
        assert node.values == [b"a"]

    trial.play(test)


def test_a_full_disk_under_a_leader_costs_the_leadership_not_the_node() -> None:
    """Schedule 24 and a full disk: nothing was written, so it steps down; with room again it takes part."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        leader = await trial.commit(b"a")
        disk = trial.world.machines[f"n{leader.number}"].disk
        capacity = disk.config.capacity_bytes
        disk.config.capacity_bytes = disk.used_bytes
        for _ in range(2000):
            if leader.leader.leader_id != leader.number:
                break
            trial.append(leader, b"x" * 500_000)
            await trial.world.sleep_ms(5)
        assert leader.leader.leader_id != leader.number
        await trial.until(lambda: trial.leading() not in (None, leader))
        await trial.commit(b"without it")
        assert leader.fatal == []
        disk.config.capacity_bytes = capacity
        await trial.until(lambda: b"without it" in leader.values)
        assert leader.fatal == []

    trial.play(test)


def test_what_a_full_disk_did_not_take_is_not_handed_over_as_committed() -> None:
    """Rule A8: the high watermark is at most the own end. One fetch brings more than there is room for, and its high
    watermark; the next leader, which cannot know one yet, brings the rest: it is committed when that leader says so.
    """
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        leader = await trial.commit(b"a")
        await trial.until(lambda: all(node.values == [b"a"] for node in trial.nodes.values()))
        away = next(number for number in trial.nodes if number != leader.number)
        trial.kill(away)
        for number in range(20):
            await trial.commit(b"%02d" % number * 50_000)
        disk = trial.world.machines[f"n{away}"].disk
        disk.config.capacity_bytes = disk.used_bytes + 700_000
        trial.start(away)
        back = trial.nodes[away]
        await trial.until(lambda: len(back.values) > 3)
        await trial.world.sleep_ms(100)
        assert len(back.values) < 20
        trial.kill(leader.number)
        leader.leader = LeaderAndEpoch(None, 0)
        disk.config.capacity_bytes = 1 << 34
        await trial.until(lambda: back.fatal or trial.leading())
        assert back.fatal == []
        await trial.commit(b"b")
        await trial.until(lambda: back.values[-1:] == [b"b"])
        assert len(back.values) == 22

    trial.play(test)


def test_a_full_disk_under_a_vote_makes_a_node_silent_not_dead() -> None:
    """Rule A1 on a full disk: a vote that cannot be remembered is not given; once there is room, it is."""
    trial = Trial()

    async def test(trial: Trial) -> None:
        trial.start()
        leader = await trial.commit(b"a")
        await trial.until(lambda: all(node.values == [b"a"] for node in trial.nodes.values()))
        others = [node for node in trial.nodes.values() if node is not leader]
        disks = [trial.world.machines[f"n{node.number}"].disk for node in others]
        for disk in disks:
            disk.config.capacity_bytes = disk.used_bytes
        trial.kill(leader.number)
        await trial.world.sleep_ms(4000)
        assert trial.leading() is None
        for disk in disks:
            disk.config.capacity_bytes = 1 << 34
        await trial.commit(b"b")
        assert all(node.fatal == [] for node in others)

    trial.play(test)


def test_power_cuts_everywhere_lose_nothing_that_was_committed() -> None:
    """Rules A1, A8, A9, schedules 23, 30: whatever a listener was handed was durable on a majority."""
    for seed in range(6):
        trial = Trial(seed=seed, config=QuorumConfig(snapshot_max_new_record_bytes=400, log_segment_bytes=512))
        expected: list[bytes] = []

        async def test(trial: Trial, expected: list[bytes] = expected) -> None:
            for life in range(4):
                trial.start()
                for i in range(8):
                    expected.append(b"%d-%d" % (life, i))
                    await trial.commit(expected[-1])
                await trial.until(lambda: all(node.values == expected for node in trial.nodes.values()))
                node = await trial.elect()
                trial.append(node, b"never acked")
                trial.power_cut(*trial.nodes)
                await trial.world.sleep_ms(50)
                trial.start()
                node = await trial.commit(b"probe %d" % life)
                if b"never acked" in node.values:
                    expected.append(b"never acked")
                expected.append(b"probe %d" % life)
                trial.kill(*trial.nodes)
                expected[:] = node.values

        trial.play(test)
        assert [value for value in expected if b"-" in value] == [
            b"%d-%d" % (life, i) for life in range(4) for i in range(8)
        ]


def test_cold_reads_while_snapshots_delete_the_log() -> None:
    """Rule A10: what is being read off the loop, for a follower or a listener, may be gone when the disk answers."""
    for seed in range(8):
        trial = Trial(
            seed=seed,
            config=QuorumConfig(snapshot_max_new_record_bytes=300, log_segment_bytes=200),
            disk=DiskConfig(cold_probability=0.6, read_min_us=5_000, read_max_us=60_000),
        )

        async def test(trial: Trial) -> None:
            trial.start()
            for i in range(60):
                node = await trial.elect()
                trial.append(node, b"value %d" % i)
                await trial.world.sleep_ms(7)
                if i % 20 == 10:
                    late = Node(0, trial.voters, trial.config)
                    assert node.quorum is not None
                    node.quorum.register(late)
            await trial.until(lambda: all(node.values[-1:] == [b"value 59"] for node in trial.nodes.values()))
            expected = [b"value %d" % i for i in range(60)]
            for node in trial.nodes.values():
                assert node.values == expected
                assert node.fatal == []
            await trial.until(lambda: late.values == expected)

        trial.play(test)
