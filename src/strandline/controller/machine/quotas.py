"""AlterClientQuotas (KIP-546), as Kafka's ClientQuotaControlManager judges it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from strandline.controller.machine.state import MachineState, Result
from strandline.controller.metadata.quotas import quota_record
from strandline.controller.metadata.records import MetadataRecord
from strandline.controller.quota_api import AlterQuotasReply, AlterQuotasRequest, QuotaChange, QuotaOutcome
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.quotas import QuotaEntity, entity_fault, value_fault

QUOTAS_MAX = 100_000
"""Entities with quotas of a cluster: every node holds them in memory. Kafka has no bound; defaults need few."""

CHANGES_MAX = 10_000
"""Records of one request (Kafka's MAX_RECORDS_PER_USER_OP): they stand in one atomic batch."""


def alter_client_quotas(state: MachineState, request: AlterQuotasRequest) -> Result[AlterQuotasReply]:
    """Set and remove quotas; each entity succeeds or fails alone, with all that is asked for it.

    Raises:
        KafkaError: POLICY_VIOLATION: more changes than one batch may hold.
    """
    known = state.image.quotas
    entities = [QuotaEntity(one.user, one.client_id, one.ip) for one in request.alterations]
    counts = Counter(entities)
    records: list[MetadataRecord] = []
    outcomes: list[QuotaOutcome] = []
    added = 0
    for entity, alteration in zip(entities, request.alterations, strict=True):
        try:
            if counts[entity] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {entity}")
            wanted = _wanted(entity, alteration.changes)
            is_new = entity not in known and any(value is not None for value in wanted.values())
            if is_new and len(known) + added >= QUOTAS_MAX:  # rule A21/quotas-without-number
                words = f"the cluster has quotas for {QUOTAS_MAX} entities, as many as it may; defaults need fewer"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, words)
        except KafkaError as error:
            outcomes.append(QuotaOutcome(error.code, error.message))
            continue
        added += is_new
        was = known.get(entity, {})
        records += [quota_record(entity, key, value) for key, value in wanted.items() if was.get(key) != value]
        outcomes.append(QuotaOutcome(ErrorCode.NONE))
    if len(records) > CHANGES_MAX:
        words = f"one request may change {CHANGES_MAX} quotas, not {len(records)}"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, words)
    return Result(AlterQuotasReply(tuple(outcomes)), [] if request.validate_only else records)


def _wanted(entity: QuotaEntity, changes: tuple[QuotaChange, ...]) -> Mapping[str, float | None]:
    """The values by key; None: removed. Raises KafkaError INVALID_REQUEST."""
    fault = entity_fault(entity)
    wanted: dict[str, float | None] = {}
    for change in changes:
        if change.key in wanted:
            fault = fault or f"Duplicate quota key {change.key} not updating quota for this entity {entity}"
        wanted[change.key] = None if change.value is None else _number(change.value)
        if change.value is not None:
            fault = fault or value_fault(entity, change.key, wanted[change.key] or 0.0)
    if fault:
        raise KafkaError(ErrorCode.INVALID_REQUEST, fault)
    return wanted


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0
