"""Requests about SCRAM credentials to the active controller, and replies (KIP-554); see `strandline.controller.api`.

Broker and controller exchange keys, never a password, and never the salted password, which would do in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from strandline.proto.error_codes import ErrorCode
from strandline.proto.messages.fields import SInt32


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    """A credential to remove; `mechanism` as the client wrote it, known or not."""

    name: Annotated[str, 1]
    mechanism: Annotated[int, SInt32(2)]


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A credential to set. Keys of a size that is not the mechanism's: the client's salted password was invalid."""

    name: Annotated[str, 1]
    mechanism: Annotated[int, SInt32(2)]
    salt: Annotated[bytes, 3]
    iterations: Annotated[int, SInt32(4)]
    stored_key: Annotated[bytes, 5] = field(repr=False)
    server_key: Annotated[bytes, 6] = field(repr=False)


@dataclass(frozen=True, slots=True)
class AlterScramRequest:
    """AlterUserScramCredentials: the changes of one user all succeed or none does."""

    deletions: Annotated[tuple[ScramDeletion, ...], 1] = ()
    upsertions: Annotated[tuple[ScramUpsertion, ...], 2] = ()


@dataclass(frozen=True, slots=True)
class ScramOutcome:
    """Outcome of the changes of one user; NONE where all of them were made."""

    name: Annotated[str, 1]
    error: Annotated[ErrorCode, 2]
    message: Annotated[str, 3] = ""


@dataclass(frozen=True, slots=True)
class AlterScramReply:
    """One outcome a user, in the order of first mention, deletions first."""

    users: Annotated[tuple[ScramOutcome, ...], 1]
