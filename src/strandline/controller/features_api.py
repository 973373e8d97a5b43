"""Requests to the active controller about feature levels (KIP-584); see `strandline.controller.api`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from strandline.proto.messages.fields import Int32


class UpdateKind(IntEnum):
    """Kafka's UpgradeType: which way a level may go, and at what price."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """The level that a feature shall have."""

    name: Annotated[str, 1]
    level: Annotated[int, Int32(2)]
    kind: Annotated[UpdateKind, 3]


@dataclass(frozen=True, slots=True)
class UpdateFeaturesRequest:
    """UpdateFeatures: all of them or none. `validate_only`: say what would become of it, and change nothing."""

    updates: Annotated[tuple[FeatureUpdate, ...], 1] = ()
    validate_only: Annotated[bool, 2] = False


@dataclass(frozen=True, slots=True)
class UpdateFeaturesReply:
    """The levels are as asked for, or could be."""
