"""Messages of the port between nodes as an attacker writes them: well formed, nearly so, and not at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from strandline.controller.operations import OPERATIONS
from strandline.controller.quorum.methods import METHODS as QUORUM_METHODS
from strandline.controller.raft.config import EPOCH_LEAD_MAX, EPOCH_MAX

QUORUM: dict[str, type[Message]] = {method.path: method.request.message for method in QUORUM_METHODS.values()}
CONTROLLER: dict[str, type[Message]] = {each.method.path: each.method.request.message for each in OPERATIONS}

FORESEEN = ("ProtocolError", "RpcUnavailable")
"""How an answer begins that refuses a message; of any other error a handler has failed."""

ITS_OWN = ("RemoveVoterRequest", "UnregisterBrokerRequest", "DeleteTopicsRequest")
"""Well formed and with true ids these are commands, and are obeyed: here they name strangers alone."""

NUMBERS = (*range(8), 100, 1000, 70_000, 2**31 - 2, 2**31 - 1, -1, -(2**31))
WIDE = (*NUMBERS, 2**40, 2**62, 2**63 - 1, -(2**63))
NAMES = ("t", "new", "", "no-such", "a\0b", "ж" * 40, "x" * 300, "..", "__consumer_offsets", "retention.ms", "-1")


class Attacker:
    """Draws messages. It knows the cluster's id, its voters and their directories, and what epoch there is.

    One lie is not told: that a voter has exactly what this very leader has. Without a key that names the voter nothing
    tells that from the truth, and it commits what nobody else holds.
    """

    def __init__(
        self, rng: random.Random, cluster_id: str, directories: Mapping[int, UUID], epoch: Callable[[], int]
    ) -> None:
        self._rng = rng
        self._cluster_id = cluster_id
        self._directories = dict(directories)
        self._epoch = epoch

    def message(self, kinds: Mapping[str, type[Message]]) -> tuple[str, bytes]:
        """A method's path, and bytes for it."""
        rng = self._rng
        path = rng.choice(sorted(kinds))
        if rng.random() < 0.05:
            return path, rng.randbytes(rng.choice((0, 1, 3, 40, 400)))
        data = self.filled(kinds[path]).SerializeToString()
        whole = rng.random() < 0.7 or kinds[path].DESCRIPTOR.name in ITS_OWN
        return path, data if whole else self.mutated(data)

    def filled(self, kind: type[Message]) -> Message:
        """A message that parses."""
        message = kind()
        self._fill(message, message.DESCRIPTOR.name)
        return message

    def mutated(self, data: bytes) -> bytes:
        """Bits turned over, bytes lost, doubled and put in."""
        rng, out = self._rng, bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(out) + 1)
            change = rng.randrange(4)
            if change == 0 and at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            elif change == 1:
                del out[at : at + rng.choice((1, 2, 8))]
            elif change == 2:
                out[at:at] = out[at : at + 8]
            else:
                out[at:at] = rng.randbytes(rng.choice((1, 4)))
        return bytes(out)

    def _fill(self, message: Message, whole: str) -> None:
        rng = self._rng
        if message.DESCRIPTOR.name == "ReplicaKey":
            self._fill_key(message, whole)
            return
        for field in message.DESCRIPTOR.fields:
            if field.message_type is not None:
                parts = getattr(message, field.name)
                for part in [parts.add() for _ in range(rng.randrange(3))] if _repeated(field) else [parts]:
                    self._fill(part, whole)
            elif _repeated(field):
                getattr(message, field.name).extend(self._value(field, whole) for _ in range(rng.randrange(4)))
            elif rng.random() < 0.9:
                setattr(message, field.name, self._value(field, whole))

    def _fill_key(self, message: Any, whole: str) -> None:
        node = self._node(whole)
        message.node_id = node
        known = self._directories.get(node)
        if known is not None and self._rng.random() < 0.8:
            message.directory_id = known.bytes
        else:
            message.directory_id = self._bytes()

    def _value(self, field: FieldDescriptor, whole: str) -> Any:
        rng = self._rng
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._bytes()
        if field.type == FieldDescriptor.TYPE_STRING:
            if field.name == "cluster_id":
                return self._cluster_id if rng.random() < 0.95 else rng.choice(NAMES)
            return rng.choice(NAMES)
        if field.name in ("node_id", "leader_id", "replicas"):
            return self._node(whole)
        if field.name == "fetch_offset":
            return rng.choice((0, 1, 1, 2**62, 2**63 - 1, -1))
        if field.name.endswith("epoch") and rng.random() < 0.8:
            return self._near()
        if field.cpp_type == FieldDescriptor.CPPTYPE_UINT32:
            return abs(rng.choice(NUMBERS)) % 2**32
        return rng.choice(WIDE if field.cpp_type == FieldDescriptor.CPPTYPE_INT64 else NUMBERS)

    def _near(self) -> int:
        epoch = self._epoch()
        above = self._rng.choice((0, 0, 0, 1, 2, 10, EPOCH_LEAD_MAX // 2, EPOCH_LEAD_MAX, EPOCH_LEAD_MAX + 1, -1))
        return min(epoch + above, EPOCH_MAX)

    def _node(self, whole: str) -> int:
        if whole in ITS_OWN:
            return self._rng.choice((9, -1, 2**31 - 1))
        return self._rng.choice((1, 2, 3) * 5 + (9, 0, -1, 2**31 - 1))

    def _bytes(self) -> bytes:
        return self._rng.choice((b"", bytes(16), *[self._rng.randbytes(16)] * 5, self._rng.randbytes(7)))


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)
