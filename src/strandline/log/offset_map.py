"""Where the last record of each key is, in bounded memory: what compaction knows while it goes over a log."""

from __future__ import annotations

from hashlib import blake2b

ENTRY_BYTES = 192
"""What one key takes, at most: its object (64 bytes), its offset (32), and its place in the dict, which is there twice
while it grows. (Kafka's map takes 24: a hash of 16 bytes and an offset, in one array.)"""

SHORT_KEY_BYTES = 16
_DIGEST_BYTES = 17
"""One more than the longest key that stands for itself: no key can be another's digest."""


class OffsetMap:
    """key -> offset of its last record.

    A key of up to 16 bytes stands for itself; of a longer one a digest of 17 bytes is kept. Of two keys of one digest
    one would vanish: nobody can find such a pair of BLAKE2b, and chance takes 2^68 keys.
    """

    __slots__ = ("_offsets", "keys_max")

    def __init__(self, buffer_bytes: int) -> None:
        """`buffer_bytes`: Kafka's `log.cleaner.dedupe.buffer.size`, the memory that it may take."""
        self.keys_max = max(1, buffer_bytes // ENTRY_BYTES)
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room(self, keys: int) -> bool:
        """Whether so many more keys fit, all of them new."""
        return len(self._offsets) + keys <= self.keys_max

    def put(self, key: bytes, offset: int) -> None:
        """A record of `key`, later than all before."""
        self._offsets[key if len(key) <= SHORT_KEY_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()] = offset

    def latest(self, key: bytes) -> int:
        """Of the key's last record; -1 if there is none."""
        short = key if len(key) <= SHORT_KEY_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()
        return self._offsets.get(short, -1)
