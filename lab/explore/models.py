"""The models that can be searched, by name."""

from __future__ import annotations

from collections.abc import Sequence

from lab.explore.bounds import PartitionBounds, QuorumBounds
from lab.explore.model import Model
from lab.explore.partition import PartitionModel
from lab.explore.quorum import QuorumModel


def make_model(name: str, bounds: QuorumBounds | PartitionBounds, after: Sequence[str] = ()) -> Model:
    """A model within bounds. The steps `after` which it begins are taken when its starts are asked for, and may raise
    NoSuchStep then."""
    if isinstance(bounds, QuorumBounds):
        assert name == QuorumModel.name
        return QuorumModel(bounds, after)
    assert name == PartitionModel.name
    return PartitionModel(bounds, after)
