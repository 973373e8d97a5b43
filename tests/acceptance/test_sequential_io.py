"""What a node asks of its disk while it takes and serves records (row S76): appends and syncs, and the page cache."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import make_topic, read_all, send_all

_WRITE = re.compile(
    r"pwrite64\(\d+<(?P<path>[^>]*/flow-0/\d+\.log)>, .*, (?P<size>\d+), (?P<position>\d+)(?:\)| <unfinished)"
)
_READ = re.compile(r"preadv?2?(?:64)?\(\d+<(?P<path>[^>]*/flow-0/\d+\.log)>")


FILE_SYSTEM_BYTES = 256 << 10
"""Bytes that the file system may fetch of its own, bitmaps and directories of what grows: the records are twelve times
as many."""


def device_reads(pid: int) -> int:
    """Bytes that this process had the disk fetch."""
    [line] = [line for line in Path(f"/proc/{pid}/io").read_text().splitlines() if line.startswith("read_bytes:")]
    return int(line.split()[1])


def test_a_produce_load_only_appends_and_syncs(tmp_path: Path) -> None:
    """Row S76: each write to the log begins where the one before it ended; nothing is read for it; and who reads what
    was just written has no block fetched from the disk."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    with DevCluster(tmp_path, nodes=1) as cluster:
        make_topic(cluster, "flow", replication=1)
        send_all(cluster, "flow", [b"first"])
        assert read_all(cluster, "flow") == [b"first"]
        pid = cluster.pids()[1]
        trace = tmp_path / "trace"
        calls = "trace=pread64,preadv,preadv2,pwrite64,pwritev,pwritev2,fdatasync,fsync"
        tracer = subprocess.Popen(
            [strace, "-f", "-y", "-s", "0", "-e", calls, "-o", str(trace), "-p", str(pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert tracer.stderr is not None
            said = tracer.stderr.readline()
            if "attached" not in said:
                pytest.skip(f"strace may not look at the node: {said.strip()}")
            before = device_reads(pid)
            values = [b"%d:" % number + bytes(1000) for number in range(3000)]
            send_all(cluster, "flow", values)
            lines = trace.read_text().splitlines()
            assert read_all(cluster, "flow") == [b"first", *values]
            assert device_reads(pid) - before < FILE_SYSTEM_BYTES
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(10)
        ends: dict[str, int] = {}
        for line in lines:
            assert _READ.search(line) is None, line
            if (write := _WRITE.search(line)) is not None:
                position, size = int(write["position"]), int(write["size"])
                assert ends.setdefault(write["path"], position) == position, line
                ends[write["path"]] = position + size
        assert sum(ends.values()) > 3_000_000, "the writes of the load were seen"
        assert any("fdatasync(" in line or "fsync(" in line for line in lines)
