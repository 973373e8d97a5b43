"""The quorum's own files and bytes: quorum-state, control records, snapshots, the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.k_raft_version_record.v0 import KRaftVersionRecord as KafkaVersionRecord
from kio.schema.voters_record.v0 import VotersRecord as KafkaVotersRecord
from kio.serial import entity_reader

from strandline.controller.quorum.control_records import (
    ControlType,
    control_type,
    leader_change,
    read_voters,
    snapshot_header,
    voters_records,
)
from strandline.controller.quorum.methods import METHODS, encode_response
from strandline.controller.quorum.recovery_point import FILE_NAME, RecoveryPoint
from strandline.controller.quorum.snapshots import Snapshot, SnapshotStore, encode_snapshot
from strandline.controller.quorum.state_file import Remembered, StateFile
from strandline.controller.quorum.state_file import _decode as decode_state
from strandline.controller.quorum.state_file import _encode as encode_state
from strandline.controller.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderChange,
    OffsetAndEpoch,
    ReplicaKey,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
    VotersChange,
)
from strandline.controller.raft.ready import ElectionState
from strandline.log.batch import Record, build_batch, decode_records, iter_batches
from strandline.log.disk import File
from strandline.log.real_disk import RealDisk
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import CorruptLogError, FatalError, ProtocolError
from strandline.proto.ids import Endpoint, NodeId
from strandline.proto.steps import Steps

ONE = ReplicaKey(NodeId(1), UUID(int=7))


# --- quorum-state ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        Remembered(ElectionState(0)),
        Remembered(ElectionState(3, leader_id=NodeId(2))),
        Remembered(ElectionState(4, voted_for=ONE)),
        Remembered(ElectionState(4, voted_for=ReplicaKey(NodeId(1), None))),
        Remembered(ElectionState(4), UUID(int=5), False, UUID(int=6), 3, OffsetAndEpoch(2**62, 4), 2**62),
    ],
)
def test_quorum_state_comes_back(tmp_path: Path, state: Remembered) -> None:
    """Rules A1, A2: what was written is what a restart reads."""
    file = StateFile(RealDisk(), str(tmp_path))
    assert file.read() is None
    file.write(Remembered(ElectionState(1, leader_id=NodeId(9))))
    file.write(state)
    assert StateFile(RealDisk(), str(tmp_path)).read() == state


@pytest.mark.parametrize("state", [ElectionState(2**31), ElectionState(-1), ElectionState(1, NodeId(2**31))])
def test_a17_a_state_that_could_not_be_read_back_is_not_written(tmp_path: Path, state: ElectionState) -> None:
    """Schedule 62: a file that its own program refuses keeps a node down for good."""
    file = StateFile(RealDisk(), str(tmp_path))
    file.write(Remembered(ElectionState(1)))
    with pytest.raises(FatalError, match="cannot be written down"):
        file.write(Remembered(state))
    assert file.read() == Remembered(ElectionState(1))


def test_quorum_state_is_kafkas_json(tmp_path: Path) -> None:
    """QuorumStateData version 1, so that Kafka's operators read it; our own fields stand behind Kafka's."""
    StateFile(RealDisk(), str(tmp_path)).write(Remembered(ElectionState(4, voted_for=ONE)))
    fields = json.loads((tmp_path / "quorum-state").read_text())
    assert dict(list(fields.items())[:5]) == {
        "leaderId": -1,
        "leaderEpoch": 4,
        "votedId": 1,
        "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAABw",
        "data_version": 1,
    }


def test_kafkas_older_quorum_state_is_read(tmp_path: Path) -> None:
    """Version 0 has no directory id and more fields."""
    text = (
        '{"clusterId":"","leaderId":2,"leaderEpoch":9,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":1}],'
    )
    (tmp_path / "quorum-state").write_text(text + '"data_version":0}')
    assert StateFile(RealDisk(), str(tmp_path)).read() == Remembered(ElectionState(9, leader_id=NodeId(2)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"leaderId":1,"leaderEpoch":2,"votedId":-1,"data_version":2}',
        '{"leaderId":1,"leaderEpoch":-2,"votedId":-1,"data_version":1}',
        '{"leaderId":"1","leaderEpoch":2,"votedId":-1,"data_version":1}',
        '{"leaderId":true,"leaderEpoch":2,"votedId":-1,"data_version":1}',
        '{"leaderId":-1,"leaderEpoch":2,"votedId":1,"votedDirectoryId":"AAA","data_version":1}',
        '{"leaderId":-1,"leaderEpoch":2,"votedId":1,"votedDirectoryId":5,"data_version":1}',
    ],
)
def test_a_damaged_quorum_state_is_refused_with_file_and_advice(tmp_path: Path, text: str) -> None:
    """Rule A1: starting as if it had never voted could elect two leaders."""
    (tmp_path / "quorum-state").write_text(text)
    with pytest.raises(CorruptLogError, match=r"quorum-state.*could elect two leaders"):
        StateFile(RealDisk(), str(tmp_path)).read()


def test_a_flipped_bit_in_the_state_is_noticed() -> None:
    """Rule A14: a digit that became another would be another epoch, or another vote; every bit is under the
    checksum."""
    state = Remembered(ElectionState(41, voted_for=ONE), UUID(int=5), held=OffsetAndEpoch(1234, 40), sequence=7)
    good = encode_state(state)
    for position, bit in product(range(len(good)), range(8)):
        flipped = good[:position] + bytes([good[position] ^ (1 << bit)]) + good[position + 1 :]
        try:
            read = decode_state(flipped)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        assert read == state, "only the checksum's own name may change unnoticed"


def test_a_half_written_successor_does_not_hide_the_state(tmp_path: Path) -> None:
    """Rule A1: a crash in the middle of a write leaves the old content."""
    StateFile(RealDisk(), str(tmp_path)).write(Remembered(ElectionState(4, voted_for=ONE)))
    (tmp_path / "quorum-state.tmp").write_text('{"leaderId":1,"lead')
    assert StateFile(RealDisk(), str(tmp_path)).read() == Remembered(ElectionState(4, voted_for=ONE))


# --- recovery point --------------------------------------------------------------------------------------------------


def test_recovery_point_tells_the_same_boot_from_another(tmp_path: Path) -> None:
    """Rule E5: what recovery may cut depends on both. Half a file is refused, wherever it ends."""
    disk = RealDisk()
    point = RecoveryPoint(disk, str(tmp_path))
    assert (point.read().recovery_point, point.read().same_boot) == (0, False)
    point.note(42)
    life = RecoveryPoint(disk, str(tmp_path)).read()
    assert (life.recovery_point, life.same_boot) == (42, bool(disk.boot_id()))
    file = tmp_path / FILE_NAME
    file.write_text("recovery.point=42\nboot.id=another\n")  # as an earlier version wrote it
    assert RecoveryPoint(disk, str(tmp_path)).read().same_boot is False
    point.lower_to(50)
    assert RecoveryPoint(disk, str(tmp_path)).read().recovery_point == 42
    point.lower_to(7)
    assert RecoveryPoint(disk, str(tmp_path)).read().recovery_point == 7
    whole = file.read_bytes()
    flipped = bytes([whole[-2] ^ 1])
    cut = (whole[:end] for end in range(len(whole)))
    for damaged in [b"recovery.point=x\n", whole[:-2] + flipped + b"\n", whole.replace(b"=7\n", b"=9\n"), *cut]:
        file.write_bytes(damaged)
        with pytest.raises(CorruptLogError, match="The start writes it anew"):
            RecoveryPoint(disk, str(tmp_path)).read()


# --- control records -------------------------------------------------------------------------------------------------


def test_leader_change_is_kafkas_message() -> None:
    """LeaderChangeMessage version 0: key (version 0, type 2), compact arrays, empty tags."""
    voters = (ReplicaKey(NodeId(1), UUID(int=1)), ReplicaKey(NodeId(2), UUID(int=2)))
    record = leader_change(LeaderChange(NodeId(2), voters, voters[1:]), 5)
    assert record.key == bytes.fromhex("00000002")
    assert record.value == bytes.fromhex("0000 00000002 03 00000001 00 00000002 00 02 00000002 00 00")
    assert control_type(record) is ControlType.LEADER_CHANGE


def test_snapshot_header_is_kafkas_message() -> None:
    """SnapshotHeaderRecord version 0."""
    record = snapshot_header(258, 5)
    assert record.key == bytes.fromhex("00000003")
    assert record.value == bytes.fromhex("0000 0000000000000102 00")


VOTERS = VotersChange((ReplicaKey(NodeId(1), UUID(int=1)), ReplicaKey(NodeId(3), None)))
DYNAMIC = VotersChange(
    (ReplicaKey(NodeId(1), UUID(int=1)), ReplicaKey(NodeId(3), UUID(int=33))),
    1,
    (Endpoint("n1.example", 19092), Endpoint("x" * 200, 40000)),
)


def test_voters_record_is_kafkas_message() -> None:
    """VotersRecord version 0, type 6, as another implementation of the schema reads it."""
    (record,) = voters_records(VOTERS, 5)
    assert record.key == bytes.fromhex("00000006")
    assert record.value is not None
    read, size = entity_reader(KafkaVotersRecord)(record.value, 0)
    assert size == len(record.value)
    assert [(voter.voter_id, voter.voter_directory_id, voter.endpoints) for voter in read.voters] == [
        (1, UUID(int=1), ()),
        (3, None, ()),
    ]
    assert read_voters([leader_change(LeaderChange(NodeId(1), (), ()), 5), record]) == VOTERS
    assert read_voters([snapshot_header(1, 1)]) is None


def test_voters_of_kraft_version_1_are_kafkas_messages() -> None:
    """KIP-853, rule A36: a KRaftVersionRecord of type 5 and the voters with their endpoints, as Kafka's schemas say."""
    version, record = voters_records(DYNAMIC, 5)
    assert (version.key, record.key) == (bytes.fromhex("00000005"), bytes.fromhex("00000006"))
    assert version.value is not None
    assert record.value is not None
    said, size = entity_reader(KafkaVersionRecord)(version.value, 0)
    assert (said.version, said.k_raft_version, size) == (0, 1, len(version.value))
    read, size = entity_reader(KafkaVotersRecord)(record.value, 0)
    assert size == len(record.value)
    assert [
        (voter.voter_id, voter.voter_directory_id, [(one.name, one.host, one.port) for one in voter.endpoints])
        for voter in read.voters
    ] == [(1, UUID(int=1), [("INTERNAL", "n1.example", 19092)]), (3, UUID(int=33), [("INTERNAL", "x" * 200, 40000)])]
    ranges = [voter.k_raft_version_feature for voter in read.voters]
    assert {(one.min_supported_version, one.max_supported_version) for one in ranges} == {(0, 1)}
    assert read_voters([version, record]) == DYNAMIC
    batch = build_batch([version, record], base_offset=7, leader_epoch=2, control=True)
    assert read_voters(decode_records(batch)) == DYNAMIC


def test_voters_of_kraft_version_1_that_cannot_be_are_refused() -> None:
    """Without the version before them, cut, with an open directory, or of a version that this build does not know."""
    version, record = voters_records(DYNAMIC, 5)
    assert version.value is not None
    assert record.value is not None
    open_one = voters_records(replace(DYNAMIC, voters=VOTERS.voters), 5)
    wrong = [[version, record._replace(value=record.value[:size])] for size in range(len(record.value))]
    newer = version._replace(value=version.value[:3] + b"\2" + version.value[4:])
    for records in (*wrong, [record], open_one, [newer, record], [version._replace(value=b"\0\0"), record]):
        with pytest.raises(ProtocolError):
            read_voters(records)


def test_a_voters_record_that_cannot_be_is_refused() -> None:
    """Cut, doubled or overlong, a node twice, a negative one, another version, nobody at all."""
    value = voters_records(VOTERS, 5)[0].value
    assert value is not None
    twice = voters_records(VotersChange(VOTERS.voters[:1] * 2), 5)[0].value
    negative = voters_records(VotersChange((ReplicaKey(NodeId(-1), None),)), 5)[0].value
    wrong = [value[:size] for size in range(len(value))] + [value + b"x", value * 2, b"\0\1" + value[2:], b"\0\0\1\0"]
    for data in (*wrong, twice, negative):
        with pytest.raises(ProtocolError):
            read_voters([Record(0, 0, bytes.fromhex("00000006"), data)])


def test_foreign_control_records() -> None:
    """A newer type is known to be unknown; a key that is none is the peer's mistake."""
    assert control_type(Record(0, 0, bytes.fromhex("00000009"), b"")) is None
    for key in (None, b"", b"\0\0\0", b"\0" * 5):
        with pytest.raises(ProtocolError):
            control_type(Record(0, 0, key, b""))


# --- snapshots -------------------------------------------------------------------------------------------------------


def write(store: SnapshotStore, offset: int, epoch: int, values: list[bytes]) -> int:
    return asyncio.run(store.write(OffsetAndEpoch(offset, epoch), values, timestamp_ms=1))


def test_a_snapshot_comes_back_under_kafkas_name(tmp_path: Path) -> None:
    """KIP-630: <offset>-<epoch>.checkpoint, batches framed by header and footer."""
    store = SnapshotStore(RealDisk(), str(tmp_path))
    values = [b"v%d" % i * 40 for i in range(1000)]
    size = write(store, 12, 3, values)
    path = tmp_path / "00000000000000000012-0000000003.checkpoint"
    assert path.stat().st_size == size
    again = SnapshotStore(RealDisk(), str(tmp_path))
    assert again.latest == OffsetAndEpoch(12, 3)
    assert again.load(OffsetAndEpoch(12, 3)) == Snapshot(values, None)
    headers = [header for header, _ in iter_batches(path.read_bytes())]
    assert [header.is_control for header in headers] == [True, False, False, True]
    assert [header.base_offset for header in headers] == [0, 1, 847, 1001]
    assert {header.leader_epoch for header in headers} == {3}


def test_a_snapshot_says_who_voted(tmp_path: Path) -> None:
    """Rule A11: the voter set stands beside the header, and comes back with the records."""
    store = SnapshotStore(RealDisk(), str(tmp_path))
    for said in (VOTERS, DYNAMIC):
        asyncio.run(store.write(OffsetAndEpoch(12, 3), [b"a"], timestamp_ms=1, voters=said))
        assert store.load(OffsetAndEpoch(12, 3)) == Snapshot([b"a"], said)


def test_large_and_empty_snapshots() -> None:
    """Batches of about a megabyte; no data at all."""
    large = encode_snapshot([b"x" * 600_000] * 5, epoch=1, timestamp_ms=1)
    counts = [len(decode_records(view)) for header, view in iter_batches(large) if not header.is_control]
    assert counts == [1] * 5
    empty = encode_snapshot([], epoch=1, timestamp_ms=1)
    assert [header.is_control for header, _ in iter_batches(empty)] == [True, True]


def test_an_incomplete_snapshot_is_refused(tmp_path: Path) -> None:
    """Schedule 31: a torn end, a missing footer, a missing header; nothing of it is used."""
    store = SnapshotStore(RealDisk(), str(tmp_path))
    write(store, 9, 2, [b"one", b"two", b"three"])
    path = tmp_path / "00000000000000000009-0000000002.checkpoint"
    good = path.read_bytes()
    starts = [sum(header.size for header, _ in list(iter_batches(good))[:count]) for count in range(3)]
    for length in [0, *starts, *range(1, len(good), 11)]:
        path.write_bytes(good[:length])
        with pytest.raises(CorruptLogError, match="will not serve metadata"):
            store.load(OffsetAndEpoch(9, 2))
    path.write_bytes(good[starts[1] :])
    with pytest.raises(CorruptLogError, match="header"):
        store.load(OffsetAndEpoch(9, 2))


def test_a_flipped_bit_in_a_snapshot_is_noticed(tmp_path: Path) -> None:
    """Schedule 31 (nats-server#7556): anywhere in a batch from its CRC on."""
    store = SnapshotStore(RealDisk(), str(tmp_path))
    write(store, 9, 2, [b"payload"])
    path = tmp_path / "00000000000000000009-0000000002.checkpoint"
    good = path.read_bytes()
    first, second = (header.size for header, _ in list(iter_batches(good))[:2])
    for position in range(first + 17, first + second):
        damaged = bytearray(good)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CorruptLogError):
            store.load(OffsetAndEpoch(9, 2))


def test_two_snapshots_are_kept_and_parts_are_swept(tmp_path: Path) -> None:
    """Rule A10: the log is deleted below the older of the two kept; half-written ones do not exist."""
    store = SnapshotStore(RealDisk(), str(tmp_path))
    for offset in (3, 6, 9):
        write(store, offset, 1, [b"x"])
    assert store.drop_old() == OffsetAndEpoch(6, 1)
    assert store.ids == [OffsetAndEpoch(6, 1), OffsetAndEpoch(9, 1)]
    store.store_chunk(OffsetAndEpoch(20, 2), 0, b"half")
    (tmp_path / "own.checkpoint.part").write_bytes(b"half")
    again = SnapshotStore(RealDisk(), str(tmp_path))
    assert again.ids == [OffsetAndEpoch(6, 1), OffsetAndEpoch(9, 1)]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".checkpoint", ".checkpoint"]


def test_a_fetched_snapshot_is_checked_before_it_exists(tmp_path: Path) -> None:
    """Rule A10, KAFKA-15312: frozen (synced and renamed) only when whole; a damaged one leaves nothing."""
    store = SnapshotStore(RealDisk(), str(tmp_path))
    snapshot = OffsetAndEpoch(5, 1)
    data = encode_snapshot([b"a", b"b"], epoch=1, timestamp_ms=1)
    store.store_chunk(snapshot, 0, data[:50])
    with pytest.raises(CorruptLogError):
        store.fetched(snapshot)
    assert list(tmp_path.iterdir()) == []
    store.store_chunk(snapshot, 0, data[:50])
    store.store_chunk(snapshot, 50, data[50:])
    assert store.fetched(snapshot) == Snapshot([b"a", b"b"], None)
    store.install(snapshot)
    assert store.load(snapshot) == Snapshot([b"a", b"b"], None)
    with pytest.raises(CorruptLogError, match="no bytes"):
        store.fetched(OffsetAndEpoch(6, 1))


class RottingDisk(RealDisk):
    """What it has synced has one bit turned over."""

    async def sync(self, files: Sequence[File], directories: Sequence[str] = (), wait_ms: float = 0.0) -> None:
        await super().sync(files, directories, wait_ms)
        for file in files:
            (byte,) = file.pread(1, 80)
            file.pwrite(bytes([byte ^ 1]), 80)


def test_an_own_snapshot_is_read_back_before_it_exists(tmp_path: Path) -> None:
    """One that is not what was written, or that `check` refuses, leaves nothing behind."""
    snapshot = OffsetAndEpoch(5, 1)
    store = SnapshotStore(RottingDisk(), str(tmp_path))
    with pytest.raises(CorruptLogError):
        asyncio.run(store.write(snapshot, [b"a" * 100], timestamp_ms=1))
    assert (store.ids, list(tmp_path.iterdir())) == ([], [])
    store = SnapshotStore(RealDisk(), str(tmp_path))

    def refuse(content: Snapshot) -> Steps[None]:
        yield
        assert content == Snapshot([b"a"], None)
        raise FatalError("nobody can load this")

    with pytest.raises(FatalError, match="nobody can load this"):
        asyncio.run(store.write(snapshot, [b"a"], timestamp_ms=1, check=refuse))
    assert (store.ids, list(tmp_path.iterdir())) == ([], [])
    asyncio.run(store.write(snapshot, [b"a"], timestamp_ms=1))
    assert store.ids == [snapshot]


def test_reading_a_snapshot_by_pieces(tmp_path: Path) -> None:
    """Rule A10: positioned; unknown ones are told apart from wrong positions."""
    store = SnapshotStore(RealDisk(), str(tmp_path))
    size = write(store, 5, 1, [b"abc"])

    async def read_all() -> bytes:
        out = b""
        while len(out) < size:
            found = await store.read(OffsetAndEpoch(5, 1), len(out), 10)
            assert found is not None
            assert found[0] == size
            out += found[1]
        assert await store.read(OffsetAndEpoch(5, 1), size + 5, 10) == (size, b"")
        assert await store.read(OffsetAndEpoch(6, 1), 0, 10) is None
        return out

    assert asyncio.run(read_all()) == (tmp_path / "00000000000000000005-0000000001.checkpoint").read_bytes()


# --- the wire --------------------------------------------------------------------------------------------------------

REQUESTS: list[Request] = [
    VoteRequest("c", ONE, 3, ReplicaKey(NodeId(2), None), OffsetAndEpoch(5, 2), True),
    BeginQuorumEpochRequest("c", NodeId(1), 3, ONE),
    EndQuorumEpochRequest("c", NodeId(1), 3, (ONE, ReplicaKey(NodeId(3), None))),
    FetchRequest("c", ONE, 3, 9, 2, 7, 500, 1000),
    FetchSnapshotRequest("c", ONE, 3, OffsetAndEpoch(5, 2), 70, 1000),
]
RESPONSES: list[Response] = [
    VoteResponse(ErrorCode.NONE, 3, NodeId(0), True),
    BeginQuorumEpochResponse(ErrorCode.FENCED_LEADER_EPOCH, 4, None),
    EndQuorumEpochResponse(ErrorCode.NONE, 4, NodeId(2)),
    FetchResponse(ErrorCode.NONE, 3, NodeId(1), -1, 5, OffsetAndEpoch(0, 0), None),
    FetchSnapshotResponse(ErrorCode.POSITION_OUT_OF_RANGE, 3, None, OffsetAndEpoch(5, 2), 9, 3, b"xyz"),
]


def test_messages_come_back_from_the_wire() -> None:
    """Leader 0 is not "no leader", an empty diverging point is not "none", the unknown high watermark is -1."""
    for request, response in zip(REQUESTS, RESPONSES, strict=True):
        method = METHODS[type(request)]
        assert method.request.decode(method.request.encode(request)) == request
        assert method.reply.decode(encode_response(response)) == response


@pytest.mark.parametrize(
    "lie",
    [
        replace(REQUESTS[0], candidate_epoch=-1),
        replace(REQUESTS[0], last=OffsetAndEpoch(-1, 2)),
        replace(REQUESTS[1], leader_id=NodeId(-1)),
        replace(REQUESTS[2], preferred_candidates=(ReplicaKey(NodeId(-2), None),)),
        replace(REQUESTS[3], fetch_offset=-1),
        replace(REQUESTS[3], life=-(2**63)),
        replace(REQUESTS[4], position=-1),
    ],
    ids=lambda lie: type(lie).__name__,
)
def test_a17_a_number_below_zero_is_refused(lie: Request) -> None:
    """Before the core sees it: an epoch, an offset or an id that cannot be."""
    request = METHODS[type(lie)].request
    with pytest.raises(ProtocolError, match="is below 0"):
        request.decode(request.encode(lie))


def test_records_on_the_wire_are_cut_into_batches() -> None:
    """Whole Kafka batches; damage is the peer's mistake and reaches no log."""
    data = bytearray()
    for base in (4, 5):
        data += build_batch([Record(0, 1, None, b"value")], base_offset=base, leader_epoch=3)
    answer = FetchResponse(ErrorCode.NONE, 3, NodeId(1), 6, 0)
    method = METHODS[type(REQUESTS[3])]
    decoded = method.reply.decode(encode_response(answer, data))
    assert isinstance(decoded, FetchResponse)
    assert [(b.base_offset, b.next_offset, b.epoch) for b in decoded.batches] == [(4, 5, 3), (5, 6, 3)]
    for bad in (data[:-1], data[:30], data[:-1] + b"X"):
        with pytest.raises(ProtocolError):
            method.reply.decode(encode_response(answer, bad))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 4), st.binary(max_size=80))
def test_random_bytes_are_a_protocol_error_or_a_message(index: int, data: bytes) -> None:
    """No other exception, whatever arrives."""
    method = list(METHODS.values())[index]
    for message in (method.request, method.reply):
        try:
            message.decode(data)
        except ProtocolError:
            continue


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 4), st.data())
def test_truncated_and_altered_messages(index: int, data: st.DataObject) -> None:
    """Cut or flipped encodings of real messages."""
    request = METHODS[type(REQUESTS[index])].request
    raw = bytearray(request.encode(REQUESTS[index]))
    cut = data.draw(st.integers(0, len(raw) - 1))
    raw[cut] ^= data.draw(st.integers(1, 255))
    for candidate in (bytes(raw), bytes(raw[:cut])):
        try:
            request.decode(candidate)
        except ProtocolError:
            continue
