"""SCRAM credentials in the metadata (KIP-84, KIP-554): their records, their part of the image, their replay.

Beside the credentials stands one secret of the cluster, drawn with the first of them. A user that does not exist gets a
salt made from it, the same at each node and at each attempt, so that nobody learns who exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from strandline.controller.metadata.maps import MapOf
from strandline.controller.metadata.records import MetadataRecord
from strandline.proto.errors import FatalError
from strandline.proto.messages.fields import Int32
from strandline.proto.scram import ITERATIONS_MAX, ITERATIONS_MIN, SALT_BYTES_MAX, ScramCredential, ScramMechanism

SECRET_BYTES = 32

NAME_CHARS_MAX = 255
"""Maximum characters of a user's name, which log lines and responses contain."""


@dataclass(frozen=True, slots=True)
class UserScramCredentialRecord(MetadataRecord):
    """A user's credential of one mechanism is set, in the place of any earlier one."""

    name: Annotated[str, 1]
    mechanism: Annotated[int, Int32(2)]
    salt: Annotated[bytes, 3]
    iterations: Annotated[int, Int32(4)]
    stored_key: Annotated[bytes, 5] = field(repr=False)
    server_key: Annotated[bytes, 6] = field(repr=False)

    @property
    def credential(self) -> ScramCredential:
        """The credential, as it is used to authenticate clients."""
        return ScramCredential(self.salt, self.iterations, self.stored_key, self.server_key)


@dataclass(frozen=True, slots=True)
class RemoveUserScramCredentialRecord(MetadataRecord):
    """A user's credential of one mechanism is gone."""

    name: Annotated[str, 1]
    mechanism: Annotated[int, Int32(2)]


@dataclass(frozen=True, slots=True)
class ScramSecretRecord(MetadataRecord):
    """The secret from which users that do not exist get their salts; it comes once."""

    secret: Annotated[bytes, 1] = field(repr=False)


class ScramKey(NamedTuple):
    """A user and a mechanism."""

    name: str
    mechanism: ScramMechanism


SCRAM_CREDENTIALS = MapOf[ScramKey, UserScramCredentialRecord]("scram_credentials")

SCRAM_SECRET = MapOf[str, ScramSecretRecord]("scram_secret")

SALTS = "salts"
"""The one key of `SCRAM_SECRET`: what the secret is for."""


def scram_key(record: UserScramCredentialRecord | RemoveUserScramCredentialRecord) -> ScramKey:
    """The credential that a record sets, or removes. Raises FatalError for a mechanism of a newer version."""
    try:
        return ScramKey(record.name, ScramMechanism(record.mechanism))
    except ValueError:
        raise FatalError(
            f"A record names SCRAM mechanism {record.mechanism} of {record.name!r}, which this version of Strandline "
            "does not know."
        ) from None


def credential_fault(record: UserScramCredentialRecord) -> str:
    """Reason that nobody can have written this credential, or ""."""
    if not is_user_name(record.name):
        return f"{record.name!r} is no name of a user"
    keys = (len(record.stored_key), len(record.server_key))
    if keys != (scram_key(record).mechanism.key_bytes,) * 2 or not 0 < len(record.salt) <= SALT_BYTES_MAX:
        return f"its keys have {keys} bytes, its salt {len(record.salt)}"
    iterations = record.iterations
    return "" if ITERATIONS_MIN <= iterations <= ITERATIONS_MAX else f"it has {iterations} iterations"


def secret_fault(record: ScramSecretRecord) -> str:
    """Reason that this is no secret, or ""."""
    return "" if len(record.secret) == SECRET_BYTES else f"it has {len(record.secret)} bytes, not {SECRET_BYTES}"


def scram_record(key: ScramKey, credential: ScramCredential) -> UserScramCredentialRecord:
    """The record that sets a credential."""
    return UserScramCredentialRecord(
        key.name,
        int(key.mechanism),
        credential.salt,
        credential.iterations,
        credential.stored_key,
        credential.server_key,
    )


def is_user_name(name: str) -> bool:
    """Whether a user may be called so: not empty, not too long, nothing that does not print."""
    return 0 < len(name) <= NAME_CHARS_MAX and name.isprintable()
