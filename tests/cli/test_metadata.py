"""`strandline metadata`: who led when and why (row S83), the image at an offset, what cannot be; and no secret."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.controller.conftest import MachineCluster

from strandline.cli.main import main
from strandline.controller import broker_api
from strandline.controller.machine import brokers
from strandline.controller.metadata.delta import MetadataDelta
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import MetadataRecord, PartitionChangeRecord
from strandline.controller.metadata.scram import ScramSecretRecord, UserScramCredentialRecord
from strandline.controller.metadata.snapshot import image_records
from strandline.controller.metadata.table import encode_records
from strandline.controller.quorum.control_records import leader_change
from strandline.controller.quorum.metadata_log import build_data_batch
from strandline.controller.quorum.snapshots import encode_snapshot
from strandline.controller.raft.messages import LeaderChange, ReplicaKey
from strandline.log.batch import build_batch
from strandline.proto.ids import NodeId

SECRET = b"\x5ecret-bytes-of-the-salts-32bytes"
KEY = b"a-key-of-a-user-with-32-bytes!!!"
NOON_MS = 1_700_000_000_000


class Recorded:
    """A directory with the log of what a controller decided: a batch a command, the leader's own first."""

    def __init__(self, path: Path) -> None:
        self.directory = path / "__cluster_metadata-0"
        self.directory.mkdir(parents=True)
        self.cluster = MachineCluster(3)
        self.ends = list(range(1, len(self.cluster.log) + 1))
        """Numbers of records before and in each batch."""
        self.cluster.on_append = lambda _: self.ends.append(len(self.cluster.log))
        self.cluster.create("orders", [[1, 2, 3], [2, 3, 1]], min_insync_replicas="2")
        self.cluster.alter_isr([1, 2], "orders", 0)
        self.cluster.alter_isr([1, 2, 3], "orders", 0)
        self.cluster.fence(1)

    @property
    def log(self) -> Path:
        return self.directory / "00000000000000000000.log"

    def batches(self, records: Sequence[MetadataRecord] = ()) -> list[bytes]:
        voters = tuple(ReplicaKey(NodeId(node), None) for node in (1, 2, 3))
        opened = leader_change(LeaderChange(NodeId(2), voters, voters), NOON_MS)
        built = [bytes(build_batch([opened], base_offset=0, leader_epoch=1, control=True))]
        everything, begin = [*self.cluster.log, *records], 0
        for end in [*self.ends, *range(self.ends[-1] + 1, len(everything) + 1)]:
            data = build_data_batch(
                encode_records(everything[begin:end]),
                base_offset=begin + 1,
                epoch=1,
                timestamp_ms=NOON_MS + (begin + 1) * 1_000,
            )
            built.append(bytes(data))
            begin = end
        return built

    def write(self, records: Sequence[MetadataRecord] = ()) -> Recorded:
        self.log.write_bytes(b"".join(self.batches(records)))
        return self

    def image(self, count: int) -> MetadataImage:
        delta = MetadataDelta(MetadataImage("test-cluster"))
        delta.apply_all(self.cluster.log[:count])
        return delta.image(count, 1, 0)

    def snapshot(self, count: int, records: Sequence[MetadataRecord] | None = None) -> None:
        said = image_records(self.image(count)) if records is None else records
        data = encode_snapshot(encode_records(said), epoch=1, timestamp_ms=NOON_MS)
        (self.directory / f"{count + 1:020d}-{1:010d}.checkpoint").write_bytes(data)


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "node").write()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["metadata", *map(str, arguments)])


def answer(*arguments: object) -> Any:
    result = run(*arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_s83_each_election_is_one_record_that_says_who_when_why_and_in_which_epoch(recorded: Recorded) -> None:
    """Row S83, and for people: the same in a line."""
    told = answer("history", recorded.directory.parent, "--topic", "orders", "--partition", 0, "--elections")["records"]
    created, elected = told
    assert (created["leader_before"], created["record"]["leader"], created["leader_epoch"]) == (None, 1, 0)
    assert (elected["leader_before"], elected["record"]["leader"], elected["leader_epoch"]) == (1, 2, 1)
    assert elected["why"] == "broker 1 fenced in a test: elected from the ISR"
    assert elected["controller"] == 2
    assert elected["epoch"] == 1
    assert elected["timestamp_ms"] == NOON_MS + elected["offset"] * 1_000
    shown = run("history", recorded.directory.parent, "--topic", "orders", "--elections").output
    assert "leader 2, ISR [2,3]" in shown
    assert "node 2" in shown
    assert "why: broker 1 fenced in a test: elected from the ISR" in shown


def test_history_of_a_broker_has_its_own_records_and_those_of_what_it_led(recorded: Recorded) -> None:
    told = answer("history", recorded.directory, "--broker", 1)["records"]
    assert {one["kind"] for one in told} >= {"RegisterBrokerRecord", "BrokerChangeRecord", "PartitionChangeRecord"}
    assert all(one["broker"] == 1 or one["topic"] == "orders" for one in told)
    assert not [one for one in told if one["broker"] in (2, 3)]
    assert all(one["what"] for one in told)


def test_dump_is_the_image_at_any_offset_that_the_log_has(recorded: Recorded) -> None:
    """With a snapshot or without one: what it says at an offset is what replaying up to there gives."""
    end = len(recorded.cluster.log)
    for snapshot in (None, recorded.ends[-2]):
        if snapshot is not None:
            recorded.snapshot(snapshot)
        for count in recorded.ends:
            told = answer("dump", recorded.directory.parent, "--at", count)
            image = recorded.image(count)
            assert [one["node_id"] for one in told["brokers"]] == sorted(image.brokers)
            assert [one["fenced"] for one in told["brokers"]] == [
                image.brokers[n].fenced for n in sorted(image.brokers)
            ]
            parts = [part for topic in told["topics"] for part in topic["partitions"]]
            assert [part["isr"] for part in parts] == [list(part.isr) for _, part in image.partitions()]
            assert told["offset"] == count
    assert answer("dump", recorded.directory)["topics"][0]["configs"] == {"min.insync.replicas": "2"}
    beyond = run("dump", recorded.directory, "--at", end + 5)
    assert beyond.exit_code == 2
    assert f"up to {end}" in beyond.output


def test_dump_where_the_log_begins_behind_a_snapshot(recorded: Recorded) -> None:
    """What was deleted below the snapshot is named, not guessed."""
    kept = recorded.batches()[-2:]
    last = recorded.ends[-3]
    recorded.snapshot(last)
    recorded.log.unlink()
    (recorded.directory / f"{last + 1:020d}.log").write_bytes(b"".join(kept))
    assert answer("dump", recorded.directory)["offset"] == recorded.ends[-1]
    before = run("dump", recorded.directory, "--at", 2)
    assert before.exit_code == 2
    assert f"an offset from {last} on" in before.output
    assert answer("history", recorded.directory)["begins_at"] == last + 1
    assert answer("check", recorded.directory)["found"] == []


def test_no_secret_is_shown(recorded: Recorded) -> None:
    """Neither keys nor salts of a user, nor the secret of the cluster: in no form that the commands write."""
    credential = UserScramCredentialRecord("alice", 1, b"salt-of-alice", 4096, KEY, KEY)
    recorded.write([ScramSecretRecord(SECRET[:32]), credential])
    for command in (("dump",), ("history",)):
        for form in ("table", "json"):
            shown = run(*command, recorded.directory, "--output", form).output
            assert "alice" in shown
            for secret in (SECRET[:32], KEY, b"salt-of-alice"):
                for text in (secret.decode(), secret.hex(), str(list(secret))[1:-1], repr(secret)[2:-1]):
                    assert text not in shown


@pytest.mark.parametrize("tail", [b"", b"\0" * 4096, b"half"])
def test_an_end_that_is_not_whole_is_not_there_yet(recorded: Recorded, tail: bytes) -> None:
    """The node may run, and write just now: half a batch, or room that it has reserved."""
    batches = recorded.batches()
    half = batches[-1][: len(batches[-1]) // 2] if tail == b"half" else tail
    recorded.log.write_bytes(b"".join(batches[: -1 if tail == b"half" else None]) + half)
    assert answer("check", recorded.directory)["found"] == []
    assert answer("dump", recorded.directory)["offset"] == recorded.ends[-2 if tail == b"half" else -1]
    before = recorded.log.read_bytes()
    run("history", recorded.directory)
    assert recorded.log.read_bytes() == before
    assert [path.name for path in recorded.directory.iterdir()] == [recorded.log.name], "and nothing was made"


def found(directory: Path) -> list[dict[str, str]]:
    result = run("check", directory, "--output", "json")
    assert result.exit_code == 1, result.output
    told: list[dict[str, str]] = json.loads(result.output)["found"]
    assert all(one["advice"] for one in told)
    return told


def test_check_names_damage_in_the_middle(recorded: Recorded) -> None:
    batches = recorded.batches()
    flipped = bytearray(batches[5])
    flipped[-1] ^= 1
    recorded.log.write_bytes(b"".join([*batches[:5], bytes(flipped), *batches[6:]]))
    told = found(recorded.directory)
    assert any("byte" in one["where"] for one in told)


def test_check_names_a_gap(recorded: Recorded) -> None:
    """A batch that nobody can miss for the replay, and is not there."""
    batches = recorded.batches()
    recorded.log.write_bytes(b"".join([*batches[:-2], batches[-1]]))
    assert any("is to come" in one["found"] or "offset" in one["found"] for one in found(recorded.directory))


def test_check_names_a_snapshot_that_says_something_else(recorded: Recorded) -> None:
    count = recorded.ends[-2]
    honest = image_records(recorded.image(count))
    recorded.snapshot(count, honest)
    assert answer("check", recorded.directory)["found"] == []
    recorded.snapshot(count, [replace(one, rack="elsewhere") if hasattr(one, "rack") else one for one in honest])
    assert any("not what the log says" in one["found"] for one in found(recorded.directory))


def test_check_names_what_cannot_be_replayed(recorded: Recorded) -> None:
    """A record that does not fit, and from there on nothing is believed."""
    topic = recorded.cluster.image.topics["orders"].topic_id
    recorded.write([PartitionChangeRecord(topic, 9, leader=NodeId(1))])
    [one] = found(recorded.directory)
    assert "does not exist" in one["found"]


def test_check_names_replicas_on_nobodys_broker(recorded: Recorded) -> None:
    cluster = recorded.cluster
    cluster.run(brokers.unregister_broker(cluster.state, broker_api.UnregisterBrokerRequest(NodeId(1))))
    recorded.write()
    told = found(recorded.directory)
    assert {one["where"] for one in told} == {"orders-0", "orders-1"}
    assert all("not registered" in one["found"] for one in told)


def test_a_directory_without_metadata_is_named(tmp_path: Path) -> None:
    result = run("dump", tmp_path)
    assert result.exit_code == 2
    assert "main log directory" in result.output
    result = run("dump", "--at", 3)
    assert result.exit_code == 2
    assert "DIRECTORY" in result.output
