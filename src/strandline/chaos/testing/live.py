"""The fixtures `strandline_cluster` and `strandline_session_cluster`: real processes, and faults for them."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from strandline.chaos.live.cluster import LiveCluster
from strandline.chaos.testing.requested import RequestedFault, as_texts, assert_met, check_met
from strandline.client import Admin
from strandline.client.types import NewTopic, PartitionDescription
from strandline.cluster.node.dev import DevError
from strandline.cluster.node.dev_layout import PortTaken
from strandline.proto.errors import StrandlineError
from strandline.proto.json_text import read_json

T = TypeVar("T")

QUICK = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
}
"""Settings for quick tests: what a paused or cut off node causes takes a third of the usual time, and less."""

PORT_TRIES = 3
ASK_TIMEOUT_S = 2.0
POLL_S = 0.02

_NOTHING = threading.Event()
"""Event that is never set: what a test waits for is in other processes, and is asked for again and again."""

METADATA_OFFSET = "kafka_server_raft_metrics_high_watermark "


class NobodyAwake(RuntimeError):
    """Every node is down or paused, so that no node can answer."""


class ClusterUnderTest:
    """A cluster of real processes on free ports; nodes are numbers from 1, each broker and controller.

    Every fault that is asked for is written down. At the end of the test each must have struck something, or the test
    fails (`required=False` excuses one).

    Attributes:
        bootstrap: the clients' addresses of all nodes.
        node_ids: the nodes.
        story: what was done to them, with seconds since the cluster was ready.
    """

    def __init__(self, live: LiveCluster) -> None:
        self.story: list[str] = []
        self._live = live
        self._began = time.monotonic()
        self._asked: list[RequestedFault] = []
        self._paused: dict[int, None] = {}
        self._starting: dict[int, None] = {}
        """Nodes that are not known yet to do their work."""
        self._ended: dict[int, str] = {}
        self._met: dict[tuple[int, int], list[int]] = {}
        """Number of times that each fault was met when last asked, by node and process id."""

    @property
    def bootstrap(self) -> str:
        return self._live.bootstrap

    @property
    def node_ids(self) -> list[int]:
        return self._live.node_ids

    # --- processes ---

    def kill(self, node: int) -> None:
        """Kill a node by SIGKILL, as a crash; returns when the process is gone."""
        self._running(node)
        self._count(node)
        self._live.kill(node)
        self._paused.pop(node, None)
        self._tell(f"kill node {node}")

    def pause(self, node: int) -> None:
        """Pause a node by SIGSTOP: it is silent, its connections stay open."""
        self._running(node)
        self._count(node)
        self._live.pause(node)
        self._paused[node] = None
        self._tell(f"pause node {node}")

    def resume(self, node: int) -> None:
        """Resume a paused node by SIGCONT."""
        self._running(node)
        self._live.resume(node)
        self._paused.pop(node, None)
        self._tell(f"resume node {node}")

    def stop(self, node: int) -> None:
        """Stop a node by SIGTERM: a controlled shutdown, leaderships move first; returns when the process is gone."""
        if node in self._paused:
            self.resume(node)
        self._running(node)
        self._count(node)
        self._live.stop_node(node)
        self._tell(f"stop node {node}")

    def start(self, node: int) -> None:
        """Start a node that is down, on the same ports and data; returns when it does its work.

        While no majority of the nodes runs none can do its work: then it returns at once, and the start that completes
        the majority waits for all of them.
        """
        self._known(node)
        if node in self._paused:
            raise DevError(f"node {node} is paused, not down: resume({node}) lets it go on")
        self._live.start_node(node, wait=False)
        self._tell(f"start node {node}")
        self._starting[node] = None
        if len(self._awake()) > len(self.node_ids) // 2:
            self._wait_for_starting()

    # --- network, disk, requests ---

    def partition(self, a: int, b: int, *, one_way: bool = False, required: bool = True) -> RequestedFault:
        """Let nothing come from `a` to `b` any more, nor back unless `one_way`. Clients are not cut.

        Met: what was held back.
        """
        pairs = [(a, b)] if one_way else [(a, b), (b, a)]
        return self._cut(
            f"partition {a} {'->' if one_way else '<->'} {b}",
            pairs,
            lambda: self._live.partition(a, b, one_way=one_way),
            required,
        )

    def isolate(self, node: int, *, required: bool = True) -> RequestedFault:
        """Let nothing come from this node to any other, nor back. Clients still reach it."""
        others = [other for other in self.node_ids if other != node]
        pairs = [*((node, other) for other in others), *((other, node) for other in others)]
        return self._cut(f"isolate node {node}", pairs, lambda: self._live.isolate(node), required)

    def heal(self) -> None:
        """Undo cuts, pauses and slow disks, start every node that is down; returns when all do their work."""
        for node in self._live.running():
            self._live.resume(node)
        self._paused.clear()
        for node in self._live.running():
            self._count(node)
        self._live.heal()
        self._live.revive()
        self._wait_for_starting()
        self._tell("heal")

    def slow_disk(self, node: int, delay_ms: float, *, required: bool = True) -> RequestedFault:
        """Delay every group sync and cold read of a node by `delay_ms`; 0 ends it. The fault counts as met when a sync
        or a read was delayed."""
        self._listening(node)
        if not delay_ms:
            required = False
        return self._ask(
            f"slow_disk(node {node}, {delay_ms:g} ms)", {"slow_disk_ms": delay_ms}, [node], required=required
        )

    def fail_next(
        self, api: str, error: str, times: int = 1, *, node: int | None = None, required: bool = True
    ) -> RequestedFault:
        """Answer the next `times` requests of a Kafka API with that error, by this node (None: by each).

        Args:
            api, error: by Kafka's names: "Produce" or "PRODUCE", "NOT_LEADER_OR_FOLLOWER".
            required: the test fails if this never strikes.

        Raises:
            ValueError: there is no such API or error.
        """
        nodes = self._someone_awake() if node is None else [self._listening(node)]
        where = "each node" if node is None else f"node {node}"
        asked = {"fail_next": {"api": api, "error": error, "times": times}}
        return self._ask(f"fail_next({api}, {error}, {times}) at {where}", asked, nodes, required=required)

    # --- did it strike? ---

    def assert_fault_met(self, fault: RequestedFault | None = None, times: int = 1) -> None:
        """Check that this fault (None: each required one so far) was met at least so often; raises FaultNeverStruck
        otherwise."""
        assert_met(self._asked, fault, times)

    def check_faults(self) -> None:
        """Check at the end of a test that each required fault struck; the fixture calls this. Raises
        FaultNeverStruck."""
        check_met(self._asked)

    def recover(self) -> None:
        """Make the cluster whole again, with no fault that waits: for the next test on it."""
        self.heal()
        for node in self._awake():
            self._post(node, {"clear": True})
        self._asked.clear()
        self.story.clear()

    # --- what is where ---

    def create_topic(
        self, name: str, partitions: int = 1, replication: int | None = None, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, with a copy on every node unless told otherwise (at most three), and wait until all copies
        are in sync."""
        factor = replication or min(3, len(self.node_ids))
        with Admin(self._live.responsive) as admin:
            admin.create_topics([NewTopic(name, partitions, factor, as_texts(configs))])
        for partition in range(partitions):
            self.wait_isr(name, partition)

    def leader(self, topic: str, partition: int = 0, *, timeout_s: float = 20.0) -> int:
        """The node that leads a partition, as soon as one does and is not paused. Raises TimeoutError."""

        def look() -> int | None:
            leader = self._describe(topic, partition).leader
            return leader if leader in self._awake() else None

        return _eventually(look, f"{topic}-{partition} has no leader", timeout_s)

    def wait_isr(
        self, topic: str, partition: int = 0, members: Collection[int] | None = None, *, timeout_s: float = 20.0
    ) -> None:
        """Return once the in-sync replicas are exactly these (None: every replica). Raises TimeoutError."""

        wanted = None if members is None else {self._known(node) for node in members}
        seen = ""

        def same() -> bool | None:
            nonlocal seen
            now = self._describe(topic, partition)
            seen = f"{sorted(now.isr)} of {sorted(now.replicas)}"
            return set(now.isr) == (set(now.replicas) if wanted is None else wanted) or None

        whole = "whole" if wanted is None else sorted(wanted)
        try:
            _eventually(same, f"the ISR of {topic}-{partition} is not {whole}", timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it is {seen or 'not known'}") from None

    def state(self, node: int) -> str:
        """ "running", "paused" or "down"."""
        if node not in self._live.running():
            return "down"
        return "running" if node in self._awake() else "paused"

    def last_words(self, node: int) -> str:
        """The end of what a node has logged."""
        return self._ended[node] if node in self._ended else self._live.last_words(node)

    def end(self) -> None:
        """Kill every node; what they have logged last can still be asked for."""
        self._ended = {node: self._live.last_words(node) for node in self.node_ids}
        for node in self._live.running():
            self._live.kill(node)  # its data are thrown away: nothing is worth an orderly end
        self._live.stop()

    # --- inside ---

    def _tell(self, what: str) -> None:
        self.story.append(f"{time.monotonic() - self._began:8.3f} s  {what}")

    def _known(self, node: int) -> int:
        if node not in self._live.node_ids:
            raise ValueError(f"no node {node!r}: there are {', '.join(map(str, self.node_ids))}")
        return node

    def _running(self, node: int) -> int:
        self._known(node)
        if node not in self._live.running():
            raise DevError(f"node {node} is down: nothing can be done to it but start({node})")
        return node

    def _listening(self, node: int) -> int:
        """A node that can be asked for a fault."""
        self._running(node)
        if node in self._paused:
            raise DevError(f"node {node} is paused and hears nothing: ask before pause, or after resume({node})")
        return node

    def _wait_for_starting(self) -> None:
        running = self._live.running()
        starting, self._starting = [node for node in self._starting if node in running], {}
        self._live.wait_ready(starting)

    def _awake(self) -> list[int]:
        return [node for node in self._live.running() if node not in self._paused]

    def _someone_awake(self) -> list[int]:
        awake = self._awake()
        if not awake:
            states = ", ".join(f"node {node} is {self.state(node)}" for node in self.node_ids)
            raise NobodyAwake(f"{states}: start() or resume() one of them, or heal()")
        return awake

    def _describe(self, topic: str, partition: int) -> PartitionDescription:
        """Describe a partition as the node sees it that knows most of the metadata: one that is cut off tells of the
        past."""
        knows = max(self._someone_awake(), key=self._metadata_offset)
        with Admin(self._live.client(knows), default_api_timeout_ms=3000, request_timeout_ms=2000) as admin:
            [description] = admin.describe_topics([topic])
        if not 0 <= partition < len(description.partitions):
            raise ValueError(f"no partition {partition} of {topic}: it has 0 to {len(description.partitions) - 1}")
        return description.partitions[partition]

    def _metadata_offset(self, node: int) -> float:
        """The committed end of the metadata log, as far as this node has heard of it."""
        with urllib.request.urlopen(f"http://{self._live.http(node)}/metrics", timeout=ASK_TIMEOUT_S) as page:
            line = next(line for line in page.read().decode().splitlines() if line.startswith(METADATA_OFFSET))
        return float(line.split()[1])

    def _cut(self, what: str, pairs: list[tuple[int, int]], cut: Callable[[], None], required: bool) -> RequestedFault:
        for first, second in pairs:
            if self._known(first) == self._known(second):
                raise ValueError(f"{what}: two different nodes are needed")
        before = sum(self._live.held(*pair) for pair in pairs)
        cut()
        fault = RequestedFault(what, required, lambda: sum(self._live.held(*pair) for pair in pairs) - before)
        self._tell(what)
        self._asked.append(fault)
        return fault

    def _ask(self, what: str, asked: Mapping[str, Any], nodes: list[int], *, required: bool) -> RequestedFault:
        made: list[tuple[int, int, int]] = []
        for node in nodes:
            pid = self._live.pids()[node]
            made += [(node, pid, fault["id"]) for fault in self._post(node, asked)]
        fault = RequestedFault(what, required, lambda: self._met_by(made))
        self._tell(what)
        self._asked.append(fault)
        return fault

    def _met_by(self, made: list[tuple[int, int, int]]) -> int:
        for node in dict.fromkeys(node for node, _, _ in made):
            if node in self._awake():
                self._count(node)
        return sum(self._met.get((node, pid), [0] * number)[number - 1] for node, pid, number in made)

    def _count(self, node: int) -> None:
        """Remember how often the faults of a node were met; a paused one, or one that starts, says nothing new."""
        if node not in self._paused and node not in self._starting:
            answer = _http(f"http://{self._live.http(node)}/faults")
            self._met[node, self._live.pids()[node]] = [fault["met"] for fault in answer["faults"]]

    def _post(self, node: int, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = _http(f"http://{self._live.http(node)}/faults", asked)["faults"]
        return answer


def _eventually(look: Callable[[], T | None], what: str, timeout_s: float) -> T:
    """The first value that `look` gives, which may fail meanwhile. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while True:
        trouble = ""
        try:
            found = look()
        except (StrandlineError, OSError) as error:
            found, trouble = None, f" ({error})"
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} after {timeout_s:g} s{trouble}")
        _NOTHING.wait(POLL_S)


def _http(url: str, body: Mapping[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=ASK_TIMEOUT_S) as answer:
            return read_json(answer.read())
    except urllib.error.HTTPError as error:
        raise ValueError(read_json(error.read()).get("error", str(error))) from None


@contextmanager
def running(
    directory: Path, *, nodes: int = 3, settings: Mapping[str, str] | None = None
) -> Iterator[ClusterUnderTest]:
    """A started cluster; at the end its processes and its data are gone, whatever happened within.

    Args:
        directory: for the nodes' data.
        nodes: how many.
        settings: of every node, by Kafka's names.
    """
    cluster = ClusterUnderTest(_started(directory, nodes, {**QUICK, **as_texts(settings)}))
    try:
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(directory, ignore_errors=True)


def _started(directory: Path, nodes: int, settings: Mapping[str, str]) -> LiveCluster:
    """Start a cluster on free ports. If another process takes one in the meantime, other ports are chosen."""
    for tries_left in reversed(range(PORT_TRIES)):
        live = LiveCluster(directory / str(tries_left), nodes=nodes, settings=settings)
        try:
            live.start()
        except BaseException as error:
            live.stop()
            if tries_left and (isinstance(error, PortTaken) or "cannot listen" in str(error)):
                continue
            raise
        return live
    raise AssertionError("unreachable: the last try raises or returns")
