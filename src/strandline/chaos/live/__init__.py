"""Chaos on real processes: the same workload and the same judges as in the simulator, real kernels beneath.

- `target`: what a run needs of a cluster,
- `cluster`, `proxy`: the nodes of `strandline dev`, with cables between them that can be cut,
- `clients`: the load, as processes of their own: our clients and other people's,
- `faults`, `runner`, `gaps`: what strikes, when, and what it cost,
- `cli`: `strandline chaos run`.
"""
