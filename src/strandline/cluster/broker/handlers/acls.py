"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31): access control entries. Without an authorizer all three answer
SECURITY_DISABLED, as in Kafka: entries without effect would only look like protection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from strandline.cluster.broker.api import Call, Change, by_schema, part
from strandline.cluster.broker.request import Authorizer, RequestContext, require
from strandline.controller import operations
from strandline.controller.api import AclOutcome, CreateAclsRequest, DeleteAclsRequest
from strandline.controller.channel import ControllerChannel
from strandline.proto.acls import (
    CLUSTER,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
    binding_fault,
    filter_fault,
    host_of,
)
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api

NO_AUTHORIZER = "no authorizer is configured on this broker: set authorizer.class.name (docs/security.md)"


class AclsHandler:
    """Describes access control entries from this broker's image, and forwards changes to the active controller."""

    def __init__(self, *, authorizer: Authorizer, controller: ControllerChannel, timeout_ms: float) -> None:
        self._authorizer = authorizer
        self._controller = controller
        self._timeout_ms = timeout_ms

    # DescribeAcls

    def describe(self, call: Call) -> Any:
        """Answer DescribeAcls: the entries that match the filter, grouped by resource.

        Raises:
            KafkaError: CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED, INVALID_REQUEST.
        """
        self._check(call.context, Operation.DESCRIBE)
        wanted = _filter(call.request)
        fault = filter_fault(wanted)
        if fault:
            raise KafkaError(ErrorCode.INVALID_REQUEST, fault)
        return part(error_code=ErrorCode.NONE, error_message=None, resources=_resources(self._authorizer, wanted))

    # CreateAcls

    async def create(self, call: Call) -> Any:
        """Answer CreateAcls: one outcome per entry, in order. Raises KafkaError CLUSTER_AUTHORIZATION_FAILED,
        SECURITY_DISABLED, or an error of the request to the controller."""
        self._check(call.context, Operation.ALTER)
        bindings = [binding_of(one, one.resource_pattern_type) for one in call.request.creations]
        faults = [binding_fault(one) for one in bindings]
        asked = tuple(one for one, fault in zip(bindings, faults, strict=True) if not fault)
        outcomes: Sequence[AclOutcome] = ()
        if asked:
            outcomes = (
                await self._controller.ask(operations.CREATE_ACLS, CreateAclsRequest(asked), self._timeout_ms)
            ).outcomes
        answers = iter(outcomes)
        return _created([AclOutcome(ErrorCode.INVALID_REQUEST, fault) if fault else next(answers) for fault in faults])

    # DeleteAcls

    async def delete(self, call: Call) -> Any:
        """Answer DeleteAcls: one outcome per filter, in order, with the deleted entries. Raises as `create`."""
        self._check(call.context, Operation.ALTER)
        filters = tuple(_filter(one) for one in call.request.filters)
        outcomes: Sequence[AclOutcome] = ()
        if filters:
            outcomes = (
                await self._controller.ask(operations.DELETE_ACLS, DeleteAclsRequest(filters), self._timeout_ms)
            ).outcomes
        return _deleted(outcomes)

    def _check(self, context: RequestContext, operation: Operation) -> None:
        require(self._authorizer, context, operation, CLUSTER)  # rule A20/acls-changed-by-anybody
        if not self._authorizer.enabled:
            raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def _of(kind: type[Any], number: int) -> Any:
    """Return the enum member with this number, or its member UNKNOWN (0), as Kafka does."""
    return kind(number) if number in kind.__members__.values() else kind(0)


def binding_of(one: Any, pattern: int) -> AclBinding:
    """Make an entry from a message; `pattern` is a separate argument because its field has several names."""
    # rule A25/hosts-are-stored-as-written
    return AclBinding(
        kind=_of(ResourceKind, one.resource_type),
        name=one.resource_name,
        pattern=_of(PatternType, pattern),
        principal=one.principal,
        host=host_of(one.host),
        operation=_of(Operation, one.operation),
        permission=_of(Permission, one.permission_type),
    )


def _filter(one: Any) -> AclFilter:
    return AclFilter(
        kind=_of(ResourceKind, one.resource_type_filter),
        name=one.resource_name_filter,
        pattern=_of(PatternType, one.pattern_type_filter),
        principal=one.principal_filter,
        host=one.host_filter,
        operation=_of(Operation, one.operation),
        permission=_of(Permission, one.permission_type),
    )


def _entry(binding: AclBinding) -> dict[str, Any]:
    return {
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation,
        "permission_type": binding.permission,
    }


def _resource(binding: AclBinding) -> tuple[ResourceKind, str, PatternType]:
    return binding.kind, binding.name, binding.pattern


def _resources(authorizer: Authorizer, wanted: AclFilter) -> tuple[Any, ...]:
    return tuple(
        part(
            resource_type=kind,
            resource_name=name,
            pattern_type=pattern,
            acls=tuple(part(**_entry(binding)) for binding in bindings),
        )
        for (kind, name, pattern), bindings in groupby(authorizer.describe(wanted), _resource)
    )


def _created(outcomes: Sequence[AclOutcome]) -> Any:
    return part(results=tuple(part(error_code=one.error, error_message=one.message or None) for one in outcomes))


def _deleted(outcomes: Sequence[AclOutcome]) -> Any:
    return part(filter_results=tuple(_filter_result(one) for one in outcomes))


def _filter_result(outcome: AclOutcome) -> Any:
    matching = tuple(
        part(
            error_code=ErrorCode.NONE,
            error_message=None,
            resource_type=binding.kind,
            resource_name=binding.name,
            pattern_type=binding.pattern,
            **_entry(binding),
        )
        for binding in outcome.bindings
    )
    return part(error_code=outcome.error, error_message=outcome.message or None, matching_acls=matching)


def _acls_added(request: Any, answer: Any) -> Iterator[Change]:
    for one, outcome in zip(request.creations, answer.results, strict=True):
        yield f"ACL {binding_of(one, one.resource_pattern_type)}", outcome.error_code


def _acls_removed(request: Any, answer: Any) -> Iterator[Change]:
    for wanted, outcome in zip(request.filters, answer.filter_results, strict=True):
        if outcome.error_code is not ErrorCode.NONE:
            words = f"name {wanted.resource_name_filter}, principal {wanted.principal_filter}"
            yield f"ACLs of type {wanted.resource_type_filter}, {words}", outcome.error_code
        for one in outcome.matching_acls:
            yield f"ACL {binding_of(one, one.pattern_type)}", one.error_code


ROWS = (
    by_schema(Api.DESCRIBE_ACLS, (1, 3), AclsHandler, AclsHandler.describe),
    by_schema(Api.CREATE_ACLS, (1, 3), AclsHandler, AclsHandler.create, changes=_acls_added),
    by_schema(Api.DELETE_ACLS, (1, 3), AclsHandler, AclsHandler.delete, changes=_acls_removed),
)
