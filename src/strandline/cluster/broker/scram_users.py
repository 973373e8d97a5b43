"""The SCRAM credentials that a broker checks clients by, and those of users that do not exist.

Whoever asks for a user's salt learns nothing by it: a user that does not exist has one too, the same at each node and
each time, for it is made of the name and a secret of the cluster. It looks like most users' (size and kind of the salt,
iterations), and takes the same work.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Mapping

from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.scram import SALTS, ScramKey, UserScramCredentialRecord
from strandline.proto.scram import ITERATIONS_MIN, SALT_BYTES, ScramCredential, ScramMechanism

_JAVA_SALT = re.compile(rb"[0-9a-z]{20,26}")
"""Kafka's tools write a number of 130 bits to the base 36, and take that text for the salt."""

_JAVA_SALT_BITS = 130
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"

_OF_JAVA = 0
_Shape = tuple[int, int]
"""Bytes of the salt, or `_OF_JAVA`; iterations."""


class ScramUsers:
    """Credentials by user, of the newest metadata image."""

    def __init__(self, image: Callable[[], MetadataImage], cluster_id: str) -> None:
        self._image = image
        self._cluster_id = cluster_id.encode()
        self._seen: Mapping[ScramKey, UserScramCredentialRecord] | None = None
        self._shapes: dict[ScramMechanism, _Shape] = {}

    def knows(self, mechanism: ScramMechanism, name: str) -> bool:
        """Whether the user has a credential of this mechanism."""
        return ScramKey(name, mechanism) in self._image().scram_credentials

    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential:
        """The user's, or one whose password nobody knows."""
        image = self._image()
        if image.scram_credentials is not self._seen:
            self._seen, self._shapes = image.scram_credentials, _most_common(image.scram_credentials)
        # Until there is a secret there is no user either, and nothing to learn from a salt.
        drawn = image.scram_secret.get(SALTS)
        secret = self._cluster_id if drawn is None else drawn.secret
        nobody = self._nobody(secret, mechanism, name)  # rule A19/salt-of-nobody-changes
        found = image.scram_credentials.get(ScramKey(name, mechanism))
        return nobody if found is None else found.credential

    def _nobody(self, secret: bytes, mechanism: ScramMechanism, name: str) -> ScramCredential:
        size, iterations = self._shapes.get(mechanism, (SALT_BYTES, ITERATIONS_MIN))  # rule A19/nobody-has-another-salt
        seed = hmac.digest(secret, f"{mechanism.title}\0{name}".encode(), "sha256")
        drawn = hashlib.shake_256(seed).digest((size or 32) + 2 * mechanism.key_bytes)
        keys = drawn[-2 * mechanism.key_bytes :]
        salt = drawn[:size] if size else _java_salt(drawn)
        return ScramCredential(salt, iterations, keys[: mechanism.key_bytes], keys[mechanism.key_bytes :])


def _most_common(credentials: Mapping[ScramKey, UserScramCredentialRecord]) -> dict[ScramMechanism, _Shape]:
    counts: dict[ScramMechanism, Counter[_Shape]] = {}
    for key, one in credentials.items():
        size = _OF_JAVA if _JAVA_SALT.fullmatch(one.salt) else len(one.salt)
        counts.setdefault(key.mechanism, Counter())[size, one.iterations] += 1
    return {mechanism: max(found, key=lambda shape: (found[shape], shape)) for mechanism, found in counts.items()}


def _java_salt(drawn: bytes) -> bytes:
    number = int.from_bytes(drawn[:17], "big") >> (17 * 8 - _JAVA_SALT_BITS)
    digits = bytearray()
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))
