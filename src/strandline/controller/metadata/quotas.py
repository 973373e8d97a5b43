"""Quotas of clients in the metadata (KIP-546): their record, their part of the image, their replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from strandline.controller.metadata.maps import MapDeltas, MapOfMaps
from strandline.controller.metadata.records import MetadataRecord
from strandline.proto.errors import FatalError
from strandline.proto.quotas import QuotaEntity, entity_fault, value_fault

QuotasImage = Mapping[QuotaEntity, Mapping[str, float]]
"""Entity -> key -> value; no entity without a key. The mapping is another one whenever a quota is."""


@dataclass(frozen=True, slots=True)
class ClientQuotaRecord(MetadataRecord):
    """A quota is set, in the place of any earlier one, or removed where the value is None.

    An entity's user, client.id or ip is empty for the default, None where the quota does not depend on it. The value
    is Python's shortest text of a float, which gives the same float again.
    """

    user: Annotated[str | None, 1]
    client_id: Annotated[str | None, 2]
    key: Annotated[str, 3]
    value: Annotated[str | None, 4]
    ip: Annotated[str | None, 5] = None


QUOTAS = MapOfMaps[QuotaEntity, str, float]("quotas")


def replay_quota(deltas: MapDeltas, record: ClientQuotaRecord) -> None:
    """Apply a quota record. Raises FatalError if its value is not valid, or if it removes a quota that does not
    exist."""
    entity = QuotaEntity(record.user, record.client_id, record.ip)
    if record.value is not None:
        deltas[QUOTAS].put_part(entity, record.key, _value(entity, record.key, record.value))
    elif not deltas[QUOTAS].remove_part(entity, record.key):
        words = f"A record removes the quota {record.key} of {entity}, which has none"
        raise FatalError(f"{words}: the metadata is damaged.")


def quota_record(entity: QuotaEntity, key: str, value: float | None) -> ClientQuotaRecord:
    """The record that sets a quota, or removes it."""
    text = None if value is None else repr(float(value))
    return ClientQuotaRecord(entity.user, entity.client_id, key, text, entity.ip)


def quota_records(quotas: QuotasImage) -> Iterator[ClientQuotaRecord]:
    """The records that add up to the quotas; equal images give equal records."""
    for entity in sorted(quotas, key=lambda entity: [(name is not None, name or "") for name in entity]):
        for key in sorted(quotas[entity]):
            yield quota_record(entity, key, quotas[entity][key])


def _value(entity: QuotaEntity, key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    fault = entity_fault(entity) or value_fault(entity, key, value)
    if fault or repr(value) != text:  # rule A21/damaged-quotas-are-replayed
        raise FatalError(
            f"A record sets a quota that cannot be, {key}={text!r} of {entity}: {fault}. The metadata is damaged."
        )
    return value
