"""Replication of partitions between brokers.

`core` is the pure part (rules B of correctness.md): what counts as committed, who is in sync, where a follower
truncates. `manager.ReplicaManager` hosts the partitions of one broker on real logs and streams.
"""
