"""What a test can get wrong with the fixtures, and the sentence that it is told."""

from __future__ import annotations

import re

import pytest

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("marker", "fixture", "says"),
    [
        ("node=1", "strandline_cluster", "takes nodes=, settings= and seeds=, by name, not ['node']"),
        ("seeds=0", "strandline_sim", "::test_it: the marker's seeds=0: a number, at least one"),
        ("nodes='3'", "strandline_cluster", "::test_it: the marker's nodes='3': a number, at least one"),
        ("settings=['a']", "strandline_sim", "::test_it: the marker's settings=['a']: a dictionary"),
        (
            "nodes=1",
            "strandline_session_cluster",
            "nodes= cannot change strandline_session_cluster, which all tests share",
        ),
    ],
)
def test_a_marker_that_is_wrong_or_changes_nothing(
    pytester: pytest.Pytester, marker: str, fixture: str, says: str
) -> None:
    """One sentence at collection, without a traceback of ours; no cluster is started."""
    pytester.makepyfile(f"import pytest\n@pytest.mark.strandline({marker})\ndef test_it({fixture}): pass")
    result = pytester.runpytest_subprocess()
    assert result.parseoutcomes() == {"errors": 1}
    assert says in result.stdout.str()
    assert "plugin.py" not in result.stdout.str()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--strandline-seeds", "0"], "ERROR: --strandline-seeds 0: at least one"),
        (["-o", "strandline_seeds=some"], "ERROR: the ini value strandline_seeds = some: a number, at least one"),
    ],
)
def test_a_number_of_seeds_that_is_none(pytester: pytest.Pytester, arguments: list[str], says: str) -> None:
    """Told once, before anything is collected."""
    pytester.makepyfile("def test_it(strandline_sim): pass")
    result = pytester.runpytest_subprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says in result.stderr.str()


SIMULATED = """
import pytest
pytestmark = pytest.mark.strandline(seeds=1, settings={"min.insync.replicas": 1, "auto.leader.rebalance.enable": False})

def test_nothing_is_run(strandline_sim):
    async def main(env): ...

def test_skipped(strandline_sim):
    pytest.skip("nothing to run")

def test_blocking_client(strandline_sim):
    from strandline.client import Producer
    async def main(env):
        await env.create_topic("t")
        Producer(env.bootstrap).send("t", b"x")
    strandline_sim.run(main)

def test_main_is_no_coroutine_function(strandline_sim):
    strandline_sim.run(lambda env: None)

def test_main_is_a_coroutine(strandline_sim):
    async def main(): ...
    coroutine = main()
    try:
        strandline_sim.run(coroutine)
    finally:
        coroutine.close()

def test_faults(strandline_sim):
    async def main(env):
        with pytest.raises(ValueError, match="no node 99: there are 1 to 3"):
            env.faults.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", node=99)
        env.faults.kill(1)
        env.faults.pause(1)
        with pytest.raises(ValueError, match="at node 1: it is down; start it first"):
            env.faults.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", node=1)
        env.faults.start(1)
        async def worker(): ...
        coroutine = worker()
        with pytest.raises(TypeError, match="spawn takes an async function and calls it"):
            env.spawn(coroutine)
        coroutine.close()
        await env.create_topic("t")
        env.faults.fail_next("CreateTopics", "NOT_CONTROLLER")
        with pytest.raises(AssertionError, match="was met 0 times, not 1"):
            env.faults.assert_fault_met()
        await env.create_topic("u")
        env.faults.assert_fault_met()
    strandline_sim.run(main)
    told = [what for _, what in strandline_sim.runs[0].timeline()]
    assert "pause node 1, which is down already" in told
"""


def test_mistakes_in_a_simulation_are_told_at_once(pytester: pytest.Pytester) -> None:
    """A simulation that is never run, a client with a thread of its own, faults for nodes that are not there."""
    pytester.makepyfile(SIMULATED)
    result = pytester.runpytest_subprocess()
    assert result.parseoutcomes() == {"failed": 4, "passed": 1, "skipped": 1}, result.stdout.str()
    text = result.stdout.str()
    assert "simulation.py" not in text  # the tracebacks are the test's
    for words in (
        "strandline_sim was asked for and nothing was run in it: call strandline_sim.run(main)",
        "the blocking strandline.client has a thread of its own, which virtual time does not reach",
        "main is not an async function: it returned None",
        "run takes an async function, run(main), and calls it with env",
    ):
        assert words in text, words


def test_the_replay_command_can_be_typed_where_pytest_was_called(pytester: pytest.Pytester) -> None:
    """pytest's own ids begin at its root directory; called below it, the command begins there."""
    pytester.makeini("[pytest]")
    below = pytester.mkdir("below")
    (below / "test_it.py").write_text(
        "import pytest\n@pytest.mark.strandline(seeds=1)\ndef test_it(strandline_sim):\n"
        "    async def main(env):\n        raise KeyError('mine')\n    strandline_sim.run(main)\n"
    )
    pytester.chdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(below)
        result = pytester.runpytest_subprocess()
        replay = re.search(r"replay: pytest '?([^' ]+)'? --strandline-seed 0", result.stdout.str())
        assert replay is not None
        assert replay[1] == "test_it.py::test_it[seed0]"
        assert pytester.runpytest_subprocess(replay[1], "--strandline-seed", "0").parseoutcomes() == {"failed": 1}


LIVE = """
import pytest

@pytest.fixture
def mine(request):
    return request.getfixturevalue("strandline_session_cluster")

def test_a_fixture_that_hides_the_cluster(mine):
    mine.create_topic("t")
    mine.kill(1)

def test_was_healed_all_the_same(strandline_session_cluster):
    assert strandline_session_cluster.state(1) == "running"

def test_mistakes(strandline_session_cluster):
    cluster = strandline_session_cluster
    def told(words, call, *arguments, **named):
        with pytest.raises((ValueError, TimeoutError, RuntimeError), match=words):
            call(*arguments, **named)
    told("no node 99: there are 1, 2, 3", cluster.start, 99)
    told("no node 99", cluster.partition, 1, 99)
    told("no node 99", cluster.wait_isr, "t", members=[99])
    told("two different nodes are needed", cluster.partition, 1, 1)
    told("no partition 7 of t: it has 0 to 0", cluster.leader, "t", 7)
    told("times '2': a number from 1", cluster.fail_next, "Produce", "NOT_LEADER_OR_FOLLOWER", "2")
    whole = r"not \\[1, 2\\] after 0 s; it is \\[1, 2, 3\\] of \\[1, 2, 3\\]"
    told(whole, cluster.wait_isr, "t", members=[1, 2], timeout_s=0)
    cluster.pause(1)
    with pytest.raises(Exception, match="node 1 is paused, not down: resume"):
        cluster.start(1)
    with pytest.raises(Exception, match="node 1 is paused and hears nothing"):
        cluster.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", node=1)
    cluster.kill(2)
    cluster.kill(3)
    told("node 1 is paused, node 2 is down, node 3 is down: start", cluster.leader, "t")
    cluster.kill(1)
    cluster.start(1)  # it cannot do its work alone, and is not waited for
    cluster.start(2)  # now both are
    configs = {"min.insync.replicas": 2, "unclean.leader.election.enable": False}
    cluster.create_topic("u", replication=2, configs=configs)
    assert cluster.leader("u") in (1, 2)
"""


def test_mistakes_with_a_cluster_are_told_at_once(pytester: pytest.Pytester) -> None:
    """Nodes and partitions that are not there, nobody left to ask; a cluster that only a fixture knows of is healed;
    nodes that need each other are started one by one."""
    pytester.makepyfile(LIVE)
    result = pytester.runpytest_subprocess()
    assert result.parseoutcomes() == {"passed": 3}, result.stdout.str()
