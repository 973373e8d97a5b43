"""`strandline_sim` as a user has it: pytest in a process of its own, the plugin found by its entry point."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PRODUCE = """
import asyncio, gc, os, random, sys, time, uuid

async def main(env):
    from strandline.client.aio import Producer
    await env.create_topic("t")
    async with Producer(env.bootstrap) as producer:
        await producer.send_and_wait("t", b"1")
        env.faults.kill(await env.wait_leader("t"))
        await producer.send_and_wait("t", b"2")
    return env.clock.now_ms, time.time(), random.random(), uuid.uuid4().hex, random.Random().random(), os.urandom(4)
"""


def passed(result: pytest.RunResult) -> int:
    return result.parseoutcomes().get("passed", 0)


@pytest.mark.parametrize(
    ("arguments", "ini", "names"),
    [
        ([], "", ["seed0", "seed1", "seed2", "seed3", "seed4"]),
        (["--strandline-seeds", "2"], "strandline_seeds = 3", ["seed0", "seed1"]),
        ([], "strandline_seeds = 3", ["seed0", "seed1", "seed2"]),
        (["--strandline-seed", "37"], "strandline_seeds = 3", ["seed37"]),
        (["--strandline-seed=37", "--strandline-seed=5"], "", ["seed37", "seed5"]),
    ],
)
def test_a_test_runs_once_per_seed(pytester: pytest.Pytester, arguments: list[str], ini: str, names: list[str]) -> None:
    """Default five; the ini value, over it --strandline-seeds, over it --strandline-seed."""
    pytester.makeini(f"[pytest]\n{ini}")
    pytester.makepyfile("def test_it(strandline_sim): pass")
    result = pytester.runpytest_subprocess("--collect-only", "-q", *arguments)
    assert re.findall(r"\[(\w+)\]", result.stdout.str()) == names


def test_the_marker_says_seeds_and_nodes_and_no_nonsense(pytester: pytest.Pytester) -> None:
    """`@pytest.mark.strandline(nodes=, settings=, seeds=)`; an unknown word is an error at collection."""
    pytester.makepyfile(
        """
import pytest
@pytest.mark.strandline(seeds=1, nodes=1)
def test_small(strandline_sim):
    async def main(env):
        return env.bootstrap
    assert strandline_sim.run(main) == "n1:9092"
"""
    )
    assert passed(pytester.runpytest_subprocess("--strict-markers")) == 1
    pytester.makepyfile("import pytest\n@pytest.mark.strandline(node=1)\ndef test_it(strandline_sim): pass")
    result = pytester.runpytest_subprocess()
    assert "takes nodes=, settings= and seeds=, by name, not ['node']" in result.stdout.str() + result.stderr.str()


def test_nothing_of_a_run_reaches_the_next_or_the_process(pytester: pytest.Pytester) -> None:
    """The same seed gives the same, whatever ran before it in the process; clocks, chance, collector and structlog are
    as they were behind it."""
    pytester.makepyfile(
        PRODUCE
        + """
import structlog, threading, pytest
from time import time as own_time
from os import urandom as own_bytes
from strandline.chaos.testing.simulation import Simulation

def traced(seed):
    simulation = Simulation(seed)
    return simulation.run(main), simulation.runs[0].world.trace, simulation.runs[0].timeline()

def test_it():
    from random import getstate
    structlog.configure(processors=[lambda *event: "kept"])
    def now():
        return (time.time, time.monotonic, time.sleep, os.urandom, random.Random.__init__,
                structlog.get_config()["processors"])
    before = now()
    random.seed(5)
    state = getstate()
    first = traced(1)
    assert getstate() == state
    other = traced(2)
    assert traced(1) == first
    assert other != first
    assert before == now()
    assert gc.isenabled()
    assert abs(first[0][1] - 1_760_000_000) < 100

def test_names_that_a_module_has_imported_for_itself():
    async def main(env):
        assert abs(own_time() - 1_760_000_000) < 100
        return own_bytes(8)
    assert Simulation(3).run(main) == Simulation(3).run(main) != Simulation(4).run(main)
    assert own_time() > 1_770_000_000

def test_a_run_that_fails_gives_back_as_well():
    before = time.time
    async def fails(env):
        assert time.time is not before
        raise KeyError("mine")
    with pytest.raises(KeyError, match="mine"):
        Simulation(1).run(fails)
    assert time.time is before and gc.isenabled()
"""
    )
    result = pytester.runpytest_subprocess()
    assert passed(result) == 3, result.stdout.str()


def test_aiokafka_runs_unmodified_and_alike_in_every_process(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two partitions, two topics, a storm of faults: the same records at the same instants, whatever the hash seed."""
    pytester.makepyfile(
        """
import asyncio, time, zlib
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

async def main(env):
    await env.create_topic("a", 2)
    await env.create_topic("b", 2)
    storm = asyncio.create_task(env.faults.storm(3))
    async with AIOKafkaProducer(bootstrap_servers=env.bootstrap, enable_idempotence=True) as producer:
        for number in range(40):
            await producer.send_and_wait("ab"[number % 2], b"%d" % number)
            await asyncio.sleep(0.05)
    await storm
    async with AIOKafkaConsumer(bootstrap_servers=env.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, number) for topic in "ab" for number in range(2)])
        records = [await consumer.getone() for _ in range(40)]
        return [(r.topic, r.partition, r.offset, r.timestamp, r.value) for r in records], time.time()

def test_it(strandline_sim):
    records, now = strandline_sim.run(main)
    assert sorted(int(value) for *_, value in records) == list(range(40))
    print("TOLD", zlib.crc32(repr(records).encode()), now, strandline_sim.runs[0].world.trace)
"""
    )
    told = []
    for hash_seed in ("0", "77"):
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        result = pytester.runpytest_subprocess("-s", "--strandline-seeds", "2")
        assert passed(result) == 2, result.stdout.str()
        told.append(re.findall(r"TOLD .*", result.stdout.str()))
    assert len(told[0]) == 2
    assert told[0] == told[1]


def test_a_failure_prints_its_seed_replay_and_timeline(pytester: pytest.Pytester) -> None:
    """The command replays it: the same failure, the same timeline."""
    path = pytester.makepyfile(
        PRODUCE
        + """
def test_it(strandline_sim):
    async def checked(env):
        await main(env)
        env.note("about to look")
        assert env.rng.random() < 0.7, "too much"
    strandline_sim.run(checked)
"""
    )
    result = pytester.runpytest_subprocess("--strandline-seeds", "2")  # env.rng draws 0.29 and 0.76
    assert result.parseoutcomes() == {"failed": 1, "passed": 1}
    text = result.stdout.str()
    replay = re.search(r"replay: pytest '?([^' ]+)'? --strandline-seed (\d+)", text)
    assert replay is not None
    assert replay[1] == f"{path.name}::test_it[seed{replay[2]}]"
    again = pytester.runpytest_subprocess(replay[1], "--strandline-seed", replay[2])
    assert again.parseoutcomes() == {"failed": 1}
    timeline = re.findall(r"^ +\d+  .*", again.stdout.str(), re.MULTILINE)
    assert any("kill node" in line for line in timeline)
    assert any("about to look" in line for line in timeline)
    assert "\n".join(timeline) in text


def test_what_a_run_can_say_of_itself(pytester: pytest.Pytester) -> None:
    """A fault that nothing met, a main that hangs, an error that nobody looked at, a loop inside a loop: sentences."""
    pytester.makepyfile(
        """
import asyncio, pytest
pytestmark = pytest.mark.strandline(seeds=1)

def test_unmet(strandline_sim):
    async def main(env):
        env.faults.fail_next("Fetch", "NOT_LEADER_OR_FOLLOWER")
    strandline_sim.run(main)

def test_excused(strandline_sim):
    async def main(env):
        env.faults.fail_next("Fetch", "NOT_LEADER_OR_FOLLOWER", required=False)
    strandline_sim.run(main)

def test_met(strandline_sim):
    async def main(env):
        fault = env.faults.fail_next("CreateTopics", "NOT_CONTROLLER", 1)
        await env.create_topic("t")
        assert fault.met >= 1
    strandline_sim.run(main)

def test_hangs(strandline_sim):
    async def main(env):
        await asyncio.get_running_loop().create_future()
    strandline_sim.run(main, timeout_s=20)

def test_unheard(strandline_sim):
    async def main(env):
        async def background():
            raise KeyError("mine")
        asyncio.create_task(background())
        await asyncio.sleep(1)
    strandline_sim.run(main)

def test_inside_a_loop(strandline_sim):
    async def outside():
        strandline_sim.run(None)
    asyncio.run(outside())
"""
    )
    result = pytester.runpytest_subprocess()
    assert result.parseoutcomes() == {"failed": 4, "passed": 2}, result.stdout.str()
    text = result.stdout.str()
    for words in (
        "asked for, but never struck: fail_next(Fetch, NOT_LEADER_OR_FOLLOWER, 1) at each node",
        "main has not ended within 20 s of virtual time; it stands at",
        "exception was never retrieved: KeyError('mine')",
        " s on app#1",
        "call it from a plain (not async) test",
    ):
        assert words in text, words
    assert "base_events.py:640" not in text  # the traceback is the test's


def test_processes_of_the_user_die_and_are_waited_for(pytester: pytest.Pytester) -> None:
    """`env.spawn`: kill runs no `finally`; a process that ends is waited for, its error is raised there."""
    pytester.makepyfile(
        """
import asyncio, time, pytest
pytestmark = pytest.mark.strandline(seeds=2)

def test_it(strandline_sim):
    seen = []
    async def main(env):
        async def worker():
            try:
                while True:
                    seen.append(env.clock.now_ms)
                    await asyncio.sleep(0.1)
            finally:
                seen.append("finally")
        process = env.spawn(worker, "worker")
        await asyncio.sleep(1.05)
        process.kill()
        count = len(seen)
        assert 9 <= count <= 12 and not process.alive
        assert await process.wait() is None
        await asyncio.sleep(1)
        assert len(seen) == count

        async def fails():
            raise KeyError("mine")
        with pytest.raises(KeyError):
            await env.spawn(fails, "worker").wait()

        async def sleepy():
            began = time.monotonic()
            while time.monotonic() < began + 5:
                time.sleep(1)
            return True
        began = env.clock.now_ms
        assert await env.spawn(sleepy).wait()
        await asyncio.sleep(6)
    strandline_sim.run(main)
    assert "finally" not in seen
"""
    )
    result = pytester.runpytest_subprocess()
    assert passed(result) == 2, result.stdout.str()


def test_loading_the_plugin_imports_next_to_nothing(tmp_path: Path) -> None:
    """pytest loads it for everybody who has the package: itself and its three packages, nothing else."""
    import subprocess
    import sys

    script = (
        "import sys, pytest\nbefore = set(sys.modules)\nimport strandline.chaos.testing.plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == [
        "strandline",
        "strandline.chaos",
        "strandline.chaos.testing",
        "strandline.chaos.testing.plugin",
    ]
