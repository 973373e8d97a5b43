"""Decisions by access control lists, as Kafka's StandardAuthorizer makes them; no time, no network: bindings in,
answers out.

    1. a super user may do everything;
    2. a DENY that fits forbids, however many ALLOWs fit;
    3. an ALLOW that fits allows. READ, WRITE, DELETE and ALTER allow DESCRIBE too, ALTER_CONFIGS allows
       DESCRIBE_CONFIGS; a DENY of them forbids themselves alone;
    4. a resource that bindings name, but none that fits, is forbidden;
    5. a resource that no binding names is forbidden, unless allow.everyone.if.no.acl.found says otherwise.

A binding fits where its pattern covers the resource's name, its principal is the one that asks or `User:*`, its host
is the address it asks from, however either is written, or `*`, and its operation is the one asked for or ALL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from strandline.proto.acls import (
    EVERYBODY,
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceKind,
    host_of,
)

IMPLY_DESCRIBE = frozenset({Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER})
IMPLY_DESCRIBE_CONFIGS = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS})

SUPER_USER = "super user"
NO_ACL_ALLOWS = "no ACL names the resource, and allow.everyone.if.no.acl.found is true"
NO_ACL_DENIES = "no ACL names the resource"
NONE_FITS = "ACLs name the resource, and none of them allows it"


class Decision(NamedTuple):
    """An answer, and what it rests on: the binding, or a rule in words."""

    allowed: bool
    because: AclBinding | str


class Asker(NamedTuple):
    """Principal and IP address of the client."""

    principal: str
    host: str


_Section = dict[str, list[tuple[str, AclBinding]]]
"""Bindings by principal, each with its host as `host_of` writes it (rule A25: hosts are compared in one spelling).
"""


class AclRules:
    """The bindings of a cluster, found by name and by principal.

    A question looks at the entries of the resource's own name, of `*`, and of each prefix of the name that has as many
    characters as some PREFIXED binding has: so its cost does not grow with the number of bindings.

    Args:
        super_users: principals that may do everything.
        allow_unnamed: allow.everyone.if.no.acl.found.
    """

    def __init__(self, bindings: Iterable[AclBinding], super_users: Iterable[str], allow_unnamed: bool) -> None:
        self._super_users = frozenset(super_users)
        self._allow_unnamed = allow_unnamed
        self._literal: dict[Resource, _Section] = {}
        self._prefixed: dict[Resource, _Section] = {}
        lengths: dict[ResourceKind, set[int]] = {}
        for binding in bindings:
            prefixed = binding.pattern is PatternType.PREFIXED
            section = (self._prefixed if prefixed else self._literal).setdefault(
                Resource(binding.kind, binding.name), {}
            )
            # rule A25/hosts-are-compared-as-text
            section.setdefault(binding.principal, []).append((host_of(binding.host), binding))
            if prefixed:
                lengths.setdefault(binding.kind, set()).add(len(binding.name))
        self._lengths = {kind: sorted(found) for kind, found in lengths.items()}

    def is_super_user(self, principal: str) -> bool:
        """True if the principal may do everything."""
        return principal in self._super_users

    def decide(self, asker: Asker, operation: Operation, resource: Resource) -> Decision:
        """Decide on one operation, with the reason."""
        if self.is_super_user(asker.principal):
            return Decision(True, SUPER_USER)
        named = False
        allowing: AclBinding | None = None
        for section in self._sections(resource):
            named = True
            for binding in _of(section, asker):  # rule A20/others-acls-name-nothing
                if not _fits(binding, operation):
                    continue
                if binding.permission is Permission.DENY:  # rule A20/an-allow-outdoes-a-deny
                    return Decision(False, binding)
                allowing = allowing or binding
        if allowing is not None:
            return Decision(True, allowing)
        if named:
            return Decision(False, NONE_FITS)
        return Decision(self._allow_unnamed, NO_ACL_ALLOWS if self._allow_unnamed else NO_ACL_DENIES)

    def decide_any(self, asker: Asker, operation: Operation, kind: ResourceKind) -> bool:
        """Decide whether the operation is allowed on at least one resource of the kind (Kafka's
        `authorizeByResourceType`)."""
        if self.decide(asker, operation, Resource(kind, "hardcode")).allowed:
            return True
        bindings = [binding for binding in self._all(kind, asker) if binding.operation in (operation, Operation.ALL)]
        denied = {(binding.pattern, binding.name) for binding in bindings if binding.permission is Permission.DENY}
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(not _is_outdone(binding, denied) for binding in bindings if binding.permission is Permission.ALLOW)

    def _sections(self, resource: Resource) -> Iterator[_Section]:
        """Bindings of patterns that cover the resource, by principal."""
        kind, name = resource
        for key in dict.fromkeys((resource, Resource(kind, WILDCARD))):
            if key in self._literal:
                yield self._literal[key]
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                return
            prefix = Resource(kind, name[:length])
            if prefix in self._prefixed:
                yield self._prefixed[prefix]

    def _all(self, kind: ResourceKind, asker: Asker) -> Iterator[AclBinding]:
        for index in (self._literal, self._prefixed):
            for resource, section in index.items():
                if resource.kind is kind:
                    yield from _of(section, asker)


def _of(section: _Section, asker: Asker) -> Iterator[AclBinding]:
    """Bindings that match the client's principal and host."""
    hosts = (WILDCARD, host_of(asker.host))  # rule A25/clients-are-known-as-their-sockets-write-them
    for principal in dict.fromkeys((asker.principal, EVERYBODY)):
        for host, binding in section.get(principal, ()):
            if host in hosts:
                yield binding


def _fits(binding: AclBinding, operation: Operation) -> bool:
    if binding.operation in (Operation.ALL, operation):
        return True
    if binding.permission is Permission.DENY:  # rule A20/a-deny-implies-too
        return False
    if operation is Operation.DESCRIBE:
        return binding.operation in IMPLY_DESCRIBE
    return operation is Operation.DESCRIBE_CONFIGS and binding.operation in IMPLY_DESCRIBE_CONFIGS


def _is_outdone(binding: AclBinding, denied: set[tuple[PatternType, str]]) -> bool:
    """True if all that an ALLOW allows is denied."""
    if binding.pattern is PatternType.LITERAL:
        if binding.name == WILDCARD:
            return False
        if (PatternType.LITERAL, binding.name) in denied:
            return True
    return any((PatternType.PREFIXED, binding.name[:length]) in denied for length in range(1, len(binding.name) + 1))
