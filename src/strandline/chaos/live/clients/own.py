"""The simulator's workload on a real cluster: producers of every kind, and consumers, of `strandline.client.aio`."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from strandline.chaos.checkers.journal import Recorder
from strandline.chaos.live.clients.options import FINAL_S, FLUSH_S, SWEEP_S, ClientOptions, InputEnd
from strandline.chaos.workload import LANES, Workload, WorkloadOptions
from strandline.proto.system import SystemClock

CONSUMERS = 2


@dataclass
class _Ports:
    clock: SystemClock
    rng: random.Random


def _workload(options: ClientOptions, recorder: Recorder, clock: SystemClock) -> Workload:
    settings = options.settings
    does = WorkloadOptions(
        topics=options.topics,
        topic_configs={},
        lanes=tuple(range(len(LANES))),
        send_gap_ms=options.gap_ms,
        burst_max=2,
        value_bytes_max=options.value_bytes_max,
        consumers=CONSUMERS,
        producer={
            "linger_ms": 2,
            "request_timeout_ms": 3000,
            "delivery_timeout_ms": 60_000,
            "max_block_ms": 20_000,
            **settings,
        },
        consumer={"fetch_max_wait_ms": 500, "request_timeout_ms": 5000, **settings},
    )
    return Workload(options.bootstrap, does, recorder, clock.monotonic_ms, prefix=f"{options.name}-", topics_exist=True)


async def _until(
    holds: Callable[[], bool], task: asyncio.Task[None], timeout_s: float | None, recorder: Recorder
) -> None:
    """Sweep until `holds`, or `task` fails, or the time is over."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    while not holds() and not task.done():
        if deadline is not None and loop.time() > deadline:
            return
        await asyncio.sleep(SWEEP_S)
        recorder.sweep()


async def run(options: ClientOptions) -> int:
    """Run the client process; returns its exit code. Returns its exit code."""
    clock = SystemClock()
    ports = _Ports(clock, random.Random(options.seed))
    over = InputEnd()
    with Recorder(options.journal) as recorder:
        workload = _workload(options, recorder, clock)
        if options.final:
            async with asyncio.timeout(FINAL_S):
                await workload.read_everything(ports)
            return 0
        task = asyncio.get_running_loop().create_task(workload.main(ports))
        await _until(over, task, None, recorder)
        workload.sending = False
        await _until(lambda: workload.idle >= len(LANES), task, FLUSH_S, recorder)
        if task.done():
            task.result()
        recorder.errors(workload.errors)
        task.cancel()
        await asyncio.wait([task])
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(ClientOptions.decode(sys.argv[1]))))
