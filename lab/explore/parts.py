"""The parts that states are made of: each value is kept once a process, and named by a digest that all processes share.

A state of a cluster is a short tuple of numbers. Most steps change one node and leave the others alone, and the same
node meets the same message in thousands of states: so a node's step is computed once and looked up afterwards.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from hashlib import blake2b
from typing import Any

from lab.explore.values import Codec, Frozen, Node

BLIND = 0
"""The renaming in which all nodes are called alike: two parts that differ in it cannot be renamed into each other."""


_THAWED_MAX = 64
"""Parts of which several renamings are asked for in a row."""


class Parts:
    """Values by digest. 60 bits: among a million parts two share a digest with a chance below one in a million."""

    def __init__(self, codec: Codec, renamings: tuple[Mapping[Node, Node], ...]) -> None:
        """`renamings[0]` is the blind one, `renamings[1]` leaves every name as it is, the others are all the rest."""
        self.codec = codec
        self.renamings = renamings
        self._values: dict[int, Frozen] = {}
        self._digests: dict[Frozen, int] = {}
        self._renamed: tuple[dict[int, int], ...] = tuple({} for _ in renamings)
        self._thawed: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._values)

    def put(self, value: Any) -> int:
        """The digest of an object graph."""
        return self.keep(self.codec.freeze(value))

    def get(self, digest: int) -> Any:
        """The object graph of a digest, made anew."""
        return self.codec.thaw(self._values[digest])

    def changed(self, digest: int, attribute: str, value: Any) -> int:
        """The digest of an object with another value in one attribute, one without objects of identity."""
        frozen = self._values[digest]
        place = frozen[0].kept.index(attribute) + 1
        return self.keep((*frozen[:place], self.codec.freeze(value), *frozen[place + 1 :]))

    def keep(self, frozen: Frozen) -> int:
        """The digest of a value."""
        digest = self._digests.get(frozen)
        if digest is None:
            digest = _digest(frozen)
            self._digests[frozen] = digest
            self._values[digest] = frozen
        return digest

    def renamed(self, digest: int, renaming: int) -> int:
        """The digest of the same part in a cluster whose nodes have other names."""
        if renaming == 1:
            return digest
        known = self._renamed[renaming]
        found = known.get(digest)
        if found is None:
            thawed = self._thawed.get(digest)
            if thawed is None:
                if len(self._thawed) >= _THAWED_MAX:
                    self._thawed.clear()
                thawed = self._thawed[digest] = self.get(digest)
            found = known[digest] = _digest(self.codec.freeze(thawed, self.renamings[renaming]))
        return found

    # Between processes, and between depths

    def pack(self, digests: Iterable[int]) -> bytes:
        """Parts for another process."""
        return self.codec.pack([(digest, self._values[digest]) for digest in digests])

    def adopt(self, packed: bytes) -> None:
        """Parts of another process."""
        for digest, frozen in self.codec.unpack(packed):
            if digest not in self._values:
                self._values[digest] = frozen
                self._digests.setdefault(frozen, digest)

    def forget(self, but: Container[int]) -> None:
        """Forget every part that is not named; their digests must not be asked for any more."""
        self._values = {digest: frozen for digest, frozen in self._values.items() if digest in but}
        self._digests = {frozen: digest for digest, frozen in self._values.items()}
        for known in self._renamed:
            known.clear()
        self._thawed.clear()


def _digest(frozen: Frozen) -> int:
    return int.from_bytes(blake2b(repr(frozen).encode(), digest_size=8).digest(), "big") >> 4
