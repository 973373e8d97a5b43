"""Golden scenarios: one behaviour a file, commands behind `> `, below each what happened. Rewrite with `--rewrite`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from raft_invariants import CheckedWorld

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


class Stage:
    """Carries out a scenario's commands on a checked world; every invariant is asserted on the way."""

    def __init__(self) -> None:
        self.voters: list[int] = [1, 2, 3]
        self.observers: list[int] = []
        self._world: CheckedWorld | None = None

    @property
    def world(self) -> CheckedWorld:
        if self._world is None:
            self._world = CheckedWorld(self.voters, seed=1, observers=self.observers)
            self._world.log = []
        return self._world

    def command(self, line: str) -> list[str]:
        name, *words = line.split()
        handler: Callable[..., list[str] | None] = getattr(self, f"do_{name}")
        own = handler(*words) or []
        traced = self._world.log or [] if self._world is not None else []
        if self._world is None:
            return own
        self.world.log = []
        return traced + own

    def do_voters(self, *ids: str) -> None:
        self.voters = [int(node) for node in ids]

    def do_observers(self, *ids: str) -> None:
        self.observers = [int(node) for node in ids]

    def do_quorum(self) -> None:
        """Start all voters and let them elect one, quietly: it is always node 2."""
        self.do_start(*map(str, self.voters))
        self.do_elect()
        self.do_run("50")
        self.world.log = []

    def do_messages(self, state: str) -> None:
        self.world.trace_messages = state == "on"

    def do_start(self, *ids: str) -> None:
        for node in ids:
            self.world.nodes[int(node)].start()

    def do_kill(self, node: str, *options: str) -> None:
        """`unsynced-kept` or (default) `unsynced-lost`; `silent`: no connection breaks."""
        self.world.crash(int(node), keep=1.0 if "unsynced-kept" in options else 0.0, silent="silent" in options)

    def do_wipe(self, node: str, directory: str) -> None:
        self.world.nodes[int(node)].wipe(int(directory))

    def do_run(self, duration_ms: str) -> None:
        self.world.run(float(duration_ms))

    def do_elect(self) -> None:
        """Run until a leader knows its high watermark."""
        assert self.world.run(20_000, until=lambda: self.world.established() is not None)

    def do_until(self, node: str, role: str) -> None:
        """Run until a node has a role."""

        def there() -> bool:
            core = self.world.nodes[int(node)].core
            return core is not None and core.role.kind.value == role

        assert self.world.run(20_000, until=there)

    def do_batches(self, count: str) -> None:
        """How many batches a fetch brings."""
        self.world.batches_max = int(count)

    def do_cut(self, *links: str) -> None:
        """`1-2` both ways, `1>2` one way."""
        for link in links:
            one_way = ">" in link
            a, b = link.split(">" if one_way else "-")
            self.world.cut(int(a), int(b), one_way=one_way)

    def do_isolate(self, node: str) -> None:
        self.world.isolate(int(node))

    def do_heal(self) -> None:
        self.world.heal()

    def do_append(self, node: str, *values: str) -> list[str]:
        out = []
        for value in values:
            result = self.world.nodes[int(node)].append(value)
            if result is None:
                out.append(f"{node} does not lead")
        return out

    def do_resign(self, node: str) -> None:
        target = self.world.nodes[int(node)]
        assert target.core is not None
        target.core.resign(self.world.now_ms)
        target.pump()

    def do_hold(self, node: str) -> None:
        """Its syncs do not begin until `release`."""
        self.world.nodes[int(node)].hold_flush = True

    def do_release(self, node: str) -> None:
        self.world.nodes[int(node)].release_flush()

    def do_snapshot(self, node: str) -> None:
        self.world.nodes[int(node)].take_snapshot()

    def do_show(self) -> list[str]:
        lines = []
        for node in self.world.nodes.values():
            core = node.core
            if core is None:
                lines.append(f"{node.id}: down")
                continue
            voted = core.role.voted_for
            vote = "" if voted is None else f", vote for {voted.node_id}"
            log = " ".join(f"{b.base_offset}@{b.epoch}" for b in node.written.batches)
            lines.append(
                f"{node.id}: {core.role.kind.value} of epoch {core.epoch}, leader {core.leader_id}{vote}, "
                f"log [{log}], durable to {core.log.durable_offset}, high watermark {core.high_watermark}"
            )
        return lines


def play(text: str) -> str:
    """The scenario with its output as it is now."""
    stage = Stage()
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            out.append(line)
        elif line.startswith("> "):
            out += ["", line, *(f"    {result}" for result in stage.command(line[2:]))]
    return "\n".join(out).strip() + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    """What the file says is what happens."""
    expected = path.read_text()
    actual = play(expected)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(actual)
    else:
        assert actual == expected


def test_there_are_scenarios() -> None:
    """An empty glob would pass everything."""
    assert len(SCENARIOS) >= 16
