"""SASL PLAIN (RFC 4616): users and passwords of a JAAS line, and the one message of a client.

Passwords are not kept: what is compared is a keyed hash of each, under a key that dies with the process.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from strandline.proto.errors import StrandlineError
from strandline.proto.jaas import parse_jaas
from strandline.proto.ports import Rng

MESSAGE_BYTES_MAX = 8 * 1024

_USER = "user_"


class PlainError(StrandlineError):
    """The client's message is none, or the password is wrong. Never holds a secret."""


class PlainUsers:
    """The users of one listener."""

    def __init__(self, passwords: Mapping[str, str], rng: Rng) -> None:
        self._key = rng.getrandbits(256).to_bytes(32, "big")
        self._nobody = self._hash(self._key)
        self._users = {name: self._hash(password.encode()) for name, password in passwords.items()}

    def knows(self, name: str) -> bool:
        """Whether there is such a user."""
        return name in self._users

    def check(self, message: bytes) -> str:
        """The user of a client's message, whose password is right; the same work for one that does not exist.

        Raises PlainError.
        """
        user, password = read_plain(message)
        expected = self._users.get(user, self._nobody)
        if not hmac.compare_digest(self._hash(password), expected) or user not in self._users:
            raise PlainError("the password is wrong")
        return user

    def _hash(self, password: bytes) -> bytes:
        return hmac.digest(self._key, password, "sha256")


def read_plain(message: bytes) -> tuple[str, bytes]:
    """User and password of a client's message. Raises PlainError."""
    parts = message.split(b"\0")
    if len(message) > MESSAGE_BYTES_MAX or len(parts) != 3:
        raise PlainError("the message is not [authorization], user and password, separated by NUL")
    try:
        acts_for, user = parts[0].decode(), parts[1].decode()
    except UnicodeDecodeError:
        raise PlainError("a user's name that is no UTF-8") from None
    if not user or not parts[2]:
        raise PlainError("the user's name or the password is empty")
    if acts_for not in ("", user):
        raise PlainError("the client asks to act for another user than the one that authenticates")
    return user, parts[2]


def plain_passwords(jaas: str) -> dict[str, str]:
    """The users of ``...PlainLoginModule required user_alice="secret";``.

    Raises:
        ValueError: with what it should be. The message never holds a password.
    """
    module, options = parse_jaas(jaas)
    if module != "PlainLoginModule":
        raise ValueError(f'PlainLoginModule required user_alice="...";, and not {module}')
    found: dict[str, str] = {}
    for name, value in options.items():
        if not name.startswith(_USER) or name == _USER:
            raise ValueError(f"options as user_alice, one for each user; {name} has no effect: nodes use no SASL")
        if not value:
            raise ValueError(f"a password of {name.removeprefix(_USER)}, which is empty")
        found[name.removeprefix(_USER)] = value
    if not found:
        raise ValueError('at least one user, as user_alice="..."')
    return found
