"""Requests to the active controller about client quotas (KIP-546); see `strandline.controller.api`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from strandline.proto.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """A key to set, or to remove where the value is None; values are text, as in `ClientQuotaRecord`."""

    key: Annotated[str, 1]
    value: Annotated[str | None, 2] = None


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """The changes of one entity, of which all succeed or none does; whom they are for as in `ClientQuotaRecord`."""

    user: Annotated[str | None, 1]
    client_id: Annotated[str | None, 2]
    changes: Annotated[tuple[QuotaChange, ...], 3]
    ip: Annotated[str | None, 4] = None


@dataclass(frozen=True, slots=True)
class AlterQuotasRequest:
    """AlterClientQuotas. `validate_only`: say what would become of it, and change nothing."""

    alterations: Annotated[tuple[QuotaAlteration, ...], 1] = ()
    validate_only: Annotated[bool, 2] = False


@dataclass(frozen=True, slots=True)
class QuotaOutcome:
    """Outcome of one alteration."""

    error: Annotated[ErrorCode, 1]
    message: Annotated[str, 2] = ""


@dataclass(frozen=True, slots=True)
class AlterQuotasReply:
    """One outcome an alteration, in order."""

    outcomes: Annotated[tuple[QuotaOutcome, ...], 1]
