"""The admin clients' part about users: their SCRAM credentials (KIP-554)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strandline.client.aio.admin_base import AdminBase, Known, Operation, Question, by_key, done, nothing
from strandline.client.types import ScramChange, ScramDescription
from strandline.proto.errors import ConfigError
from strandline.proto.kafka.apis import Api
from strandline.proto.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    SCRAM_BY_TITLE,
    ScramMechanism,
    salted_password,
)


class UserAdmin(AdminBase):
    """Who may log in by SCRAM."""

    @Operation(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, each="results", key="user", about="user")
    async def describe_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> Question[dict[str, tuple[ScramDescription, ...]]]:
        """Mechanisms and iterations of these users, or of all; nothing that would help to log in.

        Raises:
            KafkaError: RESOURCE_NOT_FOUND for a user that has none, as it is or among ManyErrors.
        """
        names = None if users is None else [{"name": name} for name in dict.fromkeys(users)]
        if names == []:
            return Known({})
        return Question({"users": names}, _credentials, by_key)

    @Operation(Api.ALTER_USER_SCRAM_CREDENTIALS, each="results", key="user", about="user")
    async def alter_scram_credentials(self, changes: Mapping[str, Sequence[ScramChange]]) -> Question[None]:
        """Set passwords and remove credentials, by user; all changes of one user succeed or none does.

        The password is salted here, and leaves this process as a salted password alone: which would do in its place,
        so have TLS between.

        Raises:
            ConfigError: an unknown mechanism, iterations out of bounds, an empty password.
            KafkaError: RESOURCE_NOT_FOUND for a credential that is not there, UNACCEPTABLE_CREDENTIAL.
        """
        rng = self.session.rng
        deletions, upsertions = [], []
        for name, ones in changes.items():
            for one in ones:
                mechanism = _mechanism(one.mechanism)
                key = {"name": name, "mechanism": int(mechanism)}
                if one.password is None:
                    deletions.append(key)
                    continue
                if not one.password:
                    raise ConfigError("password", "", f"a password of {name} that is not empty")
                if not ITERATIONS_MIN <= one.iterations <= ITERATIONS_MAX:
                    raise ConfigError("iterations", one.iterations, f"from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
                salt = rng.getrandbits(8 * SALT_BYTES).to_bytes(SALT_BYTES, "big")
                salted = salted_password(mechanism, one.password, salt, one.iterations)
                upsertions.append({**key, "iterations": one.iterations, "salt": salt, "salted_password": salted})
        return Question({"deletions": deletions, "upsertions": upsertions}, nothing, done)


def _credentials(told: Any) -> tuple[ScramDescription, ...]:
    return tuple(ScramDescription(_title(info.mechanism), info.iterations) for info in told.credential_infos)


def _mechanism(title: str) -> ScramMechanism:
    mechanism = SCRAM_BY_TITLE.get(title)
    if mechanism is None:
        raise ConfigError("mechanism", title, "one of " + ", ".join(SCRAM_BY_TITLE))
    return mechanism


def _title(number: int) -> str:
    try:
        return ScramMechanism(number).title
    except ValueError:
        return f"mechanism {number}"
