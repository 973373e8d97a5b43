"""Rule B13, the clean marker, under the loss of power: it vouches for every log, or it is not there."""

from __future__ import annotations

import asyncio
from uuid import UUID

from strandline.chaos.sim.ports import Ports
from strandline.log.checkpoints import CLEAN_SHUTDOWN
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.proto.ids import NodeId
from tests.log.helpers import TOPIC_ID, TP, fill
from tests.stage import OneMachine

PATH = "/data"
RECORDS = 40


class Machine(OneMachine):
    """A log directory over several lives of one machine."""

    opened: LogDir | None = None

    async def first_life(self, ports: Ports) -> None:
        """Write, sync nothing, stop cleanly."""
        format_log_dir(ports.disk, PATH, "cluster-1", NodeId(1), UUID(int=1))
        log_dir = LogDir.open(ports.disk, PATH, ports.clock)
        log = log_dir.create(TP, TOPIC_ID)
        fill(log, RECORDS, size=300)
        await asyncio.sleep(0.1)
        log_dir.close(7)

    async def next_life(self, ports: Ports) -> None:
        self.opened = LogDir.open(ports.disk, PATH, ports.clock)
        await asyncio.sleep(1000)

    async def start_again(self) -> None:
        """Start on what the disk has, for a while."""
        self.opened = None
        await self.live(self.next_life)


def test_b_a_clean_marker_vouches_for_every_log() -> None:
    """B: written last. The power fails anywhere in a clean stop: with a marker every record is there."""
    marked = 0
    for operation in range(1, 60):
        machine = Machine(operation)

        async def scenario(machine: Machine, operation: int = operation) -> None:
            await machine.live(machine.first_life, 50)
            machine.lose_power_at(operation)
            await machine.world.sleep_ms(1000)
            machine.lose_power_at(0)
            machine.power_cut("n1")
            await machine.start_again()

        machine.play(scenario)
        assert machine.opened is not None, operation
        if machine.opened.clean_shutdown_broker_epoch is not None:
            marked += 1
            assert machine.opened.clean_shutdown_broker_epoch == 7
            assert machine.opened.logs[TP].log_end_offset == RECORDS, operation
    assert marked > 0


def test_b_a_clean_marker_is_there_once_the_stop_has_ended() -> None:
    """B: forced to disk with its name: the power may fail right after the stop, and the next start need not recover."""
    for seed in range(8):
        machine = Machine(seed)

        async def scenario(machine: Machine) -> None:
            process = machine.world.spawn("n1", machine.first_life)
            assert process.main is not None
            await process.main
            machine.power_cut("n1")
            await machine.start_again()

        machine.play(scenario)
        assert machine.opened is not None
        assert machine.opened.clean_shutdown_broker_epoch == 7, seed


def test_b_a_clean_marker_does_not_come_back() -> None:
    """B (KAFKA-10471): deleted durably at start, before any log is loaded: whenever the power fails after that, the
    next start is told of an unclean stop."""
    for seed in range(20):
        machine = Machine(seed)
        struck: list[bool] = []

        async def scenario(machine: Machine, struck: list[bool] = struck) -> None:
            await machine.live(machine.first_life, 500)
            machine.kill("n1")

            def strike() -> None:
                gone = f"{PATH}/{CLEAN_SHUTDOWN}" not in machine.disk.files()
                logs_are_open = machine.disk.operations - before > 12
                if gone and logs_are_open:
                    struck.append(True)
                    machine.power_cut("n1")
                else:
                    machine.disk.strike_after(1, strike)

            before = machine.disk.operations
            machine.disk.strike_after(1, strike)
            await machine.start_again()
            machine.lose_power_at(0)
            if not struck:
                machine.power_cut("n1")
            await machine.start_again()

        machine.play(scenario)
        assert struck
        assert machine.opened is not None
        assert machine.opened.clean_shutdown_broker_epoch is None, seed
