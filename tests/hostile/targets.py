"""Every parser of bytes from outside, as a function of bytes: it returns, or raises what it says it raises."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from joserfc.jwk import ECKey, KeySet

from strandline.cluster.broker.handlers import metadata as metadata_api
from strandline.cluster.security.plain import PlainUsers
from strandline.cluster.security.sasl import MECHANISMS, OAUTHBEARER, Mechanisms, SaslSession, SaslSettings
from strandline.cluster.security.tokens import TokenError, Tokens, TokenSettings, parse_keys
from strandline.controller import methods
from strandline.controller.metadata import table as metadata_table
from strandline.controller.operations import OPERATIONS
from strandline.controller.quorum.methods import METHODS as QUORUM_METHODS
from strandline.controller.quorum.state_file import _decode as decode_quorum_state
from strandline.log import checkpoints, records_python
from strandline.log.batch import (
    Record,
    check_client_batches,
    check_replicated_batches,
    decode_records,
    iter_batches,
    verify_crc,
)
from strandline.log.compression import Codec, decompress
from strandline.log.config import LogConfig
from strandline.log.producer_state import SnapshotDamaged, decode_snapshot
from strandline.log.scan import Damage, find_batch_after, scan_batches
from strandline.log.segment import IndexDamaged, OffsetIndex, TimeIndex
from strandline.proto.believed import BelievedClock
from strandline.proto.errors import CorruptLogError, FatalError, KafkaError, ProtocolError
from strandline.proto.kafka import (
    consumer_group_records,
    consumer_protocol,
    fetch,
    group_records,
    produce,
    schema,
)
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.fields import (
    read_client_id,
    read_correlation_id,
    read_request_header,
    read_uvarint,
    response_body,
    skip_tags,
)
from strandline.proto.scram import SaltedPasswords, ScramClient, ScramCredential, ScramError, ScramMechanism
from strandline.replica import frames
from tests.hostile.messages import EVERY_ANSWER, EVERY_VERSION
from tests.hostile.tls_target import hand_over
from tests.log.helpers import ManualClock

UNPACKED_MAX = 1 << 20
CORPUS = Path(__file__).parent / "corpus"


class Target(NamedTuple):
    """A parser. `refusals` are the errors that it documents; any other is a bug."""

    parse: Callable[[bytes], Any]
    refusals: tuple[type[Exception], ...] = ()


def run(name: str, data: bytes) -> None:
    """One try. Raises what the parser must not raise."""
    target = TARGETS[name]
    try:
        target.parse(data)
    except target.refusals:
        return


def _pick(choices: list[Any], data: bytes) -> tuple[Any, bytes]:
    """What the first byte says, and the rest."""
    return choices[(data[0] if data else 0) % len(choices)], data[1:]


PRODUCE = range(produce.FIRST, produce.LAST + 1)
FETCH = range(fetch.FIRST, fetch.LAST + 1)
METADATA = range(metadata_api.VERSIONS[0], metadata_api.VERSIONS[1] + 1)

# ---------------------------------------------------------------- requests, in the broker


def read_request(key: int, version: int, body: bytes) -> Any:
    """As the broker reads it."""
    by_hand: dict[int, Callable[[memoryview, int], Any]] = {
        Api.PRODUCE: produce.read_request,
        Api.FETCH: fetch.read_request,
        Api.METADATA: metadata_api.read_request,
    }
    return by_hand[key](memoryview(body), version) if key in by_hand else schema.request(Api(key), version).decode(body)


def _request(data: bytes) -> None:
    (key, version), body = _pick(EVERY_VERSION, data)
    schema.request(Api(key), version).decode(body)


def _of_versions(read: Callable[[memoryview, int], Any], versions: range) -> Callable[[bytes], None]:
    def parse(data: bytes) -> None:
        version, body = _pick(list(versions), data)
        read(memoryview(body), version)

    return parse


# ---------------------------------------------------------------- answers, in the client


def read_answer(api: Api, version: int, body: bytes) -> Any:
    """As the client reads it."""
    by_hand: dict[Api, Callable[[memoryview, int], Any]] = {
        Api.PRODUCE: produce.read_response,
        Api.FETCH: fetch.read_response,
    }
    return by_hand[api](memoryview(body), version) if api in by_hand else schema.response(api, version).decode(body)


def _response(data: bytes) -> None:
    (api, version), body = _pick(EVERY_ANSWER, data)
    schema.response(api, version).decode(body)


def _headers(data: bytes) -> None:
    """What stands before a message, on either side."""
    flexible, raw = _pick([False, True], data)
    for read in (read_request_header, read_correlation_id):
        try:
            read(memoryview(raw))
        except ProtocolError:
            continue
    for read_rest in (read_client_id, response_body):
        try:
            read_rest(memoryview(raw), flexible)
        except ProtocolError:
            continue


def _members(data: bytes) -> None:
    """What members of a group tell one another: read by clients and by coordinators."""
    consumer_protocol.subscribed_topics(data)
    for read in (
        consumer_protocol.decode_subscription,
        consumer_protocol.decode_assignment,
        consumer_protocol.decode_partitions,
    ):
        try:
            read(data)
        except ProtocolError:
            continue


# ---------------------------------------------------------------- batches and records


def _batches(data: bytes) -> None:
    for header, batch in iter_batches(data):
        verify_crc(batch)
        decode_records(batch, UNPACKED_MAX)
        assert header.size == len(batch)


def _records(data: bytes) -> None:
    """Both codecs, and they agree."""
    from strandline.log import batch

    count, body = _pick(list(range(5)), data)
    arguments = (body, count, 100, 5, None, Record, (None,) * 5, (0, 1, 2, 3, 4))
    assert _outcome(batch.decode, *arguments) == _outcome(records_python.decode, *arguments)
    assert _outcome(batch.check, body, count) == _outcome(records_python.check, body, count)


def _outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except ValueError:
        return ValueError


def _decompress(data: bytes) -> None:
    which, body = _pick(list(Codec), data)
    assert len(decompress(which, body, UNPACKED_MAX)) <= UNPACKED_MAX


def _client_batches(data: bytes) -> None:
    check_client_batches(memoryview(bytearray(data)), LogConfig(), now_ms=0)


def _replicated_batches(data: bytes) -> None:
    check_replicated_batches(memoryview(data), 0, 0)


class _Bytes:
    """A file that is only read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def pread(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]


def _segment(data: bytes) -> None:
    file: Any = _Bytes(data)
    position = 0
    for found in scan_batches(file, 0, -1):
        assert found.position >= position
        position = found.position
        if isinstance(found, Damage):
            find_batch_after(file, found.position, found.offset)


# ---------------------------------------------------------------- files


def _indexes(data: bytes) -> None:
    for parse in (lambda: OffsetIndex.parse(data, 1 << 20), lambda: TimeIndex.parse(data)):
        try:
            parse()
        except IndexDamaged:
            continue


def _checkpoints(data: bytes) -> None:
    readers = (
        checkpoints.decode_offsets,
        checkpoints.decode_epochs,
        checkpoints.MetaProperties.decode,
        checkpoints.decode_partition_metadata,
    )
    for read in readers:
        try:
            read("file", data)
        except CorruptLogError:
            continue


# ---------------------------------------------------------------- between nodes


@dataclass
class _Side:
    """Takes every entry of a stream."""

    entries: list[Any] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *values: self.entries.append(values)


def _stream(data: bytes) -> None:
    side: Any = _Side()
    for read in (
        frames.read_hello,
        lambda raw: frames.read_requests(raw, side),
        lambda raw: frames.read_replies(raw, side),
    ):
        try:
            read(data)
        except ProtocolError:
            continue


def _quorum(data: bytes) -> None:
    method, body = _pick(list(QUORUM_METHODS.values()), data)
    for message in (method.request, method.reply):
        try:
            message.decode(body)
        except ProtocolError:
            continue


def _controller(data: bytes) -> None:
    operation, body = _pick(OPERATIONS, data)
    method = operation.method
    for decode in (method.request.decode, method.reply.decode, partial(methods.read_answer, method)):
        try:
            decode(body)
        except (ProtocolError, KafkaError):
            continue


GROUP_READERS = (
    group_records.read_key,
    group_records.OFFSET.read,
    group_records.read_group_value,
    *(one.read for one in consumer_group_records.CONSUMER_GROUP_TYPES),
)


def _group_records(data: bytes) -> None:
    """What a coordinator replays."""
    read, body = _pick(list(GROUP_READERS), data)
    read(body)


def _varint(data: bytes) -> None:
    value, position = read_uvarint(data, 0)
    assert 0 <= value < 2**31
    assert 1 <= position <= 5


# ---------------------------------------------------------------- logins


class _Nobody:
    """Users of whom nobody knows a password."""

    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential:
        return ScramCredential(b"salt", 4096, b"k" * mechanism.key_bytes, b"k" * mechanism.key_bytes)

    def knows(self, mechanism: ScramMechanism, name: str) -> bool:
        return False


_TITLES = [title for title in MECHANISMS if title != OAUTHBEARER]
_MECHANISMS = Mechanisms(
    SaslSettings(_TITLES), _Nobody(), PlainUsers({"alice": "8f1e0d5c2ba1"}, random.Random(1)), random.Random(2)
)


def _login(data: bytes) -> None:
    """Messages of a client, parted by 0xff; nothing raises, and nobody is let in."""
    title, rest = _pick(_TITLES, data)
    session = SaslSession(_MECHANISMS)
    session.handshake(title, 1)
    for number, token in enumerate(rest.split(b"\xff")):
        outcome = session.authenticate(token, float(number))
        assert not outcome.proven
        assert not session.is_open


@cache
def _tokens() -> Tokens:
    keys = parse_keys(json.dumps(KeySet([ECKey.generate_key("P-256")]).as_dict(private=False)))
    return Tokens(TokenSettings("issuer", ("audience",)), lambda: keys, BelievedClock(ManualClock(0)))


def _server_of_scram(data: bytes) -> None:
    """Both messages of a server, parted by 0xff."""
    client = ScramClient(ScramMechanism.SHA_256, "alice", SaltedPasswords("secret"), "abc")
    first, _, last = data.partition(b"\xff")
    client.final(first)
    client.verify(last)


TARGETS: dict[str, Target] = {
    "request": Target(_request, (ProtocolError,)),
    "produce-request": Target(_of_versions(produce.read_request, PRODUCE), (ProtocolError,)),
    "fetch-request": Target(_of_versions(fetch.read_request, FETCH), (ProtocolError,)),
    "metadata-request": Target(_of_versions(metadata_api.read_request, METADATA), (ProtocolError,)),
    "tagged-fields": Target(lambda data: skip_tags(memoryview(data), 0), (ProtocolError,)),
    "response": Target(_response, (ProtocolError,)),
    "produce-response": Target(_of_versions(produce.read_response, PRODUCE), (ProtocolError,)),
    "fetch-response": Target(_of_versions(fetch.read_response, FETCH), (ProtocolError,)),
    "headers": Target(_headers),
    "members": Target(_members),
    "varint": Target(_varint, (ProtocolError,)),
    "batches": Target(_batches, (KafkaError,)),
    "records": Target(_records),
    "decompress": Target(_decompress, (KafkaError,)),
    "client-batches": Target(_client_batches, (KafkaError,)),
    "replicated-batches": Target(_replicated_batches, (KafkaError,)),
    "segment": Target(_segment),
    "indexes": Target(_indexes),
    "checkpoints": Target(_checkpoints),
    "producer-snapshot": Target(decode_snapshot, (SnapshotDamaged,)),
    "stream": Target(_stream),
    "quorum": Target(_quorum),
    "controller": Target(_controller),
    "metadata-record": Target(metadata_table.decode_record, (FatalError,)),
    "group-records": Target(_group_records, (ProtocolError,)),
    "login": Target(_login),
    "hand-over": Target(hand_over),
    "token": Target(lambda data: _tokens().check(data), (TokenError,)),
    "scram-server": Target(_server_of_scram, (ScramError,)),
    "quorum-state": Target(decode_quorum_state, (ValueError, KeyError, TypeError)),
}

MESSAGES = (
    "request", "produce-request", "fetch-request", "metadata-request", "response", "produce-response", "fetch-response",
)  # fmt: skip
"""The parsers of messages, on both sides."""
