"""The admin clients' part about access control lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strandline.client.aio.admin_base import AdminBase, Operation, Question, alone, by_key, nothing
from strandline.proto import acls
from strandline.proto.acls import AclBinding, AclFilter, PatternType, Permission, ResourceKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api

EVERY_ACL = AclFilter()


class AclAdmin(AdminBase):
    """Who may do what.

    All calls raise KafkaError CLUSTER_AUTHORIZATION_FAILED without the right to DESCRIBE or ALTER the cluster, and
    SECURITY_DISABLED where no authorizer is configured.
    """

    @Operation(Api.DESCRIBE_ACLS)
    async def describe_acls(self, wanted: AclFilter = EVERY_ACL) -> Question[list[AclBinding]]:
        """The entries that fit the filter, sorted.

        Raises:
            KafkaError: INVALID_REQUEST for a filter that cannot be.
        """
        return Question(_filter(wanted), _bindings, alone)

    @Operation(Api.CREATE_ACLS, each="results", about="acl")
    async def create_acls(self, bindings: Iterable[AclBinding]) -> Question[list[AclBinding]]:
        """Add entries; one that is there already stays. Those asked for, each once.

        A broker obeys an entry when it has caught up with the metadata: a moment after this returns.

        Raises:
            KafkaError: INVALID_REQUEST for one that cannot be.
        """
        return Question(lambda ones: {"creations": [_creation(one) for one in ones]}, nothing, list, items=bindings)

    @Operation(Api.DELETE_ACLS, each="filter_results", about="filter")
    async def delete_acls(self, filters: Iterable[AclFilter]) -> Question[dict[AclFilter, list[AclBinding]]]:
        """Remove the entries that fit any of the filters; those that each filter found. A call that had to be sent
        again may find nothing any more.

        Raises:
            KafkaError: INVALID_REQUEST for a filter that cannot be.
        """
        return Question(lambda ones: {"filters": [_filter(one) for one in ones]}, _matching, by_key, items=filters)


def _bindings(answer: Any) -> list[AclBinding]:
    return sorted(
        _binding(resource.resource_type, resource.resource_name, resource.pattern_type, entry)
        for resource in answer.resources
        for entry in resource.acls
    )


def _matching(entry: Any) -> list[AclBinding]:
    return [
        _binding(found.resource_type, found.resource_name, found.pattern_type, found) for found in entry.matching_acls
    ]


def _creation(one: AclBinding) -> dict[str, Any]:
    return {
        "resource_type": one.kind,
        "resource_name": one.name,
        "resource_pattern_type": one.pattern,
        "principal": one.principal,
        "host": one.host,
        "operation": one.operation,
        "permission_type": one.permission,
    }


def _filter(one: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": one.kind,
        "resource_name_filter": one.name,
        "pattern_type_filter": one.pattern,
        "principal_filter": one.principal,
        "host_filter": one.host,
        "operation": one.operation,
        "permission_type": one.permission,
    }


def _binding(kind: int, name: str, pattern: int, entry: Any) -> AclBinding:
    try:
        return AclBinding(
            ResourceKind(kind),
            name,
            PatternType(pattern),
            entry.principal,
            entry.host,
            acls.Operation(entry.operation),
            Permission(entry.permission_type),
        )
    except ValueError as error:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"an ACL of a kind that this client does not know: {error}"
        ) from error
