"""An operator who cordons, drains and takes brokers back into use while a simulated cluster is under faults.

It does what the commands do (`strandline broker cordon`, `drain`, `recommission`, `topic move --replication-factor`),
by the same planner (`strandline.tools.moves`) and the same blocking admin client, on a thread of its own. It gives up
in the middle now and then, as by Ctrl-C, and begins anew.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from strandline.chaos.checkers.cordons import CORDONED, CordonedGetsNothing, check_drained, replicas_on
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.cluster import SimCluster
from strandline.chaos.sim.loop import SimLoop
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import current_process
from strandline.chaos.sim.threads import Threads
from strandline.client.admin import Admin
from strandline.client.types import ConfigChange, ConfigResource
from strandline.proto.errors import StrandlineError
from strandline.tools.moves.layout import Plan
from strandline.tools.moves.planner import change_factor, leaders_off, move_off, rebalance
from strandline.tools.moves.running import Running, elect
from strandline.tools.moves.survey import survey
from strandline.tools.moves.throttle import Throttle, clear

DRAINS_SHARE = 0.25
"""Share of the seeds with plain clients alone in which brokers are cordoned and drained."""

_MEAN_MS = 500.0
"""Milliseconds between two commands, on average."""

_LOOK_MS = 300.0
"""Milliseconds between two looks at moves that are under way."""

_AT_ONCE = 4

_PATIENCE_MS = (1_000.0, 4_000.0, 60_000.0)
"""Milliseconds after which a command is interrupted."""

_GONE_MS = 30_000.0
"""Milliseconds within which a drained broker must delete its replicas."""

_THROTTLED_SHARE = 0.3
_RATE = 2_000_000

_SETTINGS: dict[str, Any] = {"request_timeout_ms": 2_000, "default_api_timeout_ms": 6_000}


class Interrupted(Exception):
    """The command was interrupted; the moves that it began continue."""


class Drains:
    """State of the operator over the whole run.

    Attributes:
        calm: faults have ended: one broker is drained to the end, and everything is put on every broker again.
        done: so it is.
        figures: what was done, counted.
    """

    def __init__(self, cluster: SimCluster, rng: random.Random, note: Callable[[str], None]) -> None:
        self.calm = False
        self.done = False
        self.figures: Counter[str] = Counter()
        self._cluster = cluster
        self._rng = rng
        self._note = note
        self._checks = CordonedGetsNothing()
        self._broken: BaseException | None = None

    def check(self) -> None:
        """Check what is to hold at any time. Raises InvariantViolated."""
        if self._broken is not None:
            raise self._broken
        image = self._cluster.newest_image()
        if image is not None:
            self._checks.check(image)

    async def main(self, ports: Ports) -> None:
        """Run the operator's process."""
        process, loop = current_process(), asyncio.get_running_loop()
        assert process is not None
        assert isinstance(loop, SimLoop)
        process.threads = threads = Threads(loop, process, clock=ports.clock, rng=self._rng, switch_points=None)
        try:
            await threads.run(lambda: _Commands(self, threads, self._cluster.bootstrap).work())
        except BaseException as error:
            self._broken = error


class _Commands:
    """The operator's commands, on its thread."""

    def __init__(self, drains: Drains, threads: Threads, bootstrap: str) -> None:
        self._drains = drains
        self._threads = threads
        self._cluster = drains._cluster
        self._rng = drains._rng
        self._admin = Admin(bootstrap, clock=threads.clock, rng=self._rng, **_SETTINGS)  # type: ignore[call-arg]
        self._until_ms = 0.0

    def work(self) -> None:
        """Work until faults have ended, and then to the end."""
        drains = self._drains
        while not drains.calm:
            self._sleep(self._rng.expovariate(1 / _MEAN_MS))
            self._until_ms = self._now_ms() + self._rng.choice(_PATIENCE_MS)
            self._try(self._one)
        drains._note("faults have ended: a broker is drained, and taken back into use")
        self._until_ms = float("inf")
        while not self._try(self._last):
            self._sleep(_LOOK_MS)
        self._admin.close()
        drains.done = True

    def _try(self, command: Callable[[], bool]) -> bool:
        """True if a command has done all that it was to do."""
        drains = self._drains
        try:
            return command()
        except Interrupted:
            drains.figures["interrupted"] += 1
        except StrandlineError as error:
            drains.figures[type(error).__name__] += 1
        return False

    def _now_ms(self) -> float:
        return float(self._threads.clock.monotonic_ms())

    def _sleep(self, duration_ms: float) -> None:
        assert self._threads.current is not None
        self._threads.current.sleep(duration_ms / 1000)

    def _one(self) -> bool:
        """One command, drawn."""
        node = self._rng.choice(self._numbers)
        kind = self._rng.choice(("cordon", "drain", "drain", "recommission"))
        if kind == "drain":
            return self._drain(node)
        self._set_cordon(node, "*" if kind == "cordon" else None)
        self._drains._note(f"broker {node} is {'' if kind == 'cordon' else 'un'}cordoned")
        return kind == "cordon" or self._carry_out(rebalance(survey(self._admin)))

    @property
    def _numbers(self) -> list[int]:
        return [int(name[1:]) for name in self._cluster.brokers]

    def _set_cordon(self, node: int, value: str | None) -> None:
        change = ConfigChange(CORDONED, value) if value else ConfigChange(CORDONED, operation="delete")
        self._admin.alter_configs({ConfigResource("broker", str(node)): [change]})
        self._drains.figures["cordoned" if value else "uncordoned"] += 1

    def _drain(self, node: int) -> bool:
        """As `strandline broker drain`, with a copy fewer of everything first: three brokers have three copies."""
        admin, drains = self._admin, self._drains
        factor = len(self._numbers) - 1
        if not self._carry_out(change_factor(survey(admin), factor, lambda _: True)):
            return False
        plan = move_off(survey(admin), [node])
        if plan.left:
            drains._note(f"broker {node} is not drained: {plan.left[0].why}")
            drains.figures["refused"] += 1
            return False
        self._set_cordon(node, "*")
        drains._note(f"broker {node} is drained")
        moved = self._carry_out(leaders_off(survey(admin), [node]))
        moved = self._carry_out(move_off(survey(admin), [node])) and moved
        while any(one.moves for one in survey(admin).partitions if node in one.replicas):
            self._rest()
        if not moved:
            return False
        image = self._cluster.newest_image()
        assert image is not None
        check_drained(image, node)
        drains.figures["drained"] += 1
        drains._note(f"broker {node} is empty")
        return True

    def _carry_out(self, plan: Plan) -> bool:
        """True if all moves of a plan are done."""
        admin = self._admin
        throttle = Throttle(admin, _RATE) if self._rng.random() < _THROTTLED_SHARE else None
        running = Running(admin, plan, clock=self._threads.clock, at_once=_AT_ONCE, throttle=throttle)
        while not (state := running.step()).is_over:
            self._rest()
        elect(admin, [move.tp for move in running.moved if move.before[0] != move.after[0]])
        if throttle is not None:
            throttle.end(survey(admin))
        return not (plan.left or state.left)

    def _rest(self) -> None:
        """Wait before the next look. Raises Interrupted."""
        self._sleep(_LOOK_MS)
        if self._now_ms() >= self._until_ms or (self._drains.calm and self._until_ms < float("inf")):
            raise Interrupted

    def _last(self) -> bool:
        """Drain a broker, look at its disks, and put everything on every broker again. False: not all is done yet."""
        numbers, admin = self._numbers, self._admin
        for node in numbers:
            self._set_cordon(node, None)
        node = self._rng.choice(numbers)
        if not self._drain(node):
            return False
        self._wait_gone(node)
        self._set_cordon(node, None)
        everywhere = change_factor(survey(admin), len(numbers), lambda _: True)
        if not self._carry_out(everywhere):
            return False
        clear(admin, survey(admin))
        return True

    def _wait_gone(self, node: int) -> None:
        """Wait until a drained broker has no data of a partition on its disks. Raises InvariantViolated."""
        machine = self._cluster.world.machines[f"n{node}"]
        deadline_ms = self._now_ms() + _GONE_MS
        while True:
            image = self._cluster.newest_image()
            assert image is not None
            check_drained(image, node)
            paths = self._cluster.config(f"n{node}").log_dirs
            left = [found for path in paths for found in replicas_on(machine.disk_of(path), [path], image)]
            if not left:
                return
            if self._now_ms() > deadline_ms:
                raise InvariantViolated("DrainedHasNothing", "a drained broker keeps replicas", node=node, left=left)
            self._sleep(_LOOK_MS)
