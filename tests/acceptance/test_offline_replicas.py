"""The log of one partition fails under its leader, on a real process (docs/correctness.md, schedule 56)."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import (
    QUICK,
    describe,
    down,
    eventually,
    leader_of,
    make_topic,
    read_all,
    send_all,
    wait_isr,
)

FILE_BYTES_MAX = 300_000
VALUES = [b"%03d" % number + bytes(5_000) for number in range(100)]


@contextmanager
def files_end_there(pid: int) -> Iterator[None]:
    """Writes beyond this byte of any file fail with EFBIG (RLIMIT_FSIZE): of a process's logs the long one fails."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def test_56_a_log_fails_under_its_leader() -> None:
    """The leadership moves, the node goes on and leads what it led besides; it is not elected again for that partition,
    though it is the preferred leader and lives, until it was restarted."""
    with DevCluster(settings={**QUICK, "leader.imbalance.check.interval.seconds": "1"}) as cluster:
        make_topic(cluster, "long")
        make_topic(cluster, "short", partitions=3)
        send_all(cluster, "long", VALUES)
        wait_isr(cluster, "long", {1, 2, 3})
        preferred = describe(cluster, "long").replicas[0]
        eventually(lambda: leader_of(cluster, "long") == preferred)
        [other] = [n for n in range(3) if describe(cluster, "short", n).replicas[0] == preferred]
        pid = cluster.pids()[preferred]
        with files_end_there(pid):
            assert send_all(cluster, "long", [b"after"]) == [len(VALUES)]
            successor = leader_of(cluster, "long")
            assert successor != preferred
            send_all(cluster, "short", [b"x"], partition=other)
            assert leader_of(cluster, "short", other) == preferred
            wait_isr(cluster, "long", {1, 2, 3} - {preferred})
            with down(cluster, successor):
                [third] = {1, 2, 3} - {preferred, successor}
                eventually(lambda: leader_of(cluster, "long") == third)
            wait_isr(cluster, "long", {1, 2, 3} - {preferred})
        assert leader_of(cluster, "long") != preferred
        assert cluster.pids()[preferred] == pid
        told = Path(cluster.log_path(preferred)).read_text()
        assert "File too large" in told, told[-2000:]
        with down(cluster, preferred):
            pass
        wait_isr(cluster, "long", {1, 2, 3})
        eventually(lambda: leader_of(cluster, "long") == preferred)
        assert read_all(cluster, "long") == [*VALUES, b"after"]
