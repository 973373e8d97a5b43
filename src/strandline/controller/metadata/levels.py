"""The level that a record needs: a property of its type, and of fields that came later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.controller.metadata.features import LEVEL_OF_FEATURES, LEVEL_OF_MOVES
from strandline.controller.metadata.image import ResourceType
from strandline.controller.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    MetadataVersionRecord,
    PartitionChangeRecord,
    PartitionRecord,
)
from strandline.controller.metadata.table import BY_KIND

FIELD_LEVELS: Mapping[type[MetadataRecord], Mapping[str, int]] = {
    MetadataVersionRecord: {"release": LEVEL_OF_FEATURES},
    PartitionRecord: {"adding_replicas": LEVEL_OF_MOVES, "removing_replicas": LEVEL_OF_MOVES},
    PartitionChangeRecord: {"adding_replicas": LEVEL_OF_MOVES, "removing_replicas": LEVEL_OF_MOVES},
}
"""(record type, field) -> first metadata.version at which the field may differ from its default. Older builds ignore
the field."""


def level_of(record: MetadataRecord) -> int:
    """The metadata.version that a record needs."""
    kind = type(record)
    needed = BY_KIND[kind].level
    if isinstance(record, ConfigRecord):
        return LEVEL_OF_MOVES if record.resource_type == ResourceType.CLIENT_METRICS else needed
    fields = FIELD_LEVELS.get(kind)
    if fields is not None:
        declared: Any = kind.__dataclass_fields__  # type: ignore[attr-defined]
        for name, level in fields.items():
            if level > needed and getattr(record, name) != declared[name].default:
                needed = level
    return needed
