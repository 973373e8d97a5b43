"""The models by name, and the bounds that have one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from strandline.chaos.explore.model import Model


class Preset(NamedTuple):
    """Bounds with a name: what they are for, and how many states they were found to have (0: more than were met)."""

    name: str
    purpose: str
    bounds: dict[str, int]
    after: str = ""
    """Steps, with `; ` between them, after which the search begins."""


PRESETS: dict[str, tuple[Preset, ...]] = {
    "quorum": (
        Preset(
            "small",
            "elections with a record and a crash; seconds",
            {"epochs": 1, "records": 1, "crashes": 1, "timeouts": 2},
        ),
        Preset(
            "usual",
            "two epochs, a record, a crash, three timers; minutes",
            {"epochs": 2, "records": 1, "crashes": 1, "timeouts": 3},
        ),
    ),
    "partition": (
        Preset("small", "one broker slow, one crash, two records; seconds", {"delays": 1, "crashes": 1, "records": 2}),
        Preset("usual", "two brokers slow, one crash, two records; minutes", {"delays": 2, "crashes": 1, "records": 2}),
    ),
}


def make_model(name: str, bounds: dict[str, int], after: Sequence[str] = ()) -> Model:
    """A model within bounds. What is not named is as the model has it.

    Raises:
        ValueError: the model has no such bound. The steps `after` which it begins are taken when its starts are asked
            for, and may raise NoSuchStep then.
    """
    model: Any
    kind: Any
    if name == "quorum":
        from strandline.chaos.explore.quorum import QuorumBounds as kind  # noqa: N813
        from strandline.chaos.explore.quorum import QuorumModel as model  # noqa: N813
    else:
        from strandline.chaos.explore.partition import PartitionBounds as kind  # noqa: N813
        from strandline.chaos.explore.partition import PartitionModel as model  # noqa: N813
    known = [field.name for field in fields(kind)]
    unknown = [bound for bound in bounds if bound not in known]
    if unknown:
        raise ValueError(f"the {name} has no bound {unknown[0]!r}; there are {', '.join(known)}")
    return model(kind(**bounds), after)  # type: ignore[no-any-return]
