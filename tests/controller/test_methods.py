"""The calls of the controller: every type survives the wire, nonsense is refused, every call is served and callable."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import random
from typing import Any, get_type_hints

import pytest

from strandline.controller import api, broker_api, methods
from strandline.controller.channel import ControllerChannel, Operation
from strandline.controller.controller import Controller
from strandline.proto import isr
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.messages.mapper import mapper_of
from strandline.proto.tier import EpochStart, TierChange, TieredSegment, TierOutcome
from tests.controller.sim_cluster import SimCluster
from tests.proto.messages.samples import sample

KINDS = [
    kind
    for module in (api, broker_api, isr)
    for _, kind in inspect.getmembers(module, dataclasses.is_dataclass)
    if kind.__module__ == module.__name__
]
KINDS += [EpochStart, TieredSegment, TierChange, TierOutcome]
ENVELOPE = mapper_of(methods.ControllerReply)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_type_survives_the_wire(kind: type) -> None:
    """Absent and empty are told apart where the type tells them apart."""
    rng = random.Random(kind.__name__)
    mapper: Any = mapper_of(kind)
    for _ in range(20):
        value = sample(kind, rng)
        assert mapper.decode(mapper.encode(value)) == value


def snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")


def test_every_method_is_an_operation_of_controller_and_channel() -> None:
    """Under the method's own name, with the method's types."""
    for method in methods.METHODS:
        hints = get_type_hints(getattr(Controller, snake(method.name)))
        assert (hints["request"], hints["return"]) == (method.request.kind, method.reply.kind)
        called = vars(ControllerChannel)[snake(method.name)]
        if isinstance(called, Operation):
            assert called.method is method
        else:
            assert method is methods.CREATE_TOPICS
            assert get_type_hints(called)["return"] is method.reply.kind


def test_every_method_is_served() -> None:
    """Each path once, and nothing else."""

    async def scenario(cluster: SimCluster) -> None:
        unary, streams = cluster.nodes[1].controller.rpc_handlers()
        assert sorted(unary) == sorted(method.path for method in methods.METHODS)
        assert list(streams) == [methods.SESSION.path]

    SimCluster(1).play(scenario)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x22\x03abc"])
def test_nonsense_is_refused(data: bytes) -> None:
    """Bytes that are no such message: not protobuf, cut short, an endpoint without its end."""
    with pytest.raises(ProtocolError):
        methods.REGISTER_BROKER.request.decode(data)


def test_nonsense_in_an_answer_is_refused() -> None:
    """In the envelope, and inside it."""
    inside = ENVELOPE.encode(methods.ControllerReply(ErrorCode.NONE, payload=b"\xff"))
    for data in (b"\xff", b"\x0a\x05ab", inside):
        with pytest.raises(ProtocolError):
            methods.read_answer(methods.DELETE_TOPICS, data)


def test_unknown_number_of_an_enum_is_refused() -> None:
    """An operation this program does not know must not become another one."""
    alteration = mapper_of(api.ConfigAlteration)
    message = alteration.to_message(api.ConfigAlteration("a", api.ConfigOperation.SET, None))
    message.operation = 9
    with pytest.raises(ProtocolError, match="9 is not a valid ConfigOperation"):
        alteration.decode(message.SerializeToString())


def test_errors_keep_code_and_sentence() -> None:
    """A refusal of the call as a whole is raised where it was asked."""

    async def refuse(_: api.DeleteTopicsRequest) -> api.TopicOutcomes:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, "an older life")

    path, handler = methods.served(methods.DELETE_TOPICS, refuse, lambda: 0)
    assert path == methods.DELETE_TOPICS.path
    data = asyncio.run(_answer(handler, methods.DELETE_TOPICS.request.encode(api.DeleteTopicsRequest(()))))
    with pytest.raises(KafkaError) as caught:
        methods.read_answer(methods.DELETE_TOPICS, data)
    assert (caught.value.code, caught.value.message) == (ErrorCode.STALE_BROKER_EPOCH, "an older life")


async def _answer(handler: Any, data: bytes) -> bytes:
    return bytes(await handler(data))


def test_an_error_of_a_later_version_is_still_an_error() -> None:
    """A number that this program has no name for."""
    message = ENVELOPE.to_message(methods.ControllerReply(ErrorCode.NONE, "what this is, only later versions know"))
    message.error = 9_999
    with pytest.raises(KafkaError, match="only later versions know") as caught:
        methods.read_answer(methods.DELETE_TOPICS, message.SerializeToString())
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
