"""The SCRAM credentials by which a broker authenticates clients, and fake ones for users that do not exist.

SCRAM sends a user's salt before the client proves anything. So that a salt does not tell whether the user exists, an
unknown user gets a fake credential derived from the name and a secret of the cluster: the same on each node and each
time, with the most common size and kind of salt and iterations, and needing the same work to check.
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
"""Salts of Kafka's tools: a number of 130 bits, written in base 36."""

_JAVA_SALT_BITS = 130
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"

_OF_JAVA = 0
_Shape = tuple[int, int]
"""(size of the salt in bytes, or `_OF_JAVA` for a salt of Kafka's tools; iterations)."""


class ScramUsers:
    """SCRAM credentials by user, from the newest metadata image."""

    def __init__(self, image: Callable[[], MetadataImage], cluster_id: str) -> None:
        self._image = image
        self._cluster_id = cluster_id.encode()
        self._seen: Mapping[ScramKey, UserScramCredentialRecord] | None = None
        self._shapes: dict[ScramMechanism, _Shape] = {}

    def knows(self, mechanism: ScramMechanism, name: str) -> bool:
        """Return whether the user has a credential for this mechanism."""
        return ScramKey(name, mechanism) in self._image().scram_credentials

    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential:
        """Return the user's credential, or a fake one, which no password matches, if the user has none."""
        image = self._image()
        if image.scram_credentials is not self._seen:
            self._seen, self._shapes = image.scram_credentials, _most_common(image.scram_credentials)
        # Before the cluster has a secret it has no SCRAM users, so a salt tells nothing.
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
