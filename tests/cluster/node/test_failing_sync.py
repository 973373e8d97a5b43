"""A real node whose disk refuses one sync, and that is started again without a reboot (schedule 47): the page cache is
no proof that a disk has a record.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ports import free_port

from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.cluster.node.config_values import write_voters
from strandline.controller.quorum.api import Voter
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId

NODE = """
import errno, json, os, sys
from strandline.cluster.node import run_node

sys.path.insert(0, os.getcwd())
from tests.log import beneath

beneath.route()
flag, journal, config = sys.argv[1:]
pwrite, fdatasync = os.pwrite, os.fdatasync

def tell(*what):
    with open(journal, "a") as file:
        print(json.dumps(what), file=file)

def tells_pwrite(fd, data, position):
    tell("write", os.readlink(f"/proc/self/fd/{fd}"), position, len(data))
    return pwrite(fd, data, position)

def fails(fd):
    path = os.readlink(f"/proc/self/fd/{fd}")
    if os.path.exists(flag) and "/t-0/" in path:
        os.unlink(flag)
        tell("failed", path, 0, 0)
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    fdatasync(fd)
    tell("sync", path, 0, 0)

os.pwrite, os.fdatasync = tells_pwrite, fails
sys.exit(run_node.main([config]))
"""

REFUSED = b"refused " + bytes(10_000)
"""Several pages: the last one of a file is written anyway, when the file is cut to its batches."""


class Site:
    """One node that tells of every write and sync, and can be started again and again."""

    def __init__(self, tmp_path: Path) -> None:
        internal = free_port()
        self.client = f"127.0.0.1:{free_port()}"
        self.flag = tmp_path / "fail"
        self.segment = tmp_path / "data" / "t-0" / f"{0:020}.log"
        self._journal = tmp_path / "journal"
        self._config = tmp_path / "node.properties"
        self._config.write_text(
            f"node.id=1\nlog.dirs={tmp_path}/data\n"
            f"listeners=PLAINTEXT://{self.client},INTERNAL://127.0.0.1:{internal}\n"
            f"controller.quorum.voters={write_voters((Voter(NodeId(1), None, Endpoint('127.0.0.1', internal)),))}\n"
        )
        command = [sys.executable, "-m", "strandline.cli.main", "format", "--config", str(self._config)]
        subprocess.run(command, check=True, capture_output=True)

    def start(self) -> subprocess.Popen[str]:
        self._journal.write_text("")
        words = [str(self.flag), str(self._journal), str(self._config)]
        process = subprocess.Popen(
            [sys.executable, "-c", NODE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        return process

    def written(self) -> list[range]:
        """The bytes of the partition's segment that this life has written, write by write."""
        return [range(place, place + size) for what, place, size in self._told() if what == "write"]

    def failed(self) -> bool:
        """Whether a sync of the segment was refused."""
        return any(what == "failed" for what, _, _ in self._told())

    def synced_last(self) -> bool:
        """Whether nothing of the segment was written after its last sync."""
        return [what for what, _, _ in self._told()][-1] == "sync"

    def _told(self) -> list[tuple[str, int, int]]:
        lines = [json.loads(line) for line in self._journal.read_text().splitlines()]
        return [(what, place, size) for what, path, place, size in lines if path == str(self.segment)]


def test_what_a_failed_sync_left_is_written_again_before_it_counts(tmp_path: Path) -> None:
    """The record was never acknowledged, and stands in the page cache: the next start writes its bytes again, and syncs
    them after that."""
    site = Site(tmp_path)
    first = site.start()
    try:
        with Admin(site.client) as admin:
            admin.create_topics([NewTopic("t", 1, 1, {"min.insync.replicas": "1"})])
        with Producer(site.client, linger_ms=0) as producer:
            producer.send("t", b"acknowledged").result()
        with Producer(site.client, linger_ms=0, delivery_timeout_ms=3_000, request_timeout_ms=1_000) as producer:
            site.flag.touch()
            with pytest.raises((KafkaError, TimeoutError)):
                producer.send("t", REFUSED).result()
        assert site.failed()
        refused = site.written()[-1]
    finally:
        first.kill()
        first.communicate()
    second = site.start()
    try:
        assert set(refused) <= {byte for span in site.written() for byte in span}
        assert site.synced_last(), "what was written again was not synced after that"
        with Consumer(site.client) as consumer:
            consumer.assign([("t", 0)])
            consumer.seek_to_beginning()
            values = [record.value for record in consumer.poll(30.0)]
        assert values[0] == b"acknowledged"
        assert values[1:] in ([], [REFUSED])
    finally:
        second.kill()
        second.communicate()
