"""Operations of the controller: every type survives the wire, nonsense is refused, a row is served and callable."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import random
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from strandline.controller import api, broker_api, methods, operations
from strandline.controller.machine.state import MachineState, Result
from strandline.controller.operations import OPERATIONS, Operation, machine_operation
from strandline.proto import isr
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, ProtocolError
from strandline.proto.messages.fields import SInt64
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


@dataclasses.dataclass(frozen=True)
class CountRequest:
    prefix: Annotated[str, 1]


@dataclasses.dataclass(frozen=True)
class CountReply:
    topics: Annotated[int, SInt64(1)]
    at_ms: Annotated[int, SInt64(2)]


def count_topics(state: MachineState, request: CountRequest, now_ms: float) -> Result[CountReply]:
    return Result(CountReply(sum(name.startswith(request.prefix) for name in state.image.topics), int(now_ms)))


@pytest.fixture
def made_up() -> Iterator[Operation[CountRequest, CountReply]]:
    """An operation more, by one row."""
    yield machine_operation("CountTopics", count_topics, heard=True)
    OPERATIONS.pop()


def test_a_row_is_all_that_an_operation_needs(made_up: Operation[CountRequest, CountReply]) -> None:
    """It is served by the active controller, called from every node, and every node may call it."""

    async def scenario(cluster: SimCluster) -> None:
        await cluster.create("orders", [[1]])
        for node in cluster.nodes.values():
            reply = await node.channel.ask(made_up, CountRequest("o"))
            assert reply.topics == 1
            assert reply.at_ms > 0

    SimCluster(3).play(scenario)
    assert made_up.method.path == "/strandline.v1.Controller/CountTopics"


def test_a_function_asks_for_nothing_that_there_is_not() -> None:
    def decide(state: MachineState, request: CountRequest, weather: str) -> Result[CountReply]:
        raise AssertionError

    with pytest.raises(TypeError, match="Forecast: weather: a deciding function may ask for next_offset and now_ms"):
        machine_operation("Forecast", decide)


def test_every_method_is_served() -> None:
    """Each path once, and nothing else."""

    async def scenario(cluster: SimCluster) -> None:
        unary, streams = cluster.nodes[1].controller.rpc_handlers()
        assert sorted(unary) == sorted(each.method.path for each in OPERATIONS)
        assert list(streams) == [methods.SESSION.path]

    SimCluster(1).play(scenario)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x22\x03abc"])
def test_nonsense_is_refused(data: bytes) -> None:
    """Bytes that are no such message: not protobuf, cut short, an endpoint without its end."""
    with pytest.raises(ProtocolError):
        operations.REGISTER_BROKER.method.request.decode(data)


def test_nonsense_in_an_answer_is_refused() -> None:
    """In the envelope, and inside it."""
    inside = ENVELOPE.encode(methods.ControllerReply(ErrorCode.NONE, payload=b"\xff"))
    for data in (b"\xff", b"\x0a\x05ab", inside):
        with pytest.raises(ProtocolError):
            methods.read_answer(operations.DELETE_TOPICS.method, data)


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

    path, handler = methods.served(operations.DELETE_TOPICS.method, refuse, lambda: 0)
    assert path == operations.DELETE_TOPICS.method.path
    data = asyncio.run(_answer(handler, operations.DELETE_TOPICS.method.request.encode(api.DeleteTopicsRequest(()))))
    with pytest.raises(KafkaError) as caught:
        methods.read_answer(operations.DELETE_TOPICS.method, data)
    assert (caught.value.code, caught.value.message) == (ErrorCode.STALE_BROKER_EPOCH, "an older life")


async def _answer(handler: Any, data: bytes) -> bytes:
    return bytes(await handler(data))


def test_an_error_of_a_later_version_is_still_an_error() -> None:
    """A number that this program has no name for."""
    message = ENVELOPE.to_message(methods.ControllerReply(ErrorCode.NONE, "what this is, only later versions know"))
    message.error = 9_999
    with pytest.raises(KafkaError, match="only later versions know") as caught:
        methods.read_answer(operations.DELETE_TOPICS.method, message.SerializeToString())
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
