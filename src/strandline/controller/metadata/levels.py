"""The level from which a record may be written: a property of its type, and of fields that came later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.controller.metadata.features import FIRST_LEVEL, LEVEL_OF_FEATURES, FeatureLevelRecord
from strandline.controller.metadata.records import MetadataRecord, MetadataVersionRecord

RECORD_LEVELS: Mapping[type, int] = {FeatureLevelRecord: LEVEL_OF_FEATURES}
"""By type, the metadata.version that a record needs; those that are not named: the first."""

FIELD_LEVELS: Mapping[type, Mapping[str, int]] = {MetadataVersionRecord: {"release": LEVEL_OF_FEATURES}}
"""By type and field, the metadata.version from which the field may be other than its default: builds that do not know
it pass over it."""


def level_of(record: MetadataRecord) -> int:
    """The metadata.version that a record needs."""
    kind = type(record)
    needed = RECORD_LEVELS.get(kind, FIRST_LEVEL)
    fields = FIELD_LEVELS.get(kind)
    if fields is not None:
        declared: Any = kind.__dataclass_fields__
        for name, level in fields.items():
            if level > needed and getattr(record, name) != declared[name].default:
                needed = level
    return needed
