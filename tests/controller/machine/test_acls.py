"""CreateAcls and DeleteAcls (Kafka's AclControlManagerTest), and their records: replay, snapshot, damage (rule A20)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strandline.controller.api import AclOutcome, CreateAclsRequest, DeleteAclsRequest
from strandline.controller.machine import acls
from strandline.controller.metadata.delta import MetadataDelta, diff
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import (
    AccessControlEntryRecord,
    MetadataRecord,
    MetadataVersionRecord,
    RemoveAccessControlEntryRecord,
)
from strandline.controller.metadata.snapshot import image_records, load_image
from strandline.proto.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import FatalError

READ = AclBinding(
    ResourceKind.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
)
WRITE = replace(READ, operation=Operation.WRITE)
OF_BOB = replace(READ, principal="User:bob")


def create(cluster: Any, *bindings: AclBinding) -> list[AclOutcome]:
    return list(cluster.run(acls.create_acls(cluster.state, CreateAclsRequest(bindings))).outcomes)


def delete(cluster: Any, *filters: AclFilter) -> list[AclOutcome]:
    return list(cluster.run(acls.delete_acls(cluster.state, DeleteAclsRequest(filters))).outcomes)


def test_entries_are_added_once_and_each_fails_alone(machine_cluster: Any) -> None:
    """One that is there already, or stands twice, is a success without a record."""
    cluster = machine_cluster(1)
    before = len(cluster.log)
    outcomes = create(cluster, READ, replace(READ, name=""), READ, WRITE)
    assert [one.error for one in outcomes] == [0, ErrorCode.INVALID_REQUEST, 0, 0]
    assert list(cluster.image.acls) == [READ, WRITE]
    assert len(cluster.log) == before + 2
    assert [one.error for one in create(cluster, READ)] == [0]
    assert len(cluster.log) == before + 2


def test_filters_name_what_they_removed(machine_cluster: Any) -> None:
    """An entry that fits two filters stands in both outcomes, and is removed once."""
    cluster = machine_cluster(1)
    create(cluster, READ, WRITE, OF_BOB)
    exact = AclFilter(READ.kind, READ.name, READ.pattern, READ.principal, READ.host, READ.operation, READ.permission)
    outcomes = delete(
        cluster, exact, AclFilter(principal="User:alice"), AclFilter(name="nothing"), AclFilter(pattern=PatternType(0))
    )
    assert [one.bindings for one in outcomes] == [(READ,), (READ, WRITE), (), ()]
    assert [one.error for one in outcomes] == [0, 0, 0, ErrorCode.INVALID_REQUEST]
    assert list(cluster.image.acls) == [OF_BOB]
    assert delete(cluster, exact) == [AclOutcome(ErrorCode.NONE)]


def test_what_one_request_costs_is_bounded(machine_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of the cluster, records of a request, comparisons: refused with a sentence, and nothing is changed."""
    cluster = machine_cluster(1)
    names = [replace(READ, name=f"t{number}") for number in range(4)]
    monkeypatch.setattr(acls, "ACLS_MAX", 3)
    assert [one.error for one in create(cluster, *names)] == [0, 0, 0, ErrorCode.POLICY_VIOLATION]
    monkeypatch.setattr(acls, "CHANGES_MAX", 2)
    assert [one.error for one in delete(cluster, AclFilter())] == [ErrorCode.POLICY_VIOLATION]
    monkeypatch.setattr(acls, "COMPARED_MAX", 5)
    assert [one.error for one in delete(cluster, AclFilter(name="t0"), AclFilter(name="t1"))] == [
        ErrorCode.POLICY_VIOLATION
    ] * 2
    assert len(cluster.image.acls) == 3
    delete(cluster, AclFilter(name="t0"))
    monkeypatch.setattr(acls, "ACLS_MAX", 9)
    assert [one.error for one in create(cluster, *(replace(one, host="h") for one in names[:3]))] == [
        ErrorCode.POLICY_VIOLATION
    ] * 3
    assert len(cluster.image.acls) == 2


START: list[MetadataRecord] = [MetadataVersionRecord(1), AccessControlEntryRecord(READ)]


def image_of(records: list[MetadataRecord], base: MetadataImage | None = None) -> MetadataImage:
    delta = MetadataDelta(base or MetadataImage("c"))
    delta.apply_all(records)
    return delta.image(9, 1, 0)


def test_a_snapshot_holds_them_and_a_delta_tells_of_them() -> None:
    image = image_of([*START, AccessControlEntryRecord(WRITE), RemoveAccessControlEntryRecord(READ)])
    assert load_image("c", image_records(image), 10, 1).acls == image.acls == {WRITE: AccessControlEntryRecord(WRITE)}
    changed = diff(image_of(START), image)
    acls = changed[MetadataImage.acls]
    assert (list(acls.removed), list(acls.changed)) == ([READ], [WRITE])
    assert not changed.empty


def test_the_mapping_is_another_one_only_when_an_entry_is() -> None:
    """By that an authorizer sees that what it remembers still holds."""
    image = image_of(START)
    assert image_of([MetadataVersionRecord(1)], image).acls is image.acls
    assert image_of([AccessControlEntryRecord(WRITE)], image).acls is not image.acls
    assert list(image.acls) == [READ]


@pytest.mark.parametrize(
    "record",
    [
        AccessControlEntryRecord(READ),
        AccessControlEntryRecord(replace(WRITE, kind=ResourceKind.ANY)),
        AccessControlEntryRecord(replace(WRITE, principal="alice")),
        RemoveAccessControlEntryRecord(WRITE),
    ],
)
def test_records_that_do_not_fit_are_refused(record: MetadataRecord) -> None:
    """One that is there, one that cannot be, one that is not there: the replay stops, nothing is guessed."""
    with pytest.raises(FatalError, match="AccessControlEntryRecord"):
        image_of([*START, record])
