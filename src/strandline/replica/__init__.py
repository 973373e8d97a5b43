"""Replication of partitions between brokers.

`core` is the pure part (rules B of docs/rules.md): what counts as committed, who is in sync, where a follower
truncates. `manager.ReplicaManager` hosts the partitions of one broker on real logs and streams.
"""
