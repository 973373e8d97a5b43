"""Row S100 among faults: a leader dies while a topic is restored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from strandline.client import LATEST, Admin, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually, leader_of

RECORDS = 40_000
STRANDLINE = [sys.executable, "-m", "strandline.cli.main", "topic"]


def test_a_restore_outlives_a_leader(tmp_path: Path) -> None:
    """SIGKILL of the leader in the middle: each batch is there once, in order, and all compares equal."""
    directory = str(tmp_path / "backup")
    with DevCluster() as cluster:
        target = ["--bootstrap", cluster.bootstrap]
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("lasting", 2, 3)])
        with Producer(cluster.bootstrap, linger_ms=20) as producer:
            for number in range(RECORDS):
                producer.send("lasting", b"%d" % number * 200, partition=number % 2)
        subprocess.run([*STRANDLINE, "backup", "lasting", "--to", directory, *target], check=True)
        restore = subprocess.Popen(
            [*STRANDLINE, "restore", directory, "--to", "again", *target], stdout=subprocess.PIPE, text=True
        )
        try:
            with Admin(cluster.bootstrap) as admin:

                def begun() -> bool:
                    [written] = admin.list_offsets({("again", 0): LATEST}).values()
                    return written.offset > 0

                eventually(lambda: "again" in admin.list_topics(), pause_s=0.01)
                eventually(begun, pause_s=0.01)
            leader = leader_of(cluster, "again")
            cluster.kill(leader)
            assert restore.poll() is None, "the restore was over before the leader died"
            told, _ = restore.communicate(timeout=150)
        finally:
            restore.kill()
            restore.wait()
        assert restore.returncode == 0, told
        assert f"restored, read back and compared {RECORDS:,} records" in told
