"""AlterUserScramCredentials (KIP-554), as Kafka's ScramControlManager judges it."""

from __future__ import annotations

from strandline.controller.machine.state import MAX_PARTITIONS_PER_REQUEST, MachineState, Result
from strandline.controller.metadata.records import MetadataRecord
from strandline.controller.metadata.scram import (
    NAME_CHARS_MAX,
    SECRET_BYTES,
    RemoveUserScramCredentialRecord,
    ScramKey,
    ScramSecretRecord,
    UserScramCredentialRecord,
    is_user_name,
)
from strandline.controller.scram_api import (
    AlterScramReply,
    AlterScramRequest,
    ScramDeletion,
    ScramOutcome,
    ScramUpsertion,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ports import Rng
from strandline.proto.scram import ITERATIONS_MAX, ITERATIONS_MIN, SALT_BYTES_MAX, ScramMechanism

_CHANGES_MAX = MAX_PARTITIONS_PER_REQUEST
"""One request is appended as one atomic batch."""


def alter_scram_credentials(state: MachineState, request: AlterScramRequest) -> Result[AlterScramReply]:
    """Set and remove credentials; each user succeeds or fails alone, with all that is asked for it.

    The first credential of a cluster brings the secret for users that do not exist.

    Raises:
        KafkaError: INVALID_REQUEST: more changes than one batch may hold.
    """
    changes: list[ScramDeletion | ScramUpsertion] = [*request.deletions, *request.upsertions]
    if len(changes) > _CHANGES_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{len(changes)} changes; {_CHANGES_MAX} at once are possible.")
    errors: dict[str, KafkaError] = {}
    records: dict[ScramKey, MetadataRecord] = {}
    for change in changes:
        if change.name in errors:
            continue
        try:
            key = _key(change)
            if key in records:
                text = "A user credential cannot be altered twice in the same request."
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, text)
            records[key] = _deletion(state, key) if isinstance(change, ScramDeletion) else _upsertion(key, change)
        except KafkaError as error:
            errors[change.name] = error
    wanted = [record for key, record in records.items() if key.name not in errors]
    outcomes = [
        ScramOutcome(name, errors[name].code, errors[name].message)
        if name in errors
        else ScramOutcome(name, ErrorCode.NONE)
        for name in dict.fromkeys(change.name for change in changes)
    ]
    if not state.image.scram_secret and any(isinstance(record, UserScramCredentialRecord) for record in wanted):
        wanted.insert(0, new_secret(state.rng))
    return Result(AlterScramReply(tuple(outcomes)), wanted)


def new_secret(rng: Rng) -> ScramSecretRecord:
    """The record of a cluster's secret, newly drawn."""
    return ScramSecretRecord(rng.getrandbits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big"))


def _key(change: ScramDeletion | ScramUpsertion) -> ScramKey:
    if not change.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty.")
    try:
        mechanism = ScramMechanism(change.mechanism)
    except ValueError:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism.") from None
    return ScramKey(change.name, mechanism)


def _deletion(state: MachineState, key: ScramKey) -> MetadataRecord:
    if key not in state.image.scram_credentials:
        text = "Attempt to delete a user credential that does not exist."
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
    return RemoveUserScramCredentialRecord(key.name, int(key.mechanism))


def _upsertion(key: ScramKey, change: ScramUpsertion) -> MetadataRecord:
    if not is_user_name(key.name):
        words = f"A user's name has up to {NAME_CHARS_MAX} characters, all of which print."
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, words)
    if change.iterations < ITERATIONS_MIN:
        words = f"Too few iterations: {change.iterations}, and {ITERATIONS_MIN} is the least."
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, words)
    if change.iterations > ITERATIONS_MAX:
        words = f"Too many iterations: {change.iterations}, and {ITERATIONS_MAX} is the most."
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, words)
    if not 0 < len(change.salt) <= SALT_BYTES_MAX:
        words = f"The salt has {len(change.salt)} bytes; from 1 to {SALT_BYTES_MAX} are possible."
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, words)
    if len(change.stored_key) != key.mechanism.key_bytes or len(change.server_key) != key.mechanism.key_bytes:
        words = f"The salted password is none of {key.mechanism.title}: it has {key.mechanism.key_bytes} bytes there."
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, words)
    return UserScramCredentialRecord(
        key.name, int(key.mechanism), change.salt, change.iterations, change.stored_key, change.server_key
    )
