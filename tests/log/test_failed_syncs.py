"""Lives of a log directory whose syncs fail, and which are restarted without a reboot (schedule 47).

A failed sync is forgotten by the kernel: the next process finds every byte and every name, and its own syncs succeed
over what no disk has. So whatever it vouches for has to be there after a power cut too, and nothing may be refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.log.disk import DiskError
from strandline.log.log_dir import LogDir
from strandline.log.syncer import Syncer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StorageError
from tests.log.test_power_cut import TPS, Lives


class FailingLives(Lives):
    """In each life a sync of a file or of a directory fails at some disk operation; the next one comes at once, or
    after a power cut."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        # Long segments too: a short one is a single page, which is made dirty again by setting the file's size.
        self.config = replace(self.config, segment_bytes=self.rng.choice([1100, 50_000]))

    async def scenario(self) -> None:
        for _ in range(2 * 6):
            done = asyncio.Event()
            self.machine.disk.strike_after(self.rng.randint(1, 400), self.fail)
            self.world.spawn("n1", lambda ports, done=done: self.life(done, ports))
            await done.wait()
            self.machine.disk.strike_after(0, None)
            faults = self.machine.disk.faults
            faults.syncs = faults.dir_syncs = 0
            if self.problem is not None:
                raise self.problem
            if self.rng.random() < 0.4:
                self.cut_power()
            else:
                self.kill()

    def fail(self) -> None:
        """The next sync fails."""
        faults = self.machine.disk.faults
        setattr(faults, self.rng.choice(["syncs", "dir_syncs"]), self.rng.choice([1, 1, 2]))

    async def live(self, ports: Ports) -> None:
        try:
            if not self.formatted:
                await self.format(ports)
            await self.work(ports)
        except (DiskError, StorageError):
            return  # the node stops itself, and is started again
        except KafkaError as error:
            if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise

    async def format(self, ports: Ports) -> None:
        """Without failures: a format that fails is told to whoever runs it."""
        self.machine.disk.strike_after(0, None)
        await super().format(ports)
        self.machine.disk.strike_after(self.rng.randint(1, 400), self.fail)

    async def work(self, ports: Ports) -> None:
        """Until a sync fails, or for a while."""
        log_dir = LogDir.open(ports.disk, "/d", ports.clock, self.config)
        assert log_dir.offline == {}, f"refused: {log_dir.offline}"
        logs = {tp: self.check(tp, log_dir) for tp in TPS}
        self.power_lost = False
        failed: list[Any] = []
        syncer = Syncer(ports.disk, self.synced, lambda *what: failed.append(what), failed.append)
        await self.use(log_dir, logs, syncer, failed)
        if failed:
            return
        await syncer.drain()
        if not failed and self.rng.random() < 0.3:
            await self.stop(log_dir)


@pytest.mark.parametrize("first_seed", [0, 10, 20, 30, 40, 50, 150, 580])
def test_lives_with_failed_syncs(first_seed: int) -> None:
    """Ten seeds of a dozen lives each."""
    for seed in range(first_seed, first_seed + 10):
        lives = FailingLives(seed)
        try:
            lives.world.run(lives.scenario())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
