"""A real node on a disk that stops answering (schedule 58): fdatasync that never returns, in the sync thread or on the
event loop.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.ports import free_port

from strandline.client import Admin, NewTopic, Producer
from strandline.client.errors import ClientError
from strandline.cluster.node.config_values import write_voters
from strandline.controller.quorum.api import Voter
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId, TopicPartition

NODE = """
import os, sys, threading
from strandline.cluster.node import run_node

sys.path.insert(0, os.getcwd())
from tests.log import beneath

beneath.route()
flag, where, config = sys.argv[1:]
fdatasync = os.fdatasync
never = threading.Event()

def hangs(fd):
    on_loop = threading.current_thread() is threading.main_thread()
    if os.path.exists(flag) and on_loop == (where == "loop"):
        never.wait()
    fdatasync(fd)

os.fdatasync = hangs
sys.exit(run_node.main([config]))
"""

TIMEOUT_MS = 1_000
PATIENCE_S = 60.0


class Site:
    """A node of its own, and a client that sends to it."""

    def __init__(self, tmp_path: Path, where: str) -> None:
        internal = free_port()
        self.client = f"127.0.0.1:{free_port()}"
        self.flag = tmp_path / "hang"
        config = tmp_path / "node.properties"
        config.write_text(
            f"node.id=1\nlog.dirs={tmp_path}/data\ndisk.sync.timeout.ms={TIMEOUT_MS}\n"
            f"listeners=PLAINTEXT://{self.client},INTERNAL://127.0.0.1:{internal}\n"
            f"controller.quorum.voters={write_voters((Voter(NodeId(1), None, Endpoint('127.0.0.1', internal)),))}\n"
        )
        command = [sys.executable, "-m", "strandline.cli.main", "format", "--config", str(config)]
        subprocess.run(command, check=True, capture_output=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE, str(self.flag), where, str(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert "ready" in self.process.stdout.readline()

    def send_until_it_ends(self) -> str:
        """Records, one after the other, while the process lives; what it said in the end.

        A topic whose log start was raised is deleted once the disk hangs: that its log start no longer holds is written
        down at once, on the event loop.
        """
        with Admin(self.client) as admin:
            admin.create_topics([NewTopic(topic, 1, 1, {"min.insync.replicas": "1"}) for topic in ("t", "deleted")])
        settings = {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_000, "linger_ms": 0}
        with Producer(self.client, **settings) as producer:
            for topic in ("t", "deleted"):
                producer.send(topic, b"first").result()
            with Admin(self.client, default_api_timeout_ms=2_000, request_timeout_ms=1_000) as admin:
                admin.delete_records({TopicPartition("deleted", 0): -1})
                self.flag.touch()
                with suppress(KafkaError, ClientError, TimeoutError):
                    admin.delete_topics(["deleted"])
            until = time.monotonic() + PATIENCE_S
            while self.process.poll() is None and time.monotonic() < until:
                try:
                    producer.send("t", b"more").result()
                except (KafkaError, ClientError, TimeoutError):
                    continue
        return self.process.communicate(timeout=5)[1]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("thread", "a sync of {data} does not end: 1.0 s by now"),
        ("loop", "the disk of {data} has not answered for longer than disk.sync.timeout.ms, at {data}"),
    ],
)
def test_a_node_whose_disk_hangs_ends_by_itself(tmp_path: Path, where: str, says: str) -> None:
    """It waits for nobody, neither the thread that hangs nor its own event loop: exit code 1, and the reason."""
    site = Site(tmp_path, where)
    try:
        said = site.send_until_it_ends()
        assert site.process.returncode == 1, said
        assert f"strandline: {says.format(data=tmp_path / 'data')}" in said
    finally:
        site.process.kill()
        site.process.communicate()


def test_a_stop_does_not_wait_for_a_hung_sync(tmp_path: Path) -> None:
    """SIGTERM while a sync hangs: the node ends at the bound, uncleanly, and says so."""
    site = Site(tmp_path, "thread")
    try:
        with Admin(site.client) as admin:
            admin.create_topics([NewTopic("t", 1, 1, {"min.insync.replicas": "1"})])
        with Producer(site.client, delivery_timeout_ms=1_000, request_timeout_ms=500, linger_ms=0) as producer:
            producer.send("t", b"first").result()
            site.flag.touch()
            producer.send("t", b"second")
            site.process.send_signal(signal.SIGTERM)
            said = site.process.communicate(timeout=PATIENCE_S)[1]
        assert site.process.returncode == 1, said
        assert "strandline: a sync of" in said
        assert "does not end" in said
    finally:
        site.process.kill()
        site.process.communicate()
