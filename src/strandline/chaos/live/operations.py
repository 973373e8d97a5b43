"""Simulated operator of a live cluster: it runs commands of `strandline` during faults, one after the other, and kills
some of them in the middle.

Each command is a real process. Commands that fail during a fault are counted. Once everything is healed no command may
fail, and no interrupted operation may leave anything behind.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.chaos.live.target import ASK, ChaosTarget, client_settings
from strandline.client import Admin
from strandline.client.types import ConfigResource
from strandline.controller.metadata.features import KRAFT_FEATURE
from strandline.proto.errors import StrandlineError
from strandline.tools.moves.planner import rebalance
from strandline.tools.moves.survey import survey
from strandline.tools.moves.throttle import rates

FACTOR = 3
"""Replication factor of each partition, except while an operation adds a replica."""

COMMAND_S = 120.0
"""Maximum seconds of a command once everything is healed."""

TRIES = 3
"""Attempts at a command once everything is healed: a replica that has just joined may not be eligible as leader yet."""

IDLE_S = (0.2, 2.0)
BREAK_OFF_PROBABILITY = 0.2
BREAK_OFF_S = (0.3, 4.0)
THROTTLES = ("200kB", "2MB", "50MB")
THROTTLE_PROBABILITY = 0.4
WAIT_FOR_VOTER_S = 60

OPERATIONS: Mapping[str, str] = {
    "move": "the replicas of one partition, or of a topic, go to other brokers (topic move --to)",
    "factor": "a topic gets one replica more, and later one less (topic move --replication-factor)",
    "drain": "a broker is emptied, or two where enough remain (broker drain)",
    "recommission": "a broker that was emptied gets its part again (broker recommission)",
    "rebalance": "replicas, bytes or leaders are evened (cluster rebalance)",
    "elect": "preferred replicas are given their leaderships (topic elect)",
    "watch": "what is under way is watched to its end, or cancelled (cluster rebalance --follow, --cancel)",
    "voters": "a controller loses its vote, gets one, or takes another's (quorum remove, add, replace)",
}
"""Every kind of operation, by name; each command of a run is one of them."""


@dataclass(slots=True)
class _Typed:
    """A running command."""

    kind: str
    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    began_s: float
    break_off_s: float
    broken_off: bool = False

    @property
    def text(self) -> str:
        return "strandline " + " ".join(self.words)


class Operator:
    """Runs commands against a cluster. Only `finish` and `judge` block. Not thread-safe.

    Args:
        topics: name -> number of partitions, for the topics whose partitions may be moved.
        directory: directory of `operator.log`, which gets the output of the commands.
        tell: called with a line for each thing that happens.

    Attributes:
        counts: kind of command -> number of commands that `ended` well, `failed` or were `broken_off`; and `longest_s`.
    """

    def __init__(
        self,
        target: ChaosTarget,
        rng: random.Random,
        topics: Mapping[str, int],
        directory: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._target = target
        self._rng = rng
        self._topics = dict(topics)
        self._log = directory / "operator.log"
        self._tell = tell
        self._running: _Typed | None = None
        self._next_s = time.monotonic()
        self._drained: dict[int, None] = {}
        self._grown: dict[str, None] = {}
        self.counts: dict[str, dict[str, float]] = {}

    def look(self) -> None:
        """Check on the running command: note its end, kill it if it is to be broken off, or start the next one."""
        if self._running is not None:
            self._watch(self._running)
        elif time.monotonic() >= self._next_s:
            kind, words = self.draw()
            self._type(kind, words, breakable=True)

    def finish(self, until: Callable[[Callable[[], bool], float, str], None]) -> list[str]:
        """Undo all operations, once everything is healed. Returns a sentence for each requirement that was not met.

        Args:
            until: `until(condition, seconds, message)` returns once the condition holds, or raises TimeoutError with
                the message.
        """
        self._wait(until)
        for kind, words in self._undoing():
            for attempt in range(TRIES):
                code = self._do(kind, words, until)
                if code == 0:
                    break
                if attempt == TRIES - 1:
                    return [f"OperationEnds: strandline {' '.join(words)} fails with nothing broken: {self._last()}"]
        return self.judge(until)

    def kill(self) -> None:
        """Kill the running command, if any. Idempotent."""
        if self._running is not None:
            self._running.process.kill()
            self._running.process.wait()
            self._running = None

    # --- typing ---

    def _type(self, kind: str, words: tuple[str, ...], *, breakable: bool) -> None:
        file = self._target.client_properties
        where = ("--bootstrap", self._target.bootstrap, *(("--command-config", str(file)) if file else ()))
        with self._log.open("ab") as log:
            log.write(f"$ strandline {' '.join(words)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                [sys.executable, "-m", "strandline.cli.main", *words, *where],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "NO_COLOR": "1"},
                start_new_session=True,
            )
        breaks = breakable and self._rng.random() < BREAK_OFF_PROBABILITY
        break_off_s = self._rng.uniform(*BREAK_OFF_S) if breaks else float("inf")
        self._running = _Typed(kind, words, process, time.monotonic(), break_off_s)
        self._tell(f"operator: {self._running.text}")

    def _watch(self, typed: _Typed) -> None:
        took_s = time.monotonic() - typed.began_s
        code = typed.process.poll()
        if code is None:
            if took_s >= typed.break_off_s and not typed.broken_off:
                how = self._rng.choice((signal.SIGINT, signal.SIGKILL))
                typed.broken_off = True
                typed.process.send_signal(how)
                self._tell(f"operator: breaks {typed.text} off by {how.name}")
            return
        self._running = None
        self._next_s = time.monotonic() + self._rng.uniform(*IDLE_S)
        counts = self.counts.setdefault(typed.kind, {"ended": 0, "failed": 0, "broken_off": 0, "longest_s": 0.0})
        counts["broken_off" if typed.broken_off else "failed" if code else "ended"] += 1
        counts["longest_s"] = max(counts["longest_s"], round(took_s, 1))
        if code and not typed.broken_off:
            self._tell(f"operator: {typed.text} failed after {took_s:.1f} s: {self._last()}")

    def _do(self, kind: str, words: tuple[str, ...], until: Callable[[Callable[[], bool], float, str], None]) -> int:
        self._type(kind, words, breakable=False)
        assert self._running is not None
        process = self._running.process
        self._wait(until)
        return int(process.returncode)

    def _wait(self, until: Callable[[Callable[[], bool], float, str], None]) -> None:
        """Wait until no command runs. Raises TimeoutError."""
        if self._running is not None:
            words = f"{self._running.text} does not end"
            self._running.break_off_s = float("inf")
            until(self._idle, COMMAND_S, words)

    def _idle(self) -> bool:
        if self._running is not None:
            self._watch(self._running)
        return self._running is None

    def _last(self) -> str:
        """Last line that the last command printed."""
        lines = [line.strip("│╭╰╮╯─ ") for line in self._log.read_text(errors="replace")[-1000:].splitlines()]
        return " ".join([line for line in lines if line and not line.startswith("$")][-2:])[-300:]

    # --- what is typed ---

    def draw(self) -> tuple[str, tuple[str, ...]]:
        drawn = {
            "move": self._move,
            "factor": self._factor,
            "drain": self._drain,
            "recommission": self._recommission,
            "rebalance": self._rebalance,
            "elect": lambda: ("topic", "elect", *self._topics),
            "watch": lambda: ("cluster", "rebalance", self._rng.choice(("--follow", "--cancel"))),
            "voters": self._voters,
        }
        while True:
            kind = self._rng.choice(list(drawn))
            words = drawn[kind]()
            if words:
                return kind, words

    def _throttle(self) -> tuple[str, ...]:
        drawn = self._rng.random() < THROTTLE_PROBABILITY
        return ("--throttle", self._rng.choice(THROTTLES)) if drawn else ()

    def _move(self) -> tuple[str, ...]:
        topic = self._rng.choice(list(self._topics))
        takers = [node for node in self._target.broker_ids if node not in self._drained]
        to = self._rng.sample(takers, FACTOR)
        which = topic if self._topics[topic] == 1 else f"{topic}:{self._rng.randrange(self._topics[topic])}"
        return ("topic", "move", which, "--to", ",".join(map(str, to)), *self._throttle())

    def _factor(self) -> tuple[str, ...]:
        """Command that adds a replica to each partition of a topic, if every broker may take one, or removes it."""
        topic = self._rng.choice(list(self._topics))
        if topic in self._grown:
            del self._grown[topic]
            return ("topic", "move", topic, "--replication-factor", str(FACTOR))
        if len(self._target.broker_ids) - len(self._drained) <= FACTOR:
            return ()
        self._grown[topic] = None
        return ("topic", "move", topic, "--replication-factor", str(FACTOR + 1), *self._throttle())

    def _drain(self) -> tuple[str, ...]:
        """Command that empties brokers, as many as leave enough of them for each partition."""
        rest = [node for node in self._target.broker_ids if node not in self._drained]
        most = len(rest) - FACTOR - bool(self._grown)
        if most < 1:
            return ()
        nodes = self._rng.sample(rest, self._rng.randint(1, most))
        self._drained.update(dict.fromkeys(nodes))
        return ("broker", "drain", *map(str, nodes), *self._throttle())

    def _recommission(self) -> tuple[str, ...]:
        if not self._drained:
            return ()
        node = self._rng.choice(list(self._drained))
        del self._drained[node]
        return ("broker", "recommission", str(node), *self._throttle())

    def _rebalance(self) -> tuple[str, ...]:
        how = self._rng.choice(((), ("--by", "bytes"), ("--leaders-only",)))
        return ("cluster", "rebalance", *how, *self._throttle())

    def _voters(self) -> tuple[str, ...]:
        """Command that adds or removes a voter, never below three; none without a spare controller or an answer."""
        known = self._target.controller_ids
        if len(known) <= FACTOR:
            return ()
        try:
            with self._admin() as admin:
                votes = [one.node_id for one in admin.describe_quorum().voters]
                if not admin.describe_features().finalized.get(KRAFT_FEATURE):
                    return ("upgrade", "finalize", f"{KRAFT_FEATURE}=1")
        except (StrandlineError, OSError):
            return ()
        without = [node for node in known if node not in votes]
        wait = ("--wait-s", str(WAIT_FOR_VOTER_S))
        if not without:
            return ("quorum", "remove", str(self._rng.choice(votes)))
        node = str(self._rng.choice(without))
        if self._rng.random() < 0.5:
            return ("quorum", "add", node, *wait)
        return ("quorum", "replace", str(self._rng.choice(votes)), node, *wait)

    def _undoing(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Commands that restore the cluster's first state. Each is made once the one before has ended."""
        yield "watch", ("cluster", "rebalance", "--follow")
        with self._admin() as admin:
            closed = [node for node, one in survey(admin).brokers.items() if one.cordoned]
        for node in closed:
            yield "recommission", ("broker", "recommission", str(node))
        for topic in self._topics:
            yield "factor", ("topic", "move", topic, "--replication-factor", str(FACTOR))
        with self._admin() as admin:
            votes = {one.node_id for one in admin.describe_quorum().voters}
        for node in self._target.controller_ids:
            if node not in votes:
                yield "voters", ("quorum", "add", str(node), "--wait-s", str(WAIT_FOR_VOTER_S))
        yield "rebalance", ("cluster", "rebalance")

    # --- judging ---

    def judge(self, until: Callable[[Callable[[], bool], float, str], None]) -> list[str]:
        """Check a cluster after all operations have ended. Returns a sentence for each requirement that is not met."""
        found: list[str] = []

        def nothing() -> bool:
            with suppress(StrandlineError, OSError), self._admin() as admin:
                found[:] = self._left(admin)
                return not found
            return False

        try:
            until(nothing, COMMAND_S, "operations leave something")
        except TimeoutError as error:
            return found or [f"MovesEnd: {error}"]
        return []

    def _left(self, admin: Admin) -> list[str]:
        cluster = survey(admin)
        found = [f"MovesEnd: {one.tp} still moves: {one.adding} come, {one.removing} go" for one in cluster.partitions
                 if one.moves]  # fmt: skip
        limits = rates(admin, cluster)
        found += [f"NoThrottleLeft: broker {node} is limited to {rate} bytes a second" for node, rate in limits.items()]
        found += [
            f"NoThrottleLeft: {name} has throttled replicas: {value}" for name, value in _throttled(admin, self._topics)
        ]
        found += [f"NoBrokerLeftCordoned: {node}" for node, one in cluster.brokers.items() if one.cordoned]
        for one in cluster.partitions:
            strays = sorted(set(one.sizes) - set(one.replicas))
            if strays:
                found.append(f"RemovedReplicasGo: {one.tp} still lies on {strays}, and has {one.replicas}")
            if one.tp.topic in self._topics and len(one.replicas) != FACTOR:
                found.append(f"FactorIsKept: {one.tp} has {one.replicas}")
        plan = rebalance(cluster)
        found += [f"Balanced: {move.tp} would move from {move.before} to {move.after}" for move in plan.moves]
        return found

    def _admin(self) -> Admin:
        return Admin(self._target.responsive, **ASK, **client_settings(self._target.client_properties))


def _throttled(admin: Admin, topics: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """(topic, throttled replicas) for each topic that still lists some."""
    for resource, entries in admin.describe_configs([ConfigResource("topic", name) for name in topics]).items():
        for entry in entries:
            if entry.name.endswith(".replication.throttled.replicas") and entry.value:
                yield resource.name, f"{entry.name}={entry.value}"


def rows(counts: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Table of the counts: one row for each kind of operation, in the order of `OPERATIONS`."""
    return [{"operation": kind, **counts[kind]} for kind in OPERATIONS if kind in counts]
