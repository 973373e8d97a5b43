"""What an internal listener may offer beside calls: gRPC's health service, which the simulator's twin does not have."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ReportsHealth(Protocol):
    """A listener with a health service."""

    async def set_serving(self, serving: bool) -> None:
        """What it answers from now on."""
