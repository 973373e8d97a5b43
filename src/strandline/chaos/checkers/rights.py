"""Checks of brokers with an authorizer: an admin's changes stay in force, and only users with the right are served.

| violation | says |
|---|---|
| NobodyIsKeptOut | a valid password or right was refused (one that changes in the run: checked after all faults) |
| NobodyGetsIn | a password or right that was never valid was accepted (one that was revoked: after all faults) |
| AnsweredRightsStay | a node's ACLs, credentials or quotas differ from those that the admin set with success |

A broker that is cut off from the controllers works with old metadata, and may accept a user whose right was revoked
long ago. So revoked rights are checked only after faults have ended and every node has caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import NamedTuple

from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.proto.scram import ScramCredential, ScramMechanism, credential_of, salted_password

PASSWORD = "password"

PROMPT_MS = 1_500.0
"""Milliseconds within which an answer belongs to the only call that was made: nodes repeat a call after 2 s."""

LATE_PROMPT_MS = 6_000.0
"""Milliseconds after a prompt answer within which a repetition of its call may still take effect: the simulated network
repeats a call within 3.4 s, and the node that receives it may be paused."""

LATE_MS = 30_000.0
"""Milliseconds after a call was given up, or answered late, within which it may still take effect. Until then it may
wait on a blocked link or in a paused broker, and may be repeated by a broker (for `request.timeout.ms`) or by the
network."""

DENIALS = frozenset(
    {
        "SASL_AUTHENTICATION_FAILED",
        "ILLEGAL_SASL_STATE",
        "UNSUPPORTED_SASL_MECHANISM",
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    }
)
"""Error codes that a client with all rights never gets."""


class Key(NamedTuple):
    """Thing that an admin changes: a user's password, right or quota."""

    kind: str
    who: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.who}"


Value = str | float | bool | None
"""A password, a quota or a right (True); None if it is not set."""


@dataclass
class Change:
    """One attempt of the admin to set the value of a key."""

    key: Key
    value: Value
    invoked_ms: float
    ended_ms: float = inf
    answered: bool = False

    @property
    def until_ms(self) -> float:
        """Time in milliseconds after which the change can no longer take effect."""
        prompt = self.answered and self.ended_ms - self.invoked_ms < PROMPT_MS
        return self.ended_ms + (LATE_PROMPT_MS if prompt else LATE_MS)


@dataclass
class Rights:
    """Requests of an admin with their answers, and attempts of users with their results.

    Invariant: the admin has at most one call in flight for a key.
    """

    super_users: tuple[str, ...] = ()
    changes: dict[Key, list[Change]] = field(default_factory=dict)
    stored: dict[tuple[int, int], str] = field(default_factory=dict)
    """(partition, offset) -> value of each acknowledged record."""
    denied: dict[str, None] = field(default_factory=dict)
    """Values whose only attempt was refused because a right was missing."""

    def ask(self, key: Key, value: Value, now_ms: float) -> Change:
        """Note that the admin sends a request to set `key` to `value`. The caller enters the answer into the result."""
        change = Change(key, value, now_ms)
        self.changes.setdefault(key, []).append(change)
        return change

    def is_quiet(self, key: Key, now_ms: float) -> bool:
        """True if no attempt made before `now_ms` can still take effect."""
        return all(change.until_ms <= now_ms for change in self.changes.get(key, ()))

    def last(self, key: Key) -> Change | None:
        """The latest attempt to change the key; None if there is none."""
        changes = self.changes.get(key)
        return changes[-1] if changes else None

    @property
    def unanswered(self) -> list[Key]:
        """Keys whose latest attempt has no answer."""
        return [key for key, changes in self.changes.items() if not changes[-1].answered]

    def asked(self, key: Key) -> list[Value]:
        """Values that the admin has tried to set for the key, each once, the latest last."""
        return list(dict.fromkeys(change.value for change in reversed(self.changes.get(key, ()))))[::-1]

    def may_be(self, key: Key) -> list[Value]:
        """Values that a key may have now: the last confirmed one, those requested since, and earlier ones whose request
        may have taken effect late."""
        changes = self.changes.get(key, [])
        answered = [number for number, change in enumerate(changes) if change.answered]
        if not answered:
            return list(dict.fromkeys([None, *(change.value for change in changes)]))
        newest = changes[answered[-1]]
        late = [change.value for change in changes[: answered[-1]] if change.until_ms > newest.invoked_ms]
        return list(dict.fromkeys([newest.value, *late, *(change.value for change in changes[answered[-1] + 1 :])]))

    def certain(self, key: Key) -> tuple[Value] | None:
        """The one value that the key must have now, in a tuple; None if several are possible."""
        values = self.may_be(key)
        return (values[0],) if len(values) == 1 else None

    # --- checks during the run ---

    def check_opened(self, user: str, password: str) -> None:
        """Check that a successful login used a password that may be valid. Raises InvariantViolated."""
        if password not in self.asked(Key(PASSWORD, user)):
            raise InvariantViolated("NobodyGetsIn", "a password opens that was never set", user=user, tried=password)

    def check_used(self, user: str, right: str, **facts: object) -> None:
        """Check that a user may have the right by which its record was stored, or a record was shown to it. Raises
        InvariantViolated."""
        if user not in self.super_users and True not in self.asked(Key(right, user)):
            raise InvariantViolated("NobodyGetsIn", f"{user} did without any right to {right}", **facts)

    # --- checks of a node's metadata ---

    def check_held(self, node: str, holds: Callable[[Key, Value], bool]) -> None:
        """Check that a node that has caught up has the values that were confirmed. Raises InvariantViolated."""
        for key in self.changes:
            values = self.may_be(key)
            if not any(holds(key, value) for value in values):
                facts = {"node": node, "key": str(key), "wanted": values, "asked": self.history(key)}
                raise InvariantViolated("AnsweredRightsStay", "a node has another value, or none", **facts)

    def history(self, key: Key) -> list[str]:
        """One line for each attempt to change the key, for the message of a violation."""
        return [
            f"{change.value} at {change.invoked_ms:.0f} ms, "
            + (f"answered at {change.ended_ms:.0f}" if change.answered else "unanswered")
            for change in self.changes.get(key, ())
        ]

    # --- checks of the records at the end ---

    def check_records(self, records: Mapping[tuple[int, int], str]) -> None:
        """Check all records of the guarded topic, as (partition, offset) -> value; a value begins with its user.
        Raises InvariantViolated."""
        for where, value in sorted(self.stored.items()):
            if records.get(where) != value:
                facts = {"partition": where[0], "offset": where[1], "acked": value, "found": records.get(where)}
                raise InvariantViolated("AckedIsStored", "another record is there, or none", **facts)
        for (partition, offset), value in sorted(records.items()):
            self.check_used(value.partition(":")[0], "write", value=value, partition=partition, offset=offset)
            if value in self.denied:
                facts = {"value": value, "partition": partition, "offset": offset}
                raise InvariantViolated("NobodyGetsIn", "a record was refused, and is stored", **facts)


def check_not_denied(errors: Mapping[str, int]) -> None:
    """Check that clients whose password and rights never change were not refused. Raises InvariantViolated.

    `errors`: name of an error -> how often these clients met it.
    """
    denials = {name: count for name, count in errors.items() if name in DENIALS}
    if denials:
        raise InvariantViolated("NobodyIsKeptOut", "a client was denied what it has a right to", **denials)


def is_password(credential: ScramCredential | None, password: Value) -> bool:
    """True if a stored credential was made from the password. A credential and a password of None match each other."""
    if credential is None or password is None:
        return credential is None and password is None
    made = _made(str(password), credential.salt, credential.iterations)
    return (made.stored_key, made.server_key) == (credential.stored_key, credential.server_key)


@lru_cache(1024)
def _made(password: str, salt: bytes, iterations: int) -> ScramCredential:
    mechanism = ScramMechanism.SHA_256
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def superseded(rights: Rights, user: str) -> Iterator[str]:
    """Earlier passwords of a user that are certainly not valid any more."""
    key = Key(PASSWORD, user)
    kept = rights.may_be(key)
    yield from (str(value) for value in rights.asked(key) if value is not None and value not in kept)
