"""The pytest plugin: options, the marker, four fixtures. Nothing of Strandline is imported until a fixture is used."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from strandline.chaos.testing.live import ClusterUnderTest
    from strandline.chaos.testing.simulation import Simulation

SEEDS = 5
SIM = "strandline_sim"
CLUSTER = "strandline_cluster"
SESSION_CLUSTER = "strandline_session_cluster"

SIMULATION: pytest.StashKey[Simulation] = pytest.StashKey()
CLUSTERS: pytest.StashKey[list[ClusterUnderTest]] = pytest.StashKey()
SHARED: pytest.StashKey[ClusterUnderTest] = pytest.StashKey()
"""The session's cluster, while there is one."""

MARKER = (
    "strandline(nodes=3, settings={}, seeds=5): the cluster of this test: how many nodes, their settings by Kafka's "
    "names; over how many seeds the test runs if it uses strandline_sim"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--strandline-seeds`, `--strandline-seed`, and the ini value `strandline_seeds`."""
    group = parser.getgroup("strandline", "Strandline: clusters with faults")
    group.addoption(
        "--strandline-seeds",
        type=int,
        default=None,
        metavar="N",
        help=f"run each test that uses strandline_sim over the seeds 0 to N-1 (default: {SEEDS}, or the ini value "
        "strandline_seeds, or the marker's)",
    )
    group.addoption(
        "--strandline-seed",
        type=int,
        action="append",
        default=None,
        metavar="SEED",
        help="run each test that uses strandline_sim over this seed alone: what a failure asks for; may be repeated",
    )
    parser.addini("strandline_seeds", f"over how many seeds tests with strandline_sim run (default: {SEEDS})")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker. Raises UsageError for an invalid number of seeds."""
    config.addinivalue_line("markers", MARKER)
    _wanted_seeds(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per seed."""
    _check_marker(metafunc)
    if SIM in metafunc.fixturenames:
        seeds = _seeds(metafunc.config, metafunc.definition)
        metafunc.parametrize(SIM, seeds, indirect=True, ids=[f"seed{seed}" for seed in seeds])


def _check_marker(metafunc: pytest.Metafunc) -> None:
    """Raises CollectError for a marker that is wrong, or changes nothing: its reader would think of another cluster."""
    names = metafunc.fixturenames
    nodes, settings = (_marked(metafunc.definition, name) for name in ("nodes", "settings"))
    wrong = ""
    if nodes is not None and not (isinstance(nodes, int) and nodes >= 1):
        wrong = f"nodes={nodes!r}: a number, at least one"
    elif settings is not None and not isinstance(settings, Mapping):
        wrong = f"settings={settings!r}: a dictionary, by Kafka's names"
    elif (nodes or settings) and SESSION_CLUSTER in names and CLUSTER not in names and SIM not in names:
        given = "nodes=" if nodes else "settings="
        wrong = (
            f"{given} cannot change {SESSION_CLUSTER}, which all tests share: use {CLUSTER}, or override the fixture "
            "strandline_options"
        )
    if wrong:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: the marker's {wrong}")


def _seeds(config: pytest.Config, item: pytest.Item) -> list[int]:
    alone: list[int] | None = config.getoption("--strandline-seed")
    if alone:
        return alone
    number = _marked(item, "seeds") if config.getoption("--strandline-seeds") is None else None
    if number is not None and not (isinstance(number, int) and number >= 1):
        raise pytest.Collector.CollectError(f"{item.nodeid}: the marker's seeds={number!r}: a number, at least one")
    return list(range(number or _wanted_seeds(config)))


def _wanted_seeds(config: pytest.Config) -> int:
    """Number of seeds from the option, or the ini value. Raises UsageError."""
    number: int | None = config.getoption("--strandline-seeds")
    if number is not None and number < 1:
        raise pytest.UsageError(f"--strandline-seeds {number}: at least one")
    text = str(config.getini("strandline_seeds") or SEEDS)
    if not text.isdecimal() or int(text) < 1:
        raise pytest.UsageError(f"the ini value strandline_seeds = {text}: a number, at least one")
    return int(text) if number is None else number


def _marked(item: pytest.Item, name: str) -> Any:
    """Value of the nearest marker; None if there is no marker."""
    for mark in item.iter_markers("strandline"):
        unknown = sorted(set(mark.kwargs) - {"nodes", "settings", "seeds"})
        if mark.args or unknown:
            raise pytest.Collector.CollectError(
                f"@pytest.mark.strandline takes nodes=, settings= and seeds=, by name, not {unknown}"
            )
        if name in mark.kwargs:
            return mark.kwargs[name]
    return None


# --- fixtures ---


@pytest.fixture(scope="session")
def strandline_options() -> Mapping[str, Any]:
    """`nodes` and `settings` of every cluster of these tests; override it in a conftest.py. The marker wins over it."""
    return {}


@pytest.fixture
def strandline_sim(request: pytest.FixtureRequest, strandline_options: Mapping[str, Any]) -> Simulation:
    """A cluster in virtual time beside your own asyncio code: `strandline_sim.run(main)`, once per seed."""
    from strandline.chaos.testing.simulation import Simulation

    simulation = Simulation(getattr(request, "param", 0), **_cluster_options(request.node, strandline_options))
    request.node.stash[SIMULATION] = simulation
    return simulation


@pytest.fixture
def strandline_cluster(
    request: pytest.FixtureRequest, strandline_options: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterUnderTest]:
    """A cluster of real processes on free ports for this test, and faults for it."""
    from strandline.chaos.testing.live import running

    options = _cluster_options(request.node, strandline_options)
    with running(tmp_path_factory.mktemp("strandline"), **options) as cluster:
        request.node.stash.setdefault(CLUSTERS, []).append(cluster)
        yield cluster


@pytest.fixture(scope="session")
def strandline_session_cluster(
    request: pytest.FixtureRequest, strandline_options: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterUnderTest]:
    """Cluster like `strandline_cluster`, one for all tests; after each test it is healed. Topics stay."""
    from strandline.chaos.testing.live import running

    with running(tmp_path_factory.mktemp("strandline"), **strandline_options) as cluster:
        request.config.stash[SHARED] = cluster
        yield cluster
        del request.config.stash[SHARED]


def _cluster_options(item: pytest.Item, base: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(base)
    nodes, settings = _marked(item, "nodes"), _marked(item, "settings")
    if nodes is not None:
        options["nodes"] = nodes
    if settings is not None:
        options["settings"] = {**options.get("settings", {}), **settings}
    return options


# --- around each test ---


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that asked for a fault which never struck fails, unless it has failed already; so does one that ran
    nothing in the simulation it asked for."""
    result = yield
    if SIMULATION in item.stash and not item.stash[SIMULATION].runs:
        pytest.fail(f"{SIM} was asked for and nothing was run in it: call {SIM}.run(main)", pytrace=False)
    for cluster in _clusters(item):
        cluster.check_faults()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """The cluster that other tests will use is whole again, before the fixtures that use it end."""
    session = _shared(item)
    failed: Exception | None = None
    if session is not None:
        try:
            session.recover()
        except Exception as error:
            failed = error  # raised once the fixtures have ended
    result = yield
    if failed is not None:
        raise failed
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failed test's report: the seed, its replay and its timeline; the nodes' last log lines."""
    report = yield
    if not report.failed:
        return report
    if SIMULATION in item.stash:
        from strandline.chaos.testing.plugin import simulation_sections

        report.sections.extend(simulation_sections(_from_here(item), item.stash[SIMULATION]))
    for cluster in _clusters(item):
        from strandline.chaos.testing.plugin import cluster_sections

        report.sections.extend(cluster_sections(cluster))
    return report


def _clusters(item: pytest.Item) -> list[ClusterUnderTest]:
    """Clusters of this test."""
    session = _shared(item)
    return [*item.stash.get(CLUSTERS, []), *([] if session is None else [session])]


def _shared(item: pytest.Item) -> ClusterUnderTest | None:
    """The session's cluster, if this test names it or something was done to it: a fixture may have asked for it."""
    session = item.config.stash.get(SHARED, None)
    named = SESSION_CLUSTER in getattr(item, "fixturenames", ())
    return session if session is not None and (named or session.story) else None


def _from_here(item: pytest.Item) -> str:
    """The test's id as it can be typed: pytest's own begins at its root directory, wherever it was called."""
    path, _, rest = item.nodeid.partition("::")
    return f"{os.path.relpath(item.config.rootpath / path, item.config.invocation_params.dir)}::{rest}"


# Additions to the report of a test that failed


Section = tuple[str, str]

LINES = 15
"""Lines of each node's log."""


def simulation_sections(nodeid: str, simulation: Simulation) -> list[Section]:
    """The seed, the command that replays it, and the timeline of each run."""
    lines = [f"replay: {replay_command(nodeid, simulation.seed)}"]
    if sys.flags.hash_randomization and "PYTHONHASHSEED" not in os.environ:
        lines.append(
            "(Sets of your own code that hold texts are iterated in another order in each process. Should the replay "
            "not fail, search with PYTHONHASHSEED=0 in the environment, and replay with it.)"
        )
    for run in simulation.runs:
        lines += ["", "virtual ms"]
        lines += [f"{at_ms:>10}  {what}" for at_ms, what in run.timeline()]
    return [(f"strandline: seed {simulation.seed}", "\n".join(lines))]


def replay_command(nodeid: str, seed: int) -> str:
    """Command that shows one seed again."""
    return f"pytest {shlex.quote(nodeid)} --strandline-seed {seed}"


def cluster_sections(cluster: ClusterUnderTest) -> list[Section]:
    """The faults of the cluster, and the end of each node's log."""
    sections = [("strandline: faults", "\n".join(cluster.story) or "none was asked for")]
    for node_id in cluster.node_ids:
        words = cluster.last_words(node_id).splitlines()
        sections.append((f"strandline: node {node_id}, {cluster.state(node_id)}", "\n".join(words[-LINES:])))
    return sections
