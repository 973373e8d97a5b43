"""The admin clients' part about clients: who may log in (SCRAM), what they may do (ACLs), how much (quotas)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strandline.client.aio.admin_base import AdminBase, Known, Operation, Question, alone, by_key, done, nothing
from strandline.client.types import ScramChange, ScramDescription
from strandline.proto import acls
from strandline.proto.acls import AclBinding, AclFilter, PatternType, Permission, ResourceKind
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import ConfigError, KafkaError
from strandline.proto.kafka.apis import Api
from strandline.proto.quotas import CLIENT_ID, IP, USER, QuotaEntity
from strandline.proto.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    SCRAM_BY_TITLE,
    ScramMechanism,
    salted_password,
)


class UserAdmin(AdminBase):
    """Administration of users that log in by SCRAM."""

    @Operation(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, each="results", key="user", about="user")
    async def describe_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> Question[dict[str, tuple[ScramDescription, ...]]]:
        """Mechanisms and iterations of these users, or of all; nothing that would help to log in.

        Raises:
            KafkaError: RESOURCE_NOT_FOUND for a user that has none, as it is or among ManyErrors.
        """
        names = None if users is None else [{"name": name} for name in dict.fromkeys(users)]
        if names == []:
            return Known({})
        return Question({"users": names}, _credentials, by_key)

    @Operation(Api.ALTER_USER_SCRAM_CREDENTIALS, each="results", key="user", about="user")
    async def alter_scram_credentials(self, changes: Mapping[str, Sequence[ScramChange]]) -> Question[None]:
        """Set passwords and remove credentials, by user; all changes of one user succeed or none does.

        The password is salted here, and leaves this process as a salted password alone: which would do in its place,
        so have TLS between.

        Raises:
            ConfigError: an unknown mechanism, iterations out of bounds, an empty password.
            KafkaError: RESOURCE_NOT_FOUND for a credential that is not there, UNACCEPTABLE_CREDENTIAL.
        """
        rng = self.session.rng
        deletions, upsertions = [], []
        for name, ones in changes.items():
            for one in ones:
                mechanism = _mechanism(one.mechanism)
                key = {"name": name, "mechanism": int(mechanism)}
                if one.password is None:
                    deletions.append(key)
                    continue
                if not one.password:
                    raise ConfigError("password", "", f"a password of {name} that is not empty")
                if not ITERATIONS_MIN <= one.iterations <= ITERATIONS_MAX:
                    raise ConfigError("iterations", one.iterations, f"from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
                salt = rng.getrandbits(8 * SALT_BYTES).to_bytes(SALT_BYTES, "big")
                salted = salted_password(mechanism, one.password, salt, one.iterations)
                upsertions.append({**key, "iterations": one.iterations, "salt": salt, "salted_password": salted})
        return Question({"deletions": deletions, "upsertions": upsertions}, nothing, done)


def _credentials(told: Any) -> tuple[ScramDescription, ...]:
    return tuple(ScramDescription(_title(info.mechanism), info.iterations) for info in told.credential_infos)


def _mechanism(title: str) -> ScramMechanism:
    mechanism = SCRAM_BY_TITLE.get(title)
    if mechanism is None:
        raise ConfigError("mechanism", title, "one of " + ", ".join(SCRAM_BY_TITLE))
    return mechanism


def _title(number: int) -> str:
    try:
        return ScramMechanism(number).title
    except ValueError:
        return f"mechanism {number}"


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


class QuotaAdmin(AdminBase):
    """What clients may take of each broker.

    All calls raise KafkaError CLUSTER_AUTHORIZATION_FAILED without the right to DESCRIBE_CONFIGS or ALTER_CONFIGS of
    the cluster.
    """

    @Operation(Api.DESCRIBE_CLIENT_QUOTAS)
    async def describe_client_quotas(self) -> Question[dict[QuotaEntity, dict[str, float]]]:
        """All quotas of users, client.ids and ips: by entity, then by key."""
        return Question({"components": (), "strict": False}, _quotas, alone)

    @Operation(Api.ALTER_CLIENT_QUOTAS, each="entries", about="entity", dry_run="validate_only")
    async def alter_client_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> Question[None]:
        """Set quotas, and remove those whose value is None; all changes of one entity succeed or none does.

        A broker goes by them when it has caught up with the metadata: a moment after this returns.

        Args:
            validate_only: raise what would be raised, and change nothing.

        Raises:
            KafkaError: INVALID_REQUEST for a key or a value that cannot be.
        """
        entries = [{"entity": _parts(entity), "ops": _ops(values)} for entity, values in changes.items()]
        values = {"entries": entries, "validate_only": validate_only}
        # Kafka answers in an order of its own.
        return Question(values, nothing, done, items=changes, key=_entity)


def _quotas(answer: Any) -> dict[QuotaEntity, dict[str, float]]:
    """Quotas of the answer whose kinds of entities this client knows."""
    entries = [
        one for one in answer.entries or () if {part.entity_type for part in one.entity} <= {USER, CLIENT_ID, IP}
    ]
    return {_entity(one): {quota.key: quota.value for quota in one.values} for one in entries}


def _entity(entry: Any) -> QuotaEntity:
    names = {part.entity_type: part.entity_name or "" for part in entry.entity}
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID), names.get(IP))


def _parts(entity: QuotaEntity) -> list[dict[str, str | None]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity.parts()]


def _ops(values: Mapping[str, float | None]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()]
