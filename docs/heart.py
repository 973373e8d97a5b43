"""The heart of Strandline: the files to read first, in this order. The README lists them."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "strandline"

HEART = (
    ("log/batch.py", "what is written, sent and stored: a batch of records"),
    ("log/segment.py", "one file of a log, and its indexes"),
    ("log/partition_log.py", "a partition's log: append as leader, append as follower, read"),
    ("log/syncer.py", "one sync for all that was written since the last one"),
    ("replica/core/leader.py", "the leader of a partition: when the high watermark rises, which followers are in sync"),
    ("replica/core/follower.py", "the follower of a partition, and where its log and the leader's part"),
    ("replica/partition.py", "the log, the core, and the requests that wait for them"),
    ("replica/leader_stream.py", "the stream to a follower, the leader's end"),
    ("replica/fetcher.py", "the stream from a leader, the follower's end, and what it does to a followed log"),
    ("controller/raft/transitions.py", "the roles of a quorum node, as one table"),
    ("controller/raft/ready.py", "what must be durable before what is sent"),
    ("controller/raft/core.py", "the quorum: messages and ticks in, what is to be done out"),
    ("controller/raft/follower.py", "a voter that fetches"),
    ("controller/raft/leader.py", "the voter that leads: what is committed"),
    ("controller/raft/log_summary.py", "where two metadata logs part"),
    ("controller/machine/log_verdict.py", "what a broker's recovery found, and what its replicas count for"),
    ("controller/machine/partition_change.py", "which replica leads next"),
)
"""Paths below src/strandline, each with what a reader finds there."""


def heart() -> str:
    """The list, for the README: files, and their lines together, to the next hundred."""
    lines = sum(len((SOURCE / path).read_text().splitlines()) for path, _ in HEART)
    listed = [f"{number}. [`{path}`](src/strandline/{path}): {what}" for number, (path, what) in enumerate(HEART, 1)]
    head = f"The heart is {len(HEART)} files and about {round(lines, -2):,} lines: a day of reading. In this order:"
    return "\n".join([head, "", *listed])
