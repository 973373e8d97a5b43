"""CreateAcls and DeleteAcls, as Kafka's AclControlManager decides them."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.controller.api import AclOutcome, AclOutcomes, CreateAclsRequest, DeleteAclsRequest
from strandline.controller.machine.state import MachineState, Result
from strandline.controller.metadata.records import (
    AccessControlEntryRecord,
    MetadataRecord,
    RemoveAccessControlEntryRecord,
)
from strandline.proto.acls import AclBinding, AclFilter, binding_fault, filter_fault
from strandline.proto.error_codes import ErrorCode

ACLS_MAX = 100_000
"""Entries of a cluster. Every node holds them in memory, and makes its index of them anew after a change. Kafka has no
bound; patterns that are PREFIXED need few entries."""

CHANGES_MAX = 10_000
"""Entries that one request adds or finds (Kafka's MAX_RECORDS_PER_USER_OP): they stand in one atomic batch."""

COMPARED_MAX = 2_000_000
"""Entries that one request's filters are held against, all together: about two seconds of the controller."""


def create_acls(state: MachineState, request: CreateAclsRequest) -> Result[AclOutcomes]:
    """Add entries; each succeeds or fails alone. One that is there already is a success, and no record."""
    known = state.image.acls
    outcomes: list[AclOutcome] = []
    added: dict[AclBinding, None] = {}
    for binding in request.bindings:
        fault = binding_fault(binding)
        if fault:
            outcomes.append(AclOutcome(ErrorCode.INVALID_REQUEST, fault))
        elif binding in known or binding in added:  # rule A20/an-acl-twice-in-the-log
            outcomes.append(AclOutcome(ErrorCode.NONE))
        elif len(known) + len(added) >= ACLS_MAX:  # rule A20/acls-without-number
            words = f"the cluster has {ACLS_MAX} ACLs, as many as it may; prefixed patterns need fewer"
            outcomes.append(AclOutcome(ErrorCode.POLICY_VIOLATION, words))
        else:
            added[binding] = None
            outcomes.append(AclOutcome(ErrorCode.NONE))
    if len(added) > CHANGES_MAX:
        return _refused(len(outcomes), f"one request may add {CHANGES_MAX} ACLs, not {len(added)}")
    records: list[MetadataRecord] = [AccessControlEntryRecord(binding) for binding in added]
    return Result(AclOutcomes(tuple(outcomes)), records)


def delete_acls(state: MachineState, request: DeleteAclsRequest) -> Result[AclOutcomes]:
    """Remove the entries that fit any of the filters, in one batch; each filter's outcome names those that it found."""
    known = state.image.acls
    if len(known) * sum(wanted.exact is None for wanted in request.filters) > COMPARED_MAX:
        words = f"{len(request.filters)} filters on {len(known)} ACLs are too many for one request"
        return _refused(len(request.filters), words)
    outcomes: list[AclOutcome] = []
    removed: dict[AclBinding, None] = {}
    total = 0
    for wanted in request.filters:
        fault = filter_fault(wanted)
        found = () if fault else _found(wanted, known)
        total += len(found)
        if total > CHANGES_MAX:
            return _refused(len(request.filters), f"one request may delete {CHANGES_MAX} ACLs; these filters find more")
        removed.update(dict.fromkeys(found))
        outcomes.append(AclOutcome(ErrorCode.INVALID_REQUEST if fault else ErrorCode.NONE, fault, found))
    records: list[MetadataRecord] = [RemoveAccessControlEntryRecord(binding) for binding in removed]
    return Result(AclOutcomes(tuple(outcomes)), records)


def _found(wanted: AclFilter, known: Mapping[AclBinding, object]) -> tuple[AclBinding, ...]:
    if wanted.exact is not None:
        return (wanted.exact,) if wanted.exact in known else ()
    return tuple(binding for binding in known if wanted.fits(binding))


def _refused(count: int, words: str) -> Result[AclOutcomes]:
    """Refusal of `count` entries: none of them is carried out."""
    return Result(AclOutcomes((AclOutcome(ErrorCode.POLICY_VIOLATION, words),) * count))
