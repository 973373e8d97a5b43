"""SCRAM credentials in the metadata (KIP-84, KIP-554): their records, their part of the image, their replay.

Beside the credentials stands one secret of the cluster, drawn with the first of them. A user that does not exist gets a
salt made from it, the same at each node and at each attempt, so that nobody learns who exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from strandline.controller.metadata.records import MetadataRecord
from strandline.proto.errors import FatalError
from strandline.proto.messages.fields import Int32
from strandline.proto.scram import ITERATIONS_MAX, ITERATIONS_MIN, SALT_BYTES_MAX, ScramCredential, ScramMechanism

SECRET_BYTES = 32

NAME_CHARS_MAX = 255
"""Of a user: it stands in log lines and answers."""


@dataclass(frozen=True, slots=True)
class UserScramCredentialRecord(MetadataRecord):
    """A user's credential of one mechanism is set, in the place of any earlier one; fields as in `ScramCredential`."""

    name: Annotated[str, 1]
    mechanism: Annotated[int, Int32(2)]
    salt: Annotated[bytes, 3]
    iterations: Annotated[int, Int32(4)]
    stored_key: Annotated[bytes, 5] = field(repr=False)
    server_key: Annotated[bytes, 6] = field(repr=False)


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


@dataclass(frozen=True, slots=True)
class ScramImage:
    """All SCRAM credentials.

    Attributes:
        secret: empty until the first credential.
    """

    credentials: Mapping[ScramKey, ScramCredential] = field(default_factory=dict)
    secret: bytes = field(default=b"", repr=False)

    def records(self) -> Iterator[ScramSecretRecord | UserScramCredentialRecord]:
        """The records that add up to it; equal images give equal records."""
        if self.secret:
            yield ScramSecretRecord(self.secret)
        for key in sorted(self.credentials):
            yield scram_record(key, self.credentials[key])


NO_SCRAM = ScramImage()


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


class ScramDelta:
    """A copy-on-write overlay of the credentials of an image.

    Attributes:
        changed: the credentials set or removed, in the order of first change.
    """

    __slots__ = ("_base", "_credentials", "_secret", "changed")

    def __init__(self, base: ScramImage) -> None:
        self._base = base
        self._credentials: dict[ScramKey, ScramCredential] | None = None
        self._secret = base.secret
        self.changed: dict[ScramKey, None] = {}

    def image(self) -> ScramImage:
        """The credentials after all records so far."""
        if self._credentials is None and self._secret == self._base.secret:
            return self._base
        credentials = self._base.credentials if self._credentials is None else self._credentials
        return ScramImage(credentials, self._secret)

    def set_credential(self, record: UserScramCredentialRecord) -> None:
        """Raises FatalError: a credential that nobody can have written."""
        mechanism = _mechanism(record.mechanism, record.name)
        if not is_user_name(record.name):
            raise FatalError(f"A record sets a SCRAM credential of a user {record.name!r}, which is no name.")
        keys = (len(record.stored_key), len(record.server_key))
        if keys != (mechanism.key_bytes,) * 2 or not 0 < len(record.salt) <= SALT_BYTES_MAX:
            raise FatalError(
                f"A record sets a {mechanism.title} credential of {record.name!r} with keys of {keys} bytes and a salt "
                f"of {len(record.salt)}: the metadata is damaged."
            )
        if not ITERATIONS_MIN <= record.iterations <= ITERATIONS_MAX:
            raise FatalError(
                f"A record sets a {mechanism.title} credential of {record.name!r} with {record.iterations} iterations: "
                "the metadata is damaged."
            )
        credential = ScramCredential(record.salt, record.iterations, record.stored_key, record.server_key)
        key = ScramKey(record.name, mechanism)
        self._writable()[key] = credential
        self.changed[key] = None

    def remove_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        """Raises FatalError: there is none."""
        key = ScramKey(record.name, _mechanism(record.mechanism, record.name))
        if self._writable().pop(key, None) is None:
            raise FatalError(
                f"A record removes the {key.mechanism.title} credential of {record.name!r}, who has none: "
                "the metadata is damaged."
            )
        self.changed[key] = None

    def set_secret(self, record: ScramSecretRecord) -> None:
        """Raises FatalError: a second secret, or one that is too short."""
        if self._secret or len(record.secret) != SECRET_BYTES:  # rule A19/second-secret
            raise FatalError("A record sets a second SCRAM secret, or one that is none: the metadata is damaged.")
        self._secret = record.secret

    def _writable(self) -> dict[ScramKey, ScramCredential]:
        if self._credentials is None:
            self._credentials = dict(self._base.credentials)
        return self._credentials


def changed_credentials(old: ScramImage, new: ScramImage) -> dict[ScramKey, None]:
    """The credentials that differ between two images."""
    keys = {**old.credentials, **new.credentials}
    return {key: None for key in keys if old.credentials.get(key) != new.credentials.get(key)}


def is_user_name(name: str) -> bool:
    """Whether a user may be called so: not empty, not too long, nothing that does not print."""
    return 0 < len(name) <= NAME_CHARS_MAX and name.isprintable()


def _mechanism(number: int, name: str) -> ScramMechanism:
    try:
        return ScramMechanism(number)
    except ValueError:
        raise FatalError(
            f"A record names SCRAM mechanism {number} of {name!r}, which this version of Strandline does not know."
        ) from None
