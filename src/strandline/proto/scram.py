"""SCRAM (RFC 5802, RFC 7677) as Kafka speaks it (KIP-84): both ends of the exchange, and what is kept of a password.

Pure: nonces come in as arguments. Names and passwords are UTF-8 as they are, without SASLprep: Kafka's clients apply
none, and librdkafka, kafka-python and Kafka's own would otherwise disagree about a password that it changes. Channel
binding is not spoken: Kafka has no mechanism of the -PLUS kind.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from strandline.proto.errors import StrandlineError


class ScramMechanism(IntEnum):
    """Kafka's mechanisms, with the numbers of its messages (KIP-554)."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def title(self) -> str:
        """The name by which it is enabled, ``SCRAM-SHA-256``."""
        return f"SCRAM-{self.name.replace('_', '-')}"

    @property
    def digest(self) -> str:
        """The name of the hash, for hashlib."""
        return self.name.lower().replace("_", "")

    @property
    def key_bytes(self) -> int:
        """The size of that hash, and so of every key."""
        return 32 if self is ScramMechanism.SHA_256 else 64


SCRAM_BY_TITLE: Mapping[str, ScramMechanism] = {mechanism.title: mechanism for mechanism in ScramMechanism}

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
"""Kafka's bounds: below, a stolen credential is searched too fast; above, each login costs a client too much."""

ITERATIONS_BELIEVED_MAX = 1_000_000
"""Maximum iterations that a client computes for a server (half a second): a hostile server could ask for hours of
work."""

SALT_BYTES = 24
"""Bytes of salts made here."""

SALT_BYTES_MAX = 1024

NONCE_BITS = 192

MESSAGE_BYTES_MAX = 8 * 1024
"""Maximum bytes of one message of the exchange; an honest one has a few hundred."""

_NO_BINDING = re.compile(r"[ny],(?:a=([^,]*))?,")


class ScramError(StrandlineError):
    """The other end's message is none, or its proof is wrong. Never holds a secret."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What is kept of a password. It proves who knows it, and lets nobody who steals it log in (but guess offline).

    Attributes:
        salt: drawn anew for each password.
        iterations: of PBKDF2.
        stored_key: H(client key): checks the client's proof.
        server_key: makes the server's own proof.
    """

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi(password, salt, iterations), what Kafka's admin clients send: as good as the password, to this cluster."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    stored_key = hashlib.new(mechanism.digest, client_key).digest()
    return ScramCredential(salt, iterations, stored_key, hmac.digest(salted, b"Server Key", mechanism.digest))


def nonce_of(bits: int) -> str:
    """A nonce of `NONCE_BITS` random bits, as text."""
    return f"{bits:048x}"


class ScramServer:
    """The server's end of one exchange: `first`, then the credential of the user it names, then `final`."""

    def __init__(self, mechanism: ScramMechanism, nonce: str) -> None:
        self._mechanism = mechanism
        self._nonce = nonce
        self._client_nonce = ""
        self._gs2 = ""
        self._first_bare = ""
        self._server_first = ""
        self._credential: ScramCredential | None = None

    def first(self, message: bytes) -> str:
        """The user that the client's first message names. Raises ScramError."""
        text = _text(message)
        match = _NO_BINDING.match(text)
        if match is None:
            raise ScramError("the message begins with no header of SCRAM without channel binding")
        self._gs2, self._first_bare = match[0], text[match.end() :]
        parts = self._first_bare.split(",")
        if len(parts) < 2 or not parts[0].startswith("n=") or not parts[1].startswith("r="):
            raise ScramError("the first message names no user and no nonce")
        if len(parts) > 2:
            raise ScramError("the first message has extensions, which are not served")
        if not _is_printable(parts[1][2:]):
            raise ScramError("the client's nonce is none")
        user = _name(parts[0][2:])
        if match[1] and _name(match[1]) != user:
            raise ScramError("the client asks to act for another user than the one that authenticates")
        self._client_nonce = parts[1][2:]
        self._nonce = self._client_nonce + self._nonce
        return user

    def challenge(self, credential: ScramCredential) -> bytes:
        """The server's first message, with the salt of this credential."""
        self._credential = credential
        salt = b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """The server's proof, for a client whose proof is right. Raises ScramError, in constant time for any proof.

        librdkafka before 2.6.1 (confluentinc/librdkafka#4895) writes its own nonce twice, and then the server's. The
        proof covers that, and the server's nonce is there whole: it is as good. Kafka 3.9 takes it, Kafka 4 does not.
        """
        credential = self._credential
        if credential is None:
            raise ScramError("the final message came first")
        parts = _text(message).split(",")
        if len(parts) != 3 or [part[:2] for part in parts] != ["c=", "r=", "p="]:
            raise ScramError("the final message is not c=, r= and p=")
        if _unbase64(parts[0][2:]) != self._gs2.encode():  # rule A19/header-changes-on-the-way
            raise ScramError("the header changed between the two messages")
        if parts[1][2:] not in (self._nonce, self._client_nonce + self._nonce):  # rule A19/nonce-of-another-exchange
            raise ScramError("the nonce changed between the two messages")
        proof = _unbase64(parts[2][2:])
        digest = self._mechanism.digest
        auth_message = f"{self._first_bare},{self._server_first},{parts[0]},{parts[1]}".encode()
        signature = hmac.digest(credential.stored_key, auth_message, digest)
        client_key = _xor(proof, signature) if len(proof) == len(signature) else signature
        # rule A19/any-proof-is-a-proof
        if not hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key):
            raise ScramError("the proof is wrong")
        return b"v=" + b64encode(hmac.digest(credential.server_key, auth_message, digest))


class SaltedPasswords:
    """A client's password, salted: computed once for each salt, for it takes milliseconds."""

    def __init__(self, password: str) -> None:
        self._password = password
        self._last: tuple[tuple[ScramMechanism, bytes, int], bytes] | None = None

    def of(self, mechanism: ScramMechanism, salt: bytes, iterations: int) -> bytes:
        """Compute the salted password, see `salted_password`."""
        key = mechanism, salt, iterations
        if self._last is None or self._last[0] != key:
            self._last = key, salted_password(mechanism, self._password, salt, iterations)
        return self._last[1]


class ScramClient:
    """The client's end of one exchange: `first`, `final` with the server's answer, `verify` with its last one."""

    def __init__(self, mechanism: ScramMechanism, user: str, passwords: SaltedPasswords, nonce: str) -> None:
        self._mechanism = mechanism
        self._passwords = passwords
        self._nonce = nonce
        self._first_bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """The client's first message."""
        return f"n,,{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The client's proof. Raises ScramError for a server's message that cannot be trusted."""
        text = _text(server_first)
        parts = text.split(",")
        if len(parts) < 3 or [part[:2] for part in parts[:3]] != ["r=", "s=", "i="]:
            raise ScramError("the server's first message is not r=, s= and i=")
        nonce, salt, count = (part[2:] for part in parts[:3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not continue the client's")
        if not count.isascii() or not count.isdigit() or len(count) > 9:
            raise ScramError("the server's iterations are no number")
        iterations = int(count)
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_BELIEVED_MAX:
            allowed = f"{ITERATIONS_MIN} to {ITERATIONS_BELIEVED_MAX} are sound"
            raise ScramError(f"the server asks for {iterations} iterations; {allowed}")
        salted = self._passwords.of(self._mechanism, _unbase64(salt), iterations)
        digest = self._mechanism.digest
        without_proof = f"c=biws,r={nonce}"
        auth_message = f"{self._first_bare},{text},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", digest)
        stored_key = hashlib.new(digest, client_key).digest()
        proof = _xor(client_key, hmac.digest(stored_key, auth_message, digest))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), auth_message, digest)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Verify the server's last message. Raises ScramError if the other end does not know the credential, and so is
        not the server."""
        text = _text(server_final)
        if not text.startswith("v=") or not self._signature:
            raise ScramError("the server gave no proof of its own")
        # rule A19/any-server-is-trusted
        if not hmac.compare_digest(_unbase64(text[2:].split(",")[0]), self._signature):
            raise ScramError("the server's proof is wrong: it does not know this user's credential")


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError(f"a message of {len(message)} bytes; {MESSAGE_BYTES_MAX} are possible")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message that is no UTF-8") from None


def _name(text: str) -> str:
    if re.search("=(?!2C|3D)", text) or "\0" in text or not text:
        raise ScramError("the user's name is empty or wrongly written")
    return text.replace("=2C", ",").replace("=3D", "=")


def _is_printable(text: str) -> bool:
    return bool(text) and all("!" <= char <= "~" for char in text)


def _unbase64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("a value that is no base64") from None


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
