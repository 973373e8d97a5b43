"""AlterClientQuotas in the machine: Kafka's errors, one outcome an entity; what a snapshot keeps."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.controller.machine import quotas
from strandline.controller.machine.quotas import alter_client_quotas
from strandline.controller.machine.state import MachineSettings, MachineState
from strandline.controller.metadata.config_resolver import ConfigResolver
from strandline.controller.metadata.delta import MetadataDelta, diff
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.quotas import ClientQuotaRecord
from strandline.controller.metadata.records import MetadataVersionRecord
from strandline.controller.metadata.snapshot import image_records, load_image
from strandline.controller.metadata.table import decode_record, encode_record
from strandline.controller.quota_api import AlterQuotasRequest, QuotaAlteration, QuotaChange, QuotaOutcome
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError, KafkaError
from strandline.proto.quotas import QuotaEntity, entity_of

ALICE, DEFAULT_USER = QuotaEntity("alice"), QuotaEntity("")
PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATION, CONNECTION = "controller_mutation_rate", "connection_creation_rate"
HERE, EVERYWHERE = QuotaEntity(ip="10.0.0.1"), QuotaEntity(ip="")


def machine() -> MachineState:
    delta = MetadataDelta(MetadataImage("c"))
    delta.apply(MetadataVersionRecord(1))
    return MachineState(delta.image(0, 1, 0), ConfigResolver({}), random.Random(1), MachineSettings(), 0.0)


def alteration(entity: QuotaEntity, values: Mapping[str, float | None]) -> QuotaAlteration:
    changes = tuple(QuotaChange(key, None if value is None else repr(value)) for key, value in values.items())
    return QuotaAlteration(entity.user, entity.client_id, changes, entity.ip)


def run(state: MachineState, *alterations: QuotaAlteration, validate_only: bool = False) -> list[QuotaOutcome]:
    result = alter_client_quotas(state, AlterQuotasRequest(alterations, validate_only))
    records = [decode_record(encode_record(record)) for record in result.records]
    state.adopt(state.replay(records), state.image.offset + len(records))
    return list(result.reply.outcomes)


def alter(state: MachineState, entity: QuotaEntity, **values: float | None) -> QuotaOutcome:
    return run(state, alteration(entity, values))[0]


def test_quotas_are_set_changed_and_removed() -> None:
    state = machine()
    assert alter(state, ALICE, producer_byte_rate=1000.0, request_percentage=12.5) == QuotaOutcome(ErrorCode.NONE)
    alter(state, DEFAULT_USER, consumer_byte_rate=5.0)
    alter(state, QuotaEntity("alice", ""), producer_byte_rate=1.0)
    assert state.image.quotas == {
        ALICE: {PRODUCE: 1000.0, REQUEST: 12.5},
        DEFAULT_USER: {FETCH: 5.0},
        QuotaEntity("alice", ""): {PRODUCE: 1.0},
    }
    alter(state, ALICE, producer_byte_rate=None, request_percentage=50.0)
    alter(state, DEFAULT_USER, consumer_byte_rate=None)
    assert state.image.quotas == {ALICE: {REQUEST: 50.0}, QuotaEntity("alice", ""): {PRODUCE: 1.0}}


def test_what_changes_nothing_is_no_record() -> None:
    state = machine()
    alter(state, ALICE, producer_byte_rate=1000.0)
    request = AlterQuotasRequest((alteration(ALICE, {PRODUCE: 1000.0, FETCH: None}),))
    assert alter_client_quotas(state, request).records == []


def test_a_rehearsal_changes_nothing_and_finds_the_errors() -> None:
    state = machine()
    outcomes = run(
        state, alteration(ALICE, {PRODUCE: 1.0}), alteration(DEFAULT_USER, {PRODUCE: -1.0}), validate_only=True
    )
    assert [one.error for one in outcomes] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert state.image.quotas == {}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (PRODUCE, 0.0, "greater than 0"),
        (PRODUCE, -1.0, "greater than 0"),
        (REQUEST, math.nan, "greater than 0"),
        (REQUEST, math.inf, "greater than 0"),
        (FETCH, 1.5, "fractional"),
        (FETCH, 1e19, "too large for a LONG"),
        ("producer_rate", 1.0, "Invalid configuration key producer_rate; possible for a user or a client-id: producer"),
        (MUTATION, 0.0, "greater than 0"),
        (CONNECTION, 1.0, "Invalid configuration key connection_creation_rate"),
    ],
)
def test_a_quota_that_cannot_be_is_refused_with_all_of_its_entity(key: str, value: float, words: str) -> None:
    state = machine()
    outcomes = run(state, alteration(ALICE, {REQUEST: 5.0} | {key: value}), alteration(DEFAULT_USER, {REQUEST: 7.0}))
    assert outcomes[0].error is ErrorCode.INVALID_REQUEST
    assert words in outcomes[0].message
    assert state.image.quotas == {DEFAULT_USER: {REQUEST: 7.0}}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (CONNECTION, 1.5, "fractional"),
        (CONNECTION, 2.0**31, "too large for an INT"),
        (CONNECTION, 0.0, "greater than 0"),
        (PRODUCE, 1.0, "possible for an ip: connection_creation_rate"),
        (MUTATION, 1.0, "possible for an ip: connection_creation_rate"),
    ],
)
def test_an_ip_has_one_key_of_whole_numbers(key: str, value: float, words: str) -> None:
    state = machine()
    assert words in run(state, alteration(HERE, {key: value}))[0].message
    assert words in run(state, alteration(EVERYWHERE, {key: value}))[0].message
    assert state.image.quotas == {}
    assert alter(state, HERE, connection_creation_rate=5.0).error is ErrorCode.NONE
    assert alter(state, EVERYWHERE, connection_creation_rate=2.0**31 - 1).error is ErrorCode.NONE
    assert state.image.quotas == {HERE: {CONNECTION: 5.0}, EVERYWHERE: {CONNECTION: 2.0**31 - 1}}


@pytest.mark.parametrize(
    "entity",
    [QuotaEntity(user="alice", ip="10.0.0.1"), QuotaEntity(client_id="", ip=""), QuotaEntity(ip="localhost")],
)
def test_the_machine_refuses_an_ip_that_cannot_be(entity: QuotaEntity) -> None:
    """It is asked by brokers, of which one may be of another version."""
    state = machine()
    assert alter(state, entity, connection_creation_rate=5.0).error is ErrorCode.INVALID_REQUEST


def test_an_address_is_one_entity_however_it_is_written() -> None:
    for written in ("10.0.0.1", "::ffff:10.0.0.1"):
        assert entity_of([("ip", written)]) == HERE
    assert entity_of([("ip", "2001:DB8:0::7")]) == QuotaEntity(ip="2001:db8::7")
    assert entity_of([("ip", None)]) == EVERYWHERE


def test_an_entity_or_a_key_stands_in_a_request_once() -> None:
    state = machine()
    outcomes = run(state, *[alteration(ALICE, {PRODUCE: value}) for value in (1.0, 2.0)])
    assert [one.error for one in outcomes] == [ErrorCode.INVALID_REQUEST] * 2
    twice = QuotaAlteration("alice", None, (QuotaChange(PRODUCE, "1.0"), QuotaChange(PRODUCE, "2.0")))
    assert run(state, twice)[0].error is ErrorCode.INVALID_REQUEST
    assert state.image.quotas == {}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "Invalid empty client quota entity"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("ip", "localhost")], "localhost is not a valid IP or resolvable host"),
        ([("ip", "10.0.0.256")], "10.0.0.256 is not a valid IP"),
        ([("ip", "")], "Empty ip not supported"),
        ([("ip", "10.0.0.1"), ("user", "alice")], "IP entity should not be used with user/client ID entity"),
        ([("ip", None), ("client-id", None)], "IP entity should not be used with user/client ID entity"),
        ([("group", "g")], "Unhandled client quota entity type: group"),
        ([("client-id", "")], "Empty client-id not supported"),
        ([("user", "a" * 256)], "255 characters"),
    ],
)
def test_entities_that_cannot_be(parts: list[tuple[str, str | None]], words: str) -> None:
    with pytest.raises(KafkaError, match=words) as caught:
        entity_of(parts)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_quotas_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "QUOTAS_MAX", 2)
    state = machine()
    outcomes = run(state, *[alteration(QuotaEntity(f"u{number}"), {PRODUCE: 1.0}) for number in range(3)])
    assert [one.error for one in outcomes] == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    assert alter(state, QuotaEntity("u0"), consumer_byte_rate=1.0).error is ErrorCode.NONE
    monkeypatch.setattr(quotas, "CHANGES_MAX", 1)
    with pytest.raises(KafkaError, match="one request may change 1 quotas, not 2"):
        run(state, alteration(QuotaEntity("u0"), {PRODUCE: 9.0, FETCH: 9.0}))


clients = st.builds(
    QuotaEntity, st.none() | st.sampled_from(["", "a", "b"]), st.none() | st.sampled_from(["", "c"]), st.none()
).filter(lambda entity: entity != QuotaEntity())
ips = st.builds(QuotaEntity, st.none(), st.none(), st.sampled_from(["", "10.0.0.1", "2001:db8::7"]))
entities = clients | ips
values = st.none() | st.integers(1, 10**6).map(float)


def key_of(entity: QuotaEntity) -> str:
    return REQUEST if entity.ip is None else CONNECTION


@given(st.lists(st.tuples(entities, values), max_size=12))
def test_a_snapshot_keeps_every_quota(steps: list[tuple[QuotaEntity, float | None]]) -> None:
    state = machine()
    before = state.image
    model: dict[QuotaEntity, float] = {}
    for entity, value in steps:
        run(state, alteration(entity, {key_of(entity): value}))
        model.pop(entity, None)
        if value is not None:
            model[entity] = value
    image = state.image
    assert image.quotas == {entity: {key_of(entity): value} for entity, value in model.items()}
    records = [decode_record(encode_record(record)) for record in image_records(image)]
    loaded = load_image("c", records, image.offset + 1, 1)
    assert loaded.quotas == image.quotas
    assert image_records(loaded) == image_records(image)
    assert diff(before, image)[MetadataImage.quotas].changed.keys() == model.keys()
    assert diff(before, image).empty == (not model)


@pytest.mark.parametrize(
    "record",
    [
        ClientQuotaRecord(None, None, PRODUCE, "1.0"),
        ClientQuotaRecord("alice", None, "another_rate", "1.0"),
        ClientQuotaRecord("alice", None, PRODUCE, "-1.0"),
        ClientQuotaRecord("alice", None, PRODUCE, "many"),
        ClientQuotaRecord("alice", None, PRODUCE, "1"),
        ClientQuotaRecord("alice", None, PRODUCE, None),
        ClientQuotaRecord("alice", None, CONNECTION, "1.0"),
        ClientQuotaRecord(None, None, PRODUCE, "1.0", "10.0.0.1"),
        ClientQuotaRecord(None, None, CONNECTION, "1.0", "localhost"),
        ClientQuotaRecord("alice", None, CONNECTION, "1.0", "10.0.0.1"),
    ],
)
def test_damaged_quotas_stop_the_replay(record: ClientQuotaRecord) -> None:
    """Rule A21: what nobody can have written is not gone by."""
    with pytest.raises(FatalError, match="he metadata is damaged"):
        machine().replay([record])
