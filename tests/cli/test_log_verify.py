"""`strandline log verify` beside a real node, and on what it left."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.log.verifying import fingerprint, made

from strandline.cli.main import main
from strandline.client import Admin, NewTopic, Producer
from strandline.cluster.node.dev import DevCluster
from strandline.log.log_dir import read_meta_properties
from strandline.log.real_disk import RealDisk, RealLock
from strandline.proto.errors import DirectoryInUse


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["log", *map(str, words)])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node's directory after an orderly stop. While it ran, it was refused."""
    with DevCluster(nodes=1) as cluster:
        [node_id] = cluster.node_ids
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("orders", 2, 1)])
        with Producer(cluster.bootstrap) as producer:
            for i in range(20):
                producer.send("orders", b"x" * i)
        path = Path(cluster.data_dir(node_id))
        refused = run("verify", path)
        assert refused.exit_code == 2
        assert "uses this directory. Stop that process" in refused.stderr
        cluster.stop_node(node_id)
        target = tmp_path_factory.mktemp("stopped") / "data"
        shutil.copytree(path, target)
        yield target


def test_a_stopped_node(stopped: Path) -> None:
    """All of it is read, the metadata log too; nothing changes, and nothing is found."""
    before = fingerprint(stopped)
    told = run("verify", stopped, "-o", "json")
    assert (told.exit_code, told.stderr) == (0, ""), told.output
    document = json.loads(told.stdout)
    assert fingerprint(stopped) == before
    assert (document["flaws"], document["stopped_cleanly"], document["node_id"]) == ([], True, 1)
    assert document["partitions"] >= 3
    assert document["records"] > 20
    said = run("verify", stopped)
    assert "Nothing found that is wrong." in said.stdout


def test_the_quorums_files(stopped: Path, tmp_path: Path) -> None:
    """Damage in the metadata log and beside it: the node does not start, or goes on without the file."""
    root = tmp_path / "data"
    shutil.copytree(stopped, root)
    metadata = root / "__cluster_metadata-0"
    point_file = metadata / "recovery-point.properties"
    whole = point_file.read_bytes()
    point_file.write_bytes(b"crc=1\n")
    (root / "quorum-promise").write_bytes(b"{")
    told = json.loads(run("verify", root, "-o", "json").stdout)
    found = {flaw["file"]: flaw for flaw in told["flaws"]}
    assert set(found) == {"quorum-promise", "__cluster_metadata-0/recovery-point.properties"}
    point = found["__cluster_metadata-0/recovery-point.properties"]
    assert (point["at_start"], found["quorum-promise"]["at_start"]) == ("heal", "heal")
    point_file.write_bytes(whole)
    [promise] = json.loads(run("verify", root, "-o", "json").stdout)["flaws"]
    assert promise["at_start"] == "heal"
    [log] = metadata.glob("*.log")
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    told = run("verify", root)
    assert told.exit_code == 1
    assert "REFUSED: the node does not start" in told.stdout


def test_a_metadata_log_that_is_lost(stopped: Path, tmp_path: Path) -> None:
    """Its promise proves that there was one (rule A14); a snapshot that was not finished is left over."""
    root = tmp_path / "data"
    shutil.copytree(stopped, root)
    part = root / "__cluster_metadata-0" / "own.checkpoint.part"
    part.write_bytes(b"x")
    [left] = json.loads(run("verify", root, "-o", "json").stdout)["flaws"]
    assert (left["file"], left["at_start"]) == ("__cluster_metadata-0/own.checkpoint.part", "remove")
    shutil.rmtree(root / "__cluster_metadata-0")
    [lost] = json.loads(run("verify", root, "-o", "json").stdout)["flaws"]
    assert (lost["kind"], lost["at_start"]) == ("quorum", "heal")
    assert "its metadata directory is not there" in lost["found"]
    assert "strandline quorum restore-vote" in lost["does"]


def test_the_lock(tmp_path: Path) -> None:
    """Readers share it, keep a node out, write nothing into its file, and are kept out by a node."""
    root = made(tmp_path)
    disk = RealDisk()
    assert RealLock.take_to_read(str(root)) is None, "no process has had it yet"
    disk.lock(str(root)).release()
    (root / ".lock").write_text(f"pid=4194304\nhost={socket.gethostname()}\nsince=1\n")  # its process has ended
    before = fingerprint(root)
    first, second = RealLock.take_to_read(str(root)), RealLock.take_to_read(str(root))
    assert first is not None
    assert second is not None
    with pytest.raises(DirectoryInUse, match=r"or one that only reads it .`strandline log verify`., uses this"):
        disk.lock(str(root))
    assert run("verify", root).exit_code == 0
    assert fingerprint(root) == before
    first.release()
    second.release()
    lock = disk.lock(str(root))
    refused = run("verify", root)
    assert refused.exit_code == 2
    assert "uses this directory" in refused.stderr
    lock.release()
    disk.close()


def test_a_node_that_comes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy without a lock cannot be held: whoever takes it meanwhile is noticed at the end."""
    root = made(tmp_path)

    def read(*arguments: object) -> object:
        (root / ".lock").write_bytes(b"")
        return read_meta_properties(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("strandline.log.verify.directory.read_meta_properties", read)
    told = run("verify", root)
    assert told.exit_code == 2
    assert "a node began to use it meanwhile" in told.stderr


def test_for_people(tmp_path: Path) -> None:
    """Each finding in two lines, with its place and what a start does."""
    root = made(tmp_path)
    first = min((root / "orders-0").glob("*.log"))
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    told = run("verify", root)
    assert told.exit_code == 1
    assert f"! orders-0/{first.name} (byte 0, offset 0, whole again from offset 3): the batch's CRC" in told.stdout
    assert "    is healed: no start reads this far back." in told.stdout
    assert "1 finding.\n" in told.stdout
    wrong = run("verify", tmp_path)
    assert wrong.exit_code == 2
    assert "strandline format" in wrong.stderr
