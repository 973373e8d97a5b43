"""What ACLs decide (rule A20): by the cases of Kafka's StandardAuthorizerTest and AuthorizerTest, and against an oracle
that looks at every entry and is too simple to be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.cluster.security.acl_rules import NO_ACL_ALLOWS, NO_ACL_DENIES, NONE_FITS, SUPER_USER, AclRules, Asker
from strandline.proto.acls import (
    CLUSTER,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceKind,
    binding_fault,
)

ALICE = Asker("User:alice", "10.0.0.1")
ORDERS = Resource(ResourceKind.TOPIC, "orders")
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def acl(
    operation: Operation = Operation.READ,
    permission: Permission = ALLOW,
    *,
    name: str = "orders",
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    kind: ResourceKind = ResourceKind.TOPIC,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def allowed(*acls: AclBinding, operation: Operation = Operation.READ, resource: Resource = ORDERS) -> bool:
    return AclRules(acls, (), False).decide(ALICE, operation, resource).allowed


def test_nothing_is_allowed_that_no_entry_allows() -> None:
    assert AclRules((), (), False).decide(ALICE, Operation.READ, ORDERS) == (False, NO_ACL_DENIES)
    assert AclRules((), (), True).decide(ALICE, Operation.READ, ORDERS) == (True, NO_ACL_ALLOWS)
    of_bob = acl(principal="User:bob")
    assert AclRules((of_bob,), (), True).decide(ALICE, Operation.READ, ORDERS) == (False, NONE_FITS)


def test_a_deny_wins_however_narrow_the_allow() -> None:
    everybody = acl(Operation.ALL, name="*", principal="User:*")
    deny = acl(Operation.READ, DENY, name="ord", pattern=PatternType.PREFIXED, principal="User:*")
    assert allowed(everybody)
    assert not allowed(everybody, acl(), deny)
    assert AclRules((everybody, deny), (), False).decide(ALICE, Operation.READ, ORDERS) == (False, deny)
    assert allowed(everybody, deny, operation=Operation.WRITE)


def test_super_users_may_do_everything_also_what_is_denied() -> None:
    rules = AclRules((acl(Operation.ALL, DENY),), ("User:alice",), False)
    assert rules.decide(ALICE, Operation.READ, ORDERS) == (True, SUPER_USER)
    assert rules.decide_any(ALICE, Operation.WRITE, ResourceKind.TOPIC)


@pytest.mark.parametrize("operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_an_allow_implies_describe_and_a_deny_does_not(operation: Operation) -> None:
    """KafkaApis asks for DESCRIBE before most things."""
    assert allowed(acl(operation), operation=Operation.DESCRIBE)
    assert not allowed(acl(operation), operation=Operation.DESCRIBE_CONFIGS)
    assert allowed(acl(Operation.DESCRIBE), acl(operation, DENY), operation=Operation.DESCRIBE)


def test_alter_configs_implies_describe_configs() -> None:
    assert allowed(acl(Operation.ALTER_CONFIGS), operation=Operation.DESCRIBE_CONFIGS)
    assert not allowed(acl(Operation.ALTER_CONFIGS), operation=Operation.DESCRIBE)
    assert not allowed(acl(Operation.CREATE), operation=Operation.DESCRIBE)


def test_hosts_are_compared() -> None:
    assert allowed(acl(host="10.0.0.1"))
    assert not allowed(acl(host="10.0.0.2"))


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("::FFFF:a00:1", "10.0.0.1"),
        ("fe80::1", "fe80::1%eth0"),
    ],
)
def test_an_address_is_the_same_however_it_is_written(written: str, seen: str) -> None:
    """Rule A25: a DENY for it denies, wherever either end took its text from; and a filter finds the entry."""
    entry = acl(permission=DENY, host=written)
    rules = AclRules([acl(), entry], (), True)
    assert not rules.decide(Asker("User:alice", seen), Operation.READ, ORDERS).allowed
    assert rules.decide(Asker("User:alice", "10.0.0.2"), Operation.READ, ORDERS).allowed
    assert AclFilter(host=seen).fits(entry)
    assert not AclFilter(host="::2").fits(entry)


def test_a_star_is_a_name_only_as_a_prefix() -> None:
    """LITERAL `*` is every name; PREFIXED `*` is every name that begins with a star."""
    assert allowed(acl(name="*"))
    assert not allowed(acl(name="*", pattern=PatternType.PREFIXED))
    assert not allowed(acl(name="order"))
    assert allowed(acl(name="order", pattern=PatternType.PREFIXED))
    assert not allowed(acl(name="orders-2", pattern=PatternType.PREFIXED))


def test_write_on_any_topic_by_kafkas_cases() -> None:
    """AuthorizerTest's cases of authorizeByResourceType: what an ALLOW allows may be denied altogether."""

    def anywhere(*acls: AclBinding) -> bool:
        return AclRules(acls, (), False).decide_any(ALICE, Operation.WRITE, ResourceKind.TOPIC)

    write, prefixed = Operation.WRITE, PatternType.PREFIXED
    assert not anywhere()
    assert anywhere(acl(write))
    assert not anywhere(acl(write, host="10.0.0.2"))
    assert not anywhere(acl(write, kind=ResourceKind.GROUP))
    assert not anywhere(acl(write), acl(write, DENY))
    assert anywhere(acl(write), acl(write, DENY, name="others"))
    assert not anywhere(acl(write), acl(write, DENY, name="ord", pattern=prefixed))
    assert not anywhere(acl(write, name="ord", pattern=prefixed), acl(write, DENY, name="o", pattern=prefixed))
    assert anywhere(acl(write, name="o", pattern=prefixed), acl(write, DENY, name="ord", pattern=prefixed))
    assert anywhere(acl(write, name="o", pattern=prefixed), acl(write, DENY, name="o"))
    assert not anywhere(acl(write, name="*"), acl(write, DENY, name="*"))
    assert not anywhere(acl(write), acl(Operation.ALL, DENY, name="*"))
    assert anywhere(acl(Operation.ALL, name="*"), acl(write, DENY))
    assert not anywhere(acl(Operation.READ))


NAMES = st.sampled_from(["*", "a", "ab", "b", ""])
BINDINGS = st.builds(
    AclBinding,
    kind=st.sampled_from([ResourceKind.TOPIC] * 4 + [ResourceKind.GROUP]),
    name=NAMES.filter(bool),
    pattern=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from(["User:alice", "User:bob", "User:*"]),
    host=st.sampled_from(["*", "*", "10.0.0.1"]),
    operation=st.sampled_from([Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE]),
    permission=st.sampled_from([ALLOW, DENY]),
)


def oracle(acls: list[AclBinding], asker: Asker, operation: Operation, resource: Resource, everyone: bool) -> bool:
    """Every entry looked at, by the words of Kafka's documentation."""
    named = [one for one in acls if one.kind is resource.kind and one.covers(resource.name)]
    mine = [one for one in named if one.principal in (asker.principal, "User:*") and one.host in ("*", asker.host)]
    if any(one.permission is DENY and one.operation in (operation, Operation.ALL) for one in mine):
        return False
    enough = {operation, Operation.ALL}
    if operation is Operation.DESCRIBE:
        enough |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if any(one.permission is ALLOW and one.operation in enough for one in mine):
        return True
    return everyone and not named


@settings(max_examples=300, deadline=None)
@given(
    acls=st.lists(BINDINGS, max_size=8, unique=True),
    principal=st.sampled_from(["User:alice", "User:bob", "User:*"]),
    host=st.sampled_from(["10.0.0.1", "10.0.0.2", ""]),
    operation=st.sampled_from([Operation.READ, Operation.WRITE, Operation.DESCRIBE]),
    name=NAMES,
    everyone=st.booleans(),
)
def test_the_index_decides_as_the_oracle(
    acls: list[AclBinding], principal: str, host: str, operation: Operation, name: str, everyone: bool
) -> None:
    asker, resource = Asker(principal, host), Resource(ResourceKind.TOPIC, name)
    decision = AclRules(acls, (), everyone).decide(asker, operation, resource)
    assert decision.allowed == oracle(acls, asker, operation, resource, everyone)
    if isinstance(decision.because, AclBinding):
        assert decision.because in acls
        assert decision.because.permission is (ALLOW if decision.allowed else DENY)
        assert oracle([decision.because], asker, operation, resource, False) == decision.allowed


@settings(max_examples=200, deadline=None)
@given(
    acl=BINDINGS,
    fields=st.sets(st.sampled_from(["kind", "name", "pattern", "principal", "host", "operation", "permission"])),
    other=BINDINGS,
)
def test_a_filter_finds_what_its_fields_say(acl: AclBinding, fields: set[str], other: AclBinding) -> None:
    """Fields that are left out fit all; one that names everything is looked up, with the same result."""
    wanted = AclFilter(**{field: getattr(acl, field) for field in fields})
    assert wanted.fits(acl)
    assert wanted.fits(other) == all(getattr(acl, field) == getattr(other, field) for field in fields)
    assert (wanted.exact == acl) if len(fields) == 7 else (wanted.exact is None)


def test_match_finds_what_counts_for_a_name() -> None:
    """KIP-290."""
    acls = [acl(), acl(name="*"), acl(name="ord", pattern=PatternType.PREFIXED), acl(name="ord"), acl(name="x")]
    wanted = AclFilter(ResourceKind.TOPIC, "orders", PatternType.MATCH)
    assert [one for one in acls if wanted.fits(one)] == acls[:3]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kind": ResourceKind.ANY}, "resourceType"),
        ({"pattern": PatternType.MATCH}, "patternType"),
        ({"operation": Operation.ANY}, "operation"),
        ({"permission": Permission.UNKNOWN}, "permissionType"),
        ({"name": ""}, "name"),
        ({"name": "n" * 2000}, "name"),
        ({"kind": ResourceKind.CLUSTER, "name": "mine"}, CLUSTER.name),
        ({"principal": "alice"}, "Type:name"),
        ({"principal": "User:"}, "Type:name"),
        ({"host": ""}, "host"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_with_the_reason(wrong: dict[str, object], says: str) -> None:
    good = acl()
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    assert binding_fault(good) == ""
    assert says in binding_fault(AclBinding(**{**fields, **wrong}))  # type: ignore[arg-type]
