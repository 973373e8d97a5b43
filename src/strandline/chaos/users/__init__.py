"""What users do with our clients, beside the plain workload: keys, headers, pauses, seeks, groups, calls that are cut.

- `options`: what a seed draws,
- `hands`: how a call is made, and cut short at any await (coroutines) or instruction (threads),
- `writing`, `reading`, `grouped`: producers, consumers that name partitions, members of a group,
- `users`: all of them, as one process.

What must hold is in `chaos.checkers.users`.
"""
