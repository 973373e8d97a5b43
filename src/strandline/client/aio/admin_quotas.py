"""The admin client's part about quotas of clients (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.client.aio.admin_base import AdminBase, results_of
from strandline.client.limits import limited
from strandline.client.rights import answered
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api
from strandline.proto.quotas import CLIENT_ID, IP, USER, QuotaEntity


class QuotaAdmin(AdminBase):
    """What clients may take of each broker.

    All calls raise KafkaError CLUSTER_AUTHORIZATION_FAILED without the right to DESCRIBE_CONFIGS or ALTER_CONFIGS of
    the cluster.
    """

    @limited
    async def describe_client_quotas(self) -> dict[QuotaEntity, dict[str, float]]:
        """All quotas of users, client.ids and ips: by entity, then by key."""
        answer = await self._call(
            Api.DESCRIBE_CLIENT_QUOTAS, {"components": (), "strict": False}, lambda reply: [reply.error_code]
        )
        if answer.error_code is not ErrorCode.NONE:
            raise answered(self.config, Api.DESCRIBE_CLIENT_QUOTAS, answer.error_code, answer.error_message)
        found: dict[QuotaEntity, dict[str, float]] = {}
        for entry in answer.entries or ():
            names = {part.entity_type: part.entity_name or "" for part in entry.entity}
            if names.keys() <= {USER, CLIENT_ID, IP}:
                entity = QuotaEntity(names.get(USER), names.get(CLIENT_ID), names.get(IP))
                found[entity] = {one.key: one.value for one in entry.values}
        return found

    @limited
    async def alter_client_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> None:
        """Set quotas, and remove those whose value is None; all changes of one entity succeed or none does.

        A broker goes by them when it has caught up with the metadata: a moment after this returns.

        Args:
            validate_only: raise what would be raised, and change nothing.

        Raises:
            KafkaError: INVALID_REQUEST for a key or a value that cannot be.
        """
        wanted = list(changes)
        entries = [{"entity": _entity(entity), "ops": _ops(changes[entity])} for entity in wanted]
        answer = await self._call(
            Api.ALTER_CLIENT_QUOTAS,
            {"entries": entries, "validate_only": validate_only},
            lambda reply: [entry.error_code for entry in reply.entries],
        )
        # Kafka answers in an order of its own.
        said = {
            tuple(sorted(((part.entity_type, part.entity_name) for part in entry.entity), key=str)): entry
            for entry in answer.entries
        }
        errors: dict[Any, Exception] = {}
        for entity in wanted:
            entry = said.get(tuple(sorted(entity.parts(), key=str)))
            if entry is None:
                errors[entity] = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "no answer for it", entity=str(entity))
            elif entry.error_code is not ErrorCode.NONE:
                errors[entity] = answered(
                    self.config, Api.ALTER_CLIENT_QUOTAS, entry.error_code, entry.error_message, entity=str(entity)
                )
        results_of({entity: None for entity in wanted if entity not in errors}, errors)


def _entity(entity: QuotaEntity) -> list[dict[str, str | None]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity.parts()]


def _ops(values: Mapping[str, float | None]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()]
