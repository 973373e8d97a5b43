"""A life that is cut short after so many operations of its disk, and the one after it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from strandline.chaos.sim.disk import DiskConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World, WorldConfig


class OneStrike(ABC):
    """The machine n1; `first_life` calls `aim`, from where its operations count, and sets `ended` at its end.

    Attributes:
        error: what the first life ended with, if nothing struck it.
    """

    def __init__(self, seed: int, operations: int, *, power: bool) -> None:
        disk = DiskConfig(sector_bytes=512, cold_probability=0.0)
        self.world = World(1_000 * seed + operations, WorldConfig(disk=disk))
        self._disk = self.world.add_machine("n1").disk
        self._operations = operations
        self._power = power
        self.ended = False
        self.error: BaseException | None = None

    @abstractmethod
    async def first_life(self, ports: Ports) -> None: ...

    @abstractmethod
    async def second_life(self, ports: Ports) -> None: ...

    def aim(self) -> None:
        self._disk.strike_after(self._operations, self._strike)

    def _strike(self) -> None:
        (self.world.power_cut if self._power else self.world.kill)("n1")

    async def _scenario(self) -> None:
        first = self.world.spawn("n1", self.first_life)
        for _ in range(2_000):
            if self.ended or self.world.process("n1") is not first:
                break
            await self.world.sleep_ms(5)
        if first.main is not None and first.main.done() and not first.main.cancelled():
            self.error = first.main.exception()
        self._disk.strike_after(0, None)
        if self.world.process("n1") is not None:
            self._strike()
        second = self.world.spawn("n1", self.second_life)
        assert second.main is not None
        await second.main

    def run(self) -> bool:
        """Whether the first life had come to its end before anything struck."""
        self.world.run(self._scenario())
        return self.ended
