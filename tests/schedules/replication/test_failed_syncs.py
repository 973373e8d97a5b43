"""A sync fails, and the process is started again without a reboot: schedule 47."""

from __future__ import annotations

from strandline.replica.states import Role
from tests.replica.helpers import batch
from tests.schedules.helpers import schedule
from tests.schedules.replication.bench import ONE, Bench


@schedule(
    47,
    rule="A9: after a restart in the same boot nothing above the recovery point counts before it is written again",
    mutant=("content-not-written-again", "every-boot-is-fresh"),
)
def test_47_a_failed_sync_is_retried_by_a_restart() -> None:
    """fdatasync fails once on a follower, and its log is fenced. The supervisor starts the process again: it finds the
    record in the page cache, its own sync succeeds over what no disk has, and the leader counts on it. Then the power
    fails everywhere, and the follower, which is in the ISR, is elected."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        await bench.append(1, b"a")
        await bench.leave_out(2)
        disk = bench.world.machines["n3"].disk
        disk.faults.syncs, disk.faults.where = 1, ".log"
        large = b"b" * 20_000  # several pages: the last one is written anyway, where the file is cut to its batches
        acked = bench.send(1, batch(large))
        await bench.until(lambda: bench.status(3).role is Role.OFFLINE)
        assert not acked.done()
        bench.world.kill("n3")
        bench.broker(3).start()
        await bench.until(acked.done)
        for name in ("n1", "n3"):
            bench.world.power_cut(name)
        bench.controller.fence(ONE)
        bench.broker(3).start()
        await bench.until(lambda: bench.broker(3).manager is not None and bench.leads(3))
        assert bench.values(3) == [b"a", large]

    bench.play(scenario)
