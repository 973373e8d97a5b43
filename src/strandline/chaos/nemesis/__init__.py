"""The faults of a simulated cluster, drawn from the seed, each undone after a while, all of them at the end.

- `options`: which faults a seed uses, how often, for how long,
- `nemesis`: draws them, keeps what has to be undone, heals,
- `processes`, `links`, `disks`, `metadata`, `stores`: the faults themselves; `kinds` has them by name.
"""
