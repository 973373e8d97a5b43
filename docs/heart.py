"""The heart of Strandline: the files to read first, in this order. The README lists them."""

from __future__ import annotations

from itertools import count
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "strandline"

LINES_A_DAY = 2_500
"""Lines that a reader understands in a day, by assumption: six hours of some 400."""

HEART = {
    "How a log is kept": (
        ("log/batch.py", "a batch of records: the bytes that are sent, stored and replicated"),
        ("log/segment.py", "one file of a log, and its indexes"),
        ("log/epochs.py", "where each leader epoch begins; the check of every batch that is read"),
        ("log/producer_state.py", "the last batches of each idempotent producer: a repeated one is known"),
        ("log/partition_log.py", "the log of a partition: append as leader, append as follower, read"),
        ("log/syncer.py", "one sync for everything appended since the last one"),
        ("log/recovery.py", "a start after a crash: what is checked, what is cut, what is reported"),
    ),
    "How a partition is replicated": (
        ("replica/states.py", "the words of the other files: roles, states, results of appends and reads"),
        (
            "replica/core.py",
            "the leader's rules (high watermark, ISR), the follower's, and the offset at which two logs part",
        ),
        ("replica/shared.py", "what the partitions of a broker use together"),
        ("replica/partition.py", "one replica: its log, its core, and the requests that wait for them"),
        ("replica/partition_set.py", "the replicas of a broker: metadata change their roles"),
        ("replica/leader_stream.py", "the stream to a follower, the leader's end"),
        ("replica/fetcher.py", "the same stream, the follower's end: truncation, append, acknowledgement"),
    ),
    "How the quorum votes": (
        ("controller/raft/messages.py", "the messages between voters"),
        ("controller/raft/transitions.py", "the roles of a voter, as one table"),
        ("controller/raft/role.py", "what every role can do"),
        ("controller/raft/ready.py", "what must be durable before what is sent"),
        ("controller/raft/core.py", "messages and ticks in, what is to be done out; whether a vote is given"),
        ("controller/raft/election.py", "a round of asking for votes, and how they are counted"),
        ("controller/raft/prospective.py", "the pre-vote"),
        ("controller/raft/candidate.py", "the vote"),
        ("controller/raft/follower.py", "a voter that fetches from the leader"),
        ("controller/raft/fetching.py", "a fetch and its answer: append, cut, or load a snapshot"),
        ("controller/raft/leader.py", "the voter that leads: what is committed"),
        ("controller/raft/log_summary.py", "where two metadata logs part"),
    ),
    "How leaders of partitions are elected": (
        ("controller/machine/state.py", "the state of the metadata machine"),
        ("controller/machine/log_verdict.py", "what the recovery of a broker found, and what its replicas count for"),
        ("controller/machine/partition_change.py", "the next leader and ISR of a partition"),
        ("controller/machine/elections.py", "when elections happen: brokers that fail, return, stop; requests"),
        ("controller/machine/isr.py", "proposals of leaders to change the ISR"),
    ),
}
"""By question: paths below src/strandline, each with what a reader finds there."""

FILES = tuple(path for files in HEART.values() for path, _ in files)


def heart() -> str:
    """The list, for the README: files, and their lines together, to the next hundred."""
    lines = sum(len((SOURCE / path).read_text().splitlines()) for path in FILES)
    days = round(lines / LINES_A_DAY)
    text = [
        f"The heart is {len(FILES)} files and about {round(lines, -2):,} lines: about {days} days of reading at "
        f"{LINES_A_DAY:,} lines a day. In this order:"
    ]
    number = count(1)
    for question, files in HEART.items():
        text += ["", f"{question}:", ""]
        text += [f"{next(number)}. [`{path}`](src/strandline/{path}): {what}" for path, what in files]
    return "\n".join(text)
