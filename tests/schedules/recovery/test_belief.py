"""One file of one node is damaged while it is down; it leads afterwards, and its followers do as it does (rule B31)."""

from __future__ import annotations

from strandline.chaos.cluster import DATA
from strandline.log.checkpoints import LOG_STARTS
from strandline.log.segment import TIME_ENTRY_BYTES
from tests.schedules.helpers import schedule
from tests.schedules.recovery.ruin import CHECKPOINT_MS, DIRECTORY, Ruin, both_layouts
from tests.stage import READY_MS


class Believing(Ruin):
    """A cluster of which one node is to lead over what its disk says."""

    def ends(self) -> set[tuple[int, int]]:
        """Where the replicas' logs begin and end."""
        logs = [self._replica(name).log for name in self.brokers]
        return {(int(log.log_start_offset), int(log.log_end_offset)) for log in logs if log is not None}

    @property
    def preferred(self) -> str:
        return f"n{self.partition().replicas[0]}"

    async def stop_all(self) -> None:
        """Every node stops in good order, the preferred replica as the last broker: of equal logs the first leads."""
        preferred = self.preferred
        last = [preferred, *(name for name in self.cluster.names if name not in self.cluster.brokers)]
        for name in (*self.others(preferred), *last):
            self.cluster.stop(name)
            await self.until(lambda name=name: not self.is_alive(name), f"{name} does not stop")  # type: ignore[misc]

    async def led_by_preferred(self) -> None:
        """All nodes come back, and the preferred replica leads."""
        self.start_controllers()
        self.start(*self.brokers)
        await self.cluster.wait_in_sync(READY_MS)
        if self.leader_name != self.preferred:
            await self.admin(lambda admin: admin.elect_leaders([("t", 0)]))
        await self.until(lambda: self.leader_name == self.preferred, "the preferred replica does not lead")

    def turn(self, path: str, data: bytes) -> None:
        """The preferred replica's disk gives back these bytes for a file, from now on."""
        disk = self.disk(self.preferred)
        raw = disk.files()[path]
        assert len(data) == len(raw)
        assert data != raw
        for position, (before, after) in enumerate(zip(raw, data, strict=True)):
            for bit in range(8):
                if (before ^ after) >> bit & 1:
                    disk.flip_bit(path, position, bit)


@both_layouts
@schedule(99, rule="B31: a log start counts where two files say it", mutant="log-starts-are-believed")
def test_99_one_bit_in_a_log_start_hides_no_record(split: bool) -> None:
    """Two records are deleted. A bit turns over in the checkpoint of a node that is down: it says six. The node leads,
    and every replica begins where it did."""

    async def story(ruin: Believing) -> None:
        await ruin.write(0, 20)
        await ruin.admin(lambda admin: admin.delete_records({("t", 0): 2}))
        await ruin.world.sleep_ms(CHECKPOINT_MS)
        ruin.kill_all()
        path = f"{DATA}/{LOG_STARTS}"
        data = ruin.disk(ruin.preferred).files()[path]
        assert data.endswith(b"t 0 2\n")
        ruin.turn(path, data[:-2] + b"6\n")
        await ruin.led_by_preferred()
        await ruin.world.sleep_ms(CHECKPOINT_MS)
        assert ruin.ends() == {(2, 20)}

    Believing(99, split).play(story)


@both_layouts
@schedule(98, rule="B31: a segment goes by its age once its batches say so", mutant="time-indexes-are-believed")
def test_98_one_bit_in_a_time_index_takes_no_record(split: bool) -> None:
    """A bit turns over in the only entry of a time index of a node that is down. It leads, and retention looks."""

    async def story(ruin: Believing) -> None:
        await ruin.write(0, 20)
        await ruin.stop_all()
        [path] = [
            path for path in ruin.disk(ruin.preferred).files() if path.endswith(".timeindex") and DIRECTORY in path
        ]
        data = ruin.disk(ruin.preferred).files()[path]
        assert len(data) == TIME_ENTRY_BYTES
        ruin.turn(path, data[:2] + bytes([data[2] ^ 1]) + data[3:])
        await ruin.led_by_preferred()
        await ruin.world.sleep_ms(3 * CHECKPOINT_MS)
        assert ruin.ends() == {(0, 20)}
        await ruin.nothing_is_lost()

    Believing(98, split, settings={"log.retention.check.interval.ms": "1000"}).play(story)
