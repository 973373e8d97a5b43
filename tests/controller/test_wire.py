"""The controller's API on the wire: every type survives, nonsense is refused, both sides know the same names."""

from __future__ import annotations

import dataclasses
import inspect
import random
import types
import typing
from collections.abc import Mapping
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest

from strandline.controller import api, wire
from strandline.controller.controller import Controller
from strandline.controller.mapping import Mapper
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.ids import Endpoint
from strandline.proto.v1 import controller_pb2 as pb

KINDS = [kind for _, kind in inspect.getmembers(api, dataclasses.is_dataclass) if kind.__module__ == api.__name__]


def sample(hint: Any, rng: random.Random) -> Any:
    """Some value of an annotation; empty, absent and zero among them."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if rng.random() < 0.4 else sample(arguments[0], rng)
    if origin is tuple:
        return tuple(sample(arguments[0], rng) for _ in range(rng.randrange(3)))
    if origin is not None and issubclass(origin, Mapping):
        return {f"key-{number}": sample(arguments[1], rng) for number in range(rng.randrange(3))}
    if hint is Endpoint:
        return Endpoint("host", rng.randrange(65536))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{field.name: sample(hints[field.name], rng) for field in dataclasses.fields(hint)})
    if issubclass(hint, IntEnum):
        return rng.choice(list(hint))
    plain: dict[type, Any] = {
        UUID: lambda: UUID(int=rng.getrandbits(128)),
        bool: lambda: rng.random() < 0.5,
        int: lambda: rng.choice([0, 1, 1000]),
        str: lambda: rng.choice(["", "text", "ж"]),
    }
    return plain[hint]()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_type_survives_the_wire(kind: type) -> None:
    """Absent and empty are told apart where the type tells them apart."""
    rng = random.Random(kind.__name__)
    for _ in range(20):
        value = sample(kind, rng)
        assert wire.decode(kind, wire.encode(value)) == value


def test_every_method_is_an_operation_of_the_controller() -> None:
    """The table of methods names real operations, each once, with types that the wire knows."""
    assert len({method.path for method in wire.METHODS}) == len(wire.METHODS)
    for method in wire.METHODS:
        hints = typing.get_type_hints(getattr(Controller, method.operation))
        assert (hints["request"], hints["return"]) == (method.request, method.reply)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x22\x03abc"])
def test_nonsense_is_refused(data: bytes) -> None:
    """Bytes that are no such message: not protobuf, cut short, an id of three bytes."""
    with pytest.raises(ProtocolError):
        wire.decode(api.RegisterBrokerRequest, data)


def test_nonsense_in_an_answer_is_refused() -> None:
    """In the envelope, and inside it."""
    for data in (b"\xff", b"\x0a\x05ab", pb.ControllerReply(payload=b"\xff").SerializeToString()):
        with pytest.raises(ProtocolError):
            wire.decode_answer(api.TopicOutcomes, data)


def test_unknown_number_of_an_enum_is_refused() -> None:
    """An operation this program does not know must not become another one."""
    data = pb.ConfigAlteration(name="a", operation=9).SerializeToString()
    with pytest.raises(ProtocolError):
        wire.decode(api.ConfigAlteration, data)


def test_errors_keep_code_and_sentence() -> None:
    """A refusal of the call as a whole is raised where it was asked."""
    data = wire.encode_error(KafkaError(ErrorCode.STALE_BROKER_EPOCH, "an older life"))
    with pytest.raises(KafkaError) as caught:
        wire.decode_answer(api.TopicOutcomes, data)
    assert (caught.value.code, caught.value.message) == (ErrorCode.STALE_BROKER_EPOCH, "an older life")


def test_field_that_one_side_lacks_is_found_at_import() -> None:
    """Dataclass and message cannot drift apart."""

    @dataclasses.dataclass(frozen=True)
    class ReplicaAssignment:
        partition: int

    with pytest.raises(TypeError, match="replicas"):
        Mapper(ReplicaAssignment, pb.ReplicaAssignment)
