"""AlterUserScramCredentials in the machine: Kafka's errors, one outcome a user; what a snapshot keeps."""

from __future__ import annotations

import random

import pytest

from strandline.controller.machine.scram import alter_scram_credentials
from strandline.controller.machine.state import MachineSettings, MachineState
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.delta import MetadataDelta, diff
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import MetadataRecord, MetadataVersionRecord
from strandline.controller.metadata.scram import (
    SALTS,
    RemoveUserScramCredentialRecord,
    ScramKey,
    ScramSecretRecord,
    UserScramCredentialRecord,
)
from strandline.controller.metadata.snapshot import image_records, load_image
from strandline.controller.metadata.table import decode_record, encode_record
from strandline.controller.scram_api import AlterScramRequest, ScramDeletion, ScramOutcome, ScramUpsertion
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError
from strandline.proto.scram import ScramMechanism

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def machine() -> MachineState:
    delta = MetadataDelta(MetadataImage("c"))
    delta.apply(MetadataVersionRecord(1))
    resolver = ConfigResolver({})
    return MachineState(delta.image(0, 1, 0), resolver, random.Random(1), MachineSettings(), 0.0)


def upsertion(name: str = "alice", mechanism: int = 1, **more: object) -> ScramUpsertion:
    size = 64 if mechanism == 2 else 32
    fields = {"salt": b"salt", "iterations": 4096, "stored_key": bytes(size), "server_key": b"k" * size, **more}
    return ScramUpsertion(name, mechanism, **fields)  # type: ignore[arg-type]


def alter(state: MachineState, *changes: ScramUpsertion | ScramDeletion) -> list[ScramOutcome]:
    request = AlterScramRequest(
        tuple(one for one in changes if isinstance(one, ScramDeletion)),
        tuple(one for one in changes if isinstance(one, ScramUpsertion)),
    )
    result = alter_scram_credentials(state, request)
    records: list[MetadataRecord] = [decode_record(encode_record(record)) for record in result.records]
    state.adopt(state.replay(records), state.image.offset + len(records))
    return list(result.reply.users)


def users(state: MachineState) -> set[tuple[str, int]]:
    return {(key.name, int(key.mechanism)) for key in state.image.scram_credentials}


def test_credentials_are_set_changed_and_removed() -> None:
    state = machine()
    assert not state.image.scram_secret
    assert alter(state, upsertion(), upsertion(mechanism=2), upsertion("bob")) == [
        ScramOutcome("alice", ErrorCode.NONE),
        ScramOutcome("bob", ErrorCode.NONE),
    ]
    secret = state.image.scram_secret
    assert len(secret[SALTS].secret) == 32
    assert users(state) == {("alice", 1), ("alice", 2), ("bob", 1)}
    alter(state, upsertion(iterations=16384, salt=b"other"), ScramDeletion("bob", 1))
    assert users(state) == {("alice", 1), ("alice", 2)}
    changed = state.image.scram_credentials[ScramKey("alice", SHA_256)]
    assert (changed.iterations, changed.salt, changed.server_key) == (16384, b"other", b"k" * 32)
    assert state.image.scram_secret == secret


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a\nb"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a" * 256), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(mechanism=-1), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(salt=bytes(1025)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(stored_key=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(mechanism=2, server_key=bytes(32)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramDeletion("nobody", 1), ErrorCode.RESOURCE_NOT_FOUND),
        (ScramDeletion("", 1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramDeletion("alice", 9), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_kafkas_errors(change: ScramUpsertion | ScramDeletion, code: ErrorCode) -> None:
    """And a change that is refused changes nothing, while the one beside it is made."""
    state = machine()
    outcomes = {one.name: one.error for one in alter(state, change, upsertion("carol"))}
    assert outcomes == {change.name: code, "carol": ErrorCode.NONE}
    assert users(state) == {("carol", 1)}


def test_all_changes_of_a_user_or_none() -> None:
    state = machine()
    alter(state, upsertion("bob"))
    [outcome] = alter(state, upsertion(), upsertion())
    assert outcome.error is ErrorCode.DUPLICATE_RESOURCE
    [outcome] = alter(state, ScramDeletion("bob", 1), upsertion("bob"))
    assert outcome.error is ErrorCode.DUPLICATE_RESOURCE
    [outcome] = alter(state, upsertion(), upsertion(mechanism=2, iterations=1))
    assert outcome.error is ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert users(state) == {("bob", 1)}


def test_a_snapshot_keeps_them() -> None:
    state = machine()
    alter(state, upsertion("bob"), upsertion(), upsertion(mechanism=2))
    alter(state, ScramDeletion("bob", 1))
    records = [decode_record(encode_record(record)) for record in image_records(state.image)]
    loaded = load_image("c", records, state.image.offset + 1, 1)
    assert loaded.scram_credentials == state.image.scram_credentials
    assert loaded.scram_secret == state.image.scram_secret != {}
    changed = diff(machine().image, loaded)[MetadataImage.scram_credentials].changed
    assert set(changed) == {ScramKey("alice", SHA_256), ScramKey("alice", SHA_512)}


GOOD = UserScramCredentialRecord("alice", 1, b"salt", 4096, bytes(32), bytes(32))


@pytest.mark.parametrize(
    "record",
    [
        UserScramCredentialRecord("", 1, b"salt", 4096, bytes(32), bytes(32)),
        UserScramCredentialRecord("alice", 7, b"salt", 4096, bytes(32), bytes(32)),
        UserScramCredentialRecord("alice", 1, b"", 4096, bytes(32), bytes(32)),
        UserScramCredentialRecord("alice", 1, b"salt", 1, bytes(32), bytes(32)),
        UserScramCredentialRecord("alice", 1, b"salt", 4096, bytes(31), bytes(32)),
        UserScramCredentialRecord("alice", 2, b"salt", 4096, bytes(64), bytes(32)),
        RemoveUserScramCredentialRecord("alice", 1),
        ScramSecretRecord(b"short"),
    ],
)
def test_damaged_records_stop_the_node(record: MetadataRecord) -> None:
    delta = MetadataDelta(machine().image)
    with pytest.raises(FatalError):
        delta.apply(record)


def test_there_is_one_secret() -> None:
    """Another one would give users that do not exist another salt, and so tell them from those that do."""
    delta = MetadataDelta(machine().image)
    delta.apply_all([ScramSecretRecord(bytes(32)), GOOD])
    with pytest.raises(FatalError):
        delta.apply(ScramSecretRecord(b"x" * 32))
    assert "stored_key" not in repr(GOOD)
    assert "secret" not in repr(ScramSecretRecord(bytes(32))).removeprefix("ScramSecretRecord")
