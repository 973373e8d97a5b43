"""Transactional clients in the simulator: writers that commit and abort, pipelines that consume, transform and produce
exactly once, and readers of committed data.

    writers    --transactions-->  ACCOUNTS  --read_committed-->  pipelines  --transactions, offsets-->  STATEMENTS
    a plain producer  -------->  ACCOUNTS                       readers of both topics

Several writers share a transactional id: each one that begins fences those before it, which go on to try.
"""
