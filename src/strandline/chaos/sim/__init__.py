"""A deterministic world for production code: virtual time, a network in memory, disks that lose power, erring clocks.

Everything that happens in a run follows from one seed (docs/simulator.md). The parts:

- `loop`: the event loop with virtual time; it is what makes ordinary asyncio code deterministic,
- `network`, `transport`, `rpc`: connections with latency, partitions and breaks, as byte streams and as the `Rpc` port,
- `disk`: the `Disk` port with a written and a durable image,
- `clock`: skewed monotonic and jumping wall clocks,
- `process`, `world`: machines, incarnations of processes, kill, pause and power cut.
"""
