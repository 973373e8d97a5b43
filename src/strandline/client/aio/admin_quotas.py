"""The admin clients' part about quotas of clients (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.client.aio.admin_base import AdminBase, Operation, Question, alone, done, nothing
from strandline.proto.kafka.apis import Api
from strandline.proto.quotas import CLIENT_ID, IP, USER, QuotaEntity


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
    """Those of the kinds of entities that this client knows."""
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
