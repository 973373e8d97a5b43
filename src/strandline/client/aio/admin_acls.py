"""The admin client's part about access control lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strandline.client.aio.admin_base import AdminBase, results_of
from strandline.client.limits import limited
from strandline.client.rights import answered
from strandline.proto.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api

EVERY_ACL = AclFilter()


class AclAdmin(AdminBase):
    """Who may do what.

    All calls raise KafkaError CLUSTER_AUTHORIZATION_FAILED without the right to DESCRIBE or ALTER the cluster, and
    SECURITY_DISABLED where no authorizer is configured.
    """

    @limited
    async def describe_acls(self, wanted: AclFilter = EVERY_ACL) -> list[AclBinding]:
        """The entries that fit the filter, sorted.

        Raises:
            KafkaError: INVALID_REQUEST for a filter that cannot be.
        """
        answer = await self._call(Api.DESCRIBE_ACLS, _filter(wanted), lambda reply: [reply.error_code])
        if answer.error_code is not ErrorCode.NONE:
            raise answered(self.config, Api.DESCRIBE_ACLS, answer.error_code, answer.error_message)
        return sorted(
            _binding(resource.resource_type, resource.resource_name, resource.pattern_type, entry)
            for resource in answer.resources
            for entry in resource.acls
        )

    @limited
    async def create_acls(self, bindings: Iterable[AclBinding]) -> list[AclBinding]:
        """Add entries; one that is there already stays. Those asked for, each once.

        A broker obeys an entry when it has caught up with the metadata: a moment after this returns.

        Raises:
            KafkaError: INVALID_REQUEST for one that cannot be.
        """
        wanted = list(dict.fromkeys(bindings))
        values = {"creations": [_creation(one) for one in wanted]}
        answer = await self._call(Api.CREATE_ACLS, values, lambda reply: [item.error_code for item in reply.results])
        errors: dict[Any, Exception] = {}
        for one, entry in zip(wanted, answer.results, strict=True):
            if entry.error_code is not ErrorCode.NONE:
                errors[one] = answered(
                    self.config, Api.CREATE_ACLS, entry.error_code, entry.error_message, acl=str(one)
                )
        return list(results_of({one: one for one in wanted if one not in errors}, errors))

    @limited
    async def delete_acls(self, filters: Iterable[AclFilter]) -> dict[AclFilter, list[AclBinding]]:
        """Remove the entries that fit any of the filters; those that each filter found. A call that had to be sent
        again may find nothing any more.

        Raises:
            KafkaError: INVALID_REQUEST for a filter that cannot be.
        """
        wanted = list(dict.fromkeys(filters))
        values = {"filters": [_filter(one) for one in wanted]}
        answer = await self._call(
            Api.DELETE_ACLS, values, lambda reply: [item.error_code for item in reply.filter_results]
        )
        results: dict[AclFilter, list[AclBinding]] = {}
        errors: dict[Any, Exception] = {}
        for one, entry in zip(wanted, answer.filter_results, strict=True):
            if entry.error_code is not ErrorCode.NONE:
                errors[one] = answered(self.config, Api.DELETE_ACLS, entry.error_code, entry.error_message, filter=one)
                continue
            results[one] = [
                _binding(found.resource_type, found.resource_name, found.pattern_type, found)
                for found in entry.matching_acls
            ]
        return results_of(results, errors)


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
            Operation(entry.operation),
            Permission(entry.permission_type),
        )
    except ValueError as error:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"an ACL of a kind that this client does not know: {error}"
        ) from error
