"""Runs the tests that are to kill each mutant: each in a forked child, so that none meets another."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from lab.mutants import MUTANTS, without
from lab.mutants.mutant import Mutant

SEED = "seed:"
ROOT = Path(__file__).parents[2]

_FORK = multiprocessing.get_context("fork")
_PRELOADED = ("strandline.cluster.node.dev", "strandline.chaos.sim.world", "strandline.controller.controller")
"""Modules imported once, before the children fork."""

_TEST_S = 60
"""A test that hangs without a rule has noticed it; there is no need to wait for its usual limit."""


@dataclass
class Verdict:
    """Result of one mutant."""

    name: str
    rule: str
    killed_by: list[str] = field(default_factory=list)
    """The killers that failed, as they should."""
    survived: list[str] = field(default_factory=list)
    """The killers that held, or that could not be run: each is a hole in the tests."""
    seconds: float = 0.0
    details: str = ""
    """Output of the tests, where something survived."""

    @property
    def killed(self) -> bool:
        """True if every killer that the mutant names has noticed it."""
        return bool(self.killed_by) and not self.survived


def fail_anyway(mutants: Iterable[Mutant], *, timeout_s: float = 1800.0) -> dict[str, str]:
    """Killers that fail with every rule in place, and what they say: their failing proves nothing."""
    tests = list(dict.fromkeys(killer for mutant in mutants for killer in mutant.killed_by if not _is_seed(killer)))
    if not tests:
        return {}
    _preload()
    failed: dict[str, bool] = dict.fromkeys(tests, True)
    said = "the tests took too long with every rule in place"
    reader, writer = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_child, args=(writer, Mutant("", "", (), tuple(tests))))
    child.start()
    writer.close()
    try:
        if reader.poll(timeout_s):
            failed, said = reader.recv()
    except EOFError:
        said = "the child ended without a result"
    finally:
        child.kill()
        child.join()
        reader.close()
    return {test: said for test, has_failed in failed.items() if has_failed}


def hold_against_killers(
    names: Sequence[str], *, jobs: int = 1, timeout_s: float = 300.0
) -> Generator[Verdict, None, None]:
    """Run the killers of every mutant named, `jobs` mutants at a time; verdicts come as they are reached.

    A child that takes longer than `timeout_s` is killed; what it had not told by then counts as survived.
    """
    _preload()
    waiting = iter(names)
    running: dict[Any, tuple[Verdict, BaseProcess, float, float]] = {}
    try:
        while True:
            while len(running) < jobs and (name := next(waiting, None)) is not None:
                reader, writer = _FORK.Pipe(duplex=False)
                process = _FORK.Process(target=_child, args=(writer, MUTANTS[name]))
                process.start()
                writer.close()
                now = time.monotonic()
                running[reader] = (Verdict(name, MUTANTS[name].rule), process, now, now + timeout_s)
            if not running:
                return
            ready = wait(list(running), timeout=1.0)
            late = [reader for reader, (_, _, _, end) in running.items() if time.monotonic() > end]
            for reader in [*ready, *(one for one in late if one not in ready)]:
                verdict, child, began, _ = running.pop(reader)
                _collect(reader, child, verdict)
                verdict.seconds = round(time.monotonic() - began, 2)
                yield verdict
    finally:
        for _, child, _, _ in running.values():
            child.kill()
            child.join()


def _preload() -> None:
    for module in _PRELOADED:
        importlib.import_module(module)


def _is_seed(killer: str) -> bool:
    return killer.startswith(SEED)


def _collect(reader: Connection, child: BaseProcess, verdict: Verdict) -> None:
    failed: dict[str, bool] = {}
    try:
        if reader.poll():
            failed, verdict.details = reader.recv()
        else:
            verdict.details = "it took too long"
    except EOFError:
        verdict.details = "the child ended without a result"
    child.kill()
    child.join()
    reader.close()
    for killer in MUTANTS[verdict.name].killed_by:
        (verdict.killed_by if failed.get(killer) else verdict.survived).append(killer)
    if verdict.killed:
        verdict.details = ""


# --- in the child ----------------------------------------------------------------------------------------------------


def _child(connection: Connection, mutant: Mutant) -> None:
    failed: dict[str, bool] = {}
    tests = [killer for killer in mutant.killed_by if not _is_seed(killer)]
    said = ""
    if tests:
        os.chdir(ROOT)
        failed, said = _run_tests(mutant.name, tests)
    for killer in mutant.killed_by:
        if _is_seed(killer):
            failed[killer] = _seed_fails(killer, mutant.name)
    connection.send((failed, said))
    connection.close()
    os._exit(0)


def _run_tests(name: str, tests: Sequence[str]) -> tuple[dict[str, bool], str]:
    """Tests that fail in a pytest of this process, with the mutant applied (if any); and what it printed."""
    import pytest

    failed = dict.fromkeys(tests, False)

    class Observer:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                for test in tests:
                    # A whole file, a function, all cases of it or one.
                    if report.nodeid == test or report.nodeid.startswith((f"{test}[", f"{test}::")):
                        failed[test] = True

    arguments = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--tb=short",
        f"--timeout={_TEST_S}",
        *(["--mutant", name] if name else []),
        *tests,
    ]
    with _quiet() as said:
        pytest.main(arguments, plugins=[Observer()])
        sys.stdout.flush()
        said.seek(0)
        text = said.read()
    return failed, text[-4000:]


@contextlib.contextmanager
def _quiet() -> Generator[Any, None, None]:
    """Send everything that this process and its children print into a file."""
    import tempfile

    with tempfile.TemporaryFile("w+", errors="replace") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        yield sink


def _seed_fails(killer: str, name: str) -> bool:
    from strandline.chaos.cli import make_run
    from strandline.chaos.runner import run_seeds

    _, scenario, seed = killer.split(":")
    make = partial(make_run, scenario, {}, None)
    with without(name):
        return any(not outcome.ok for outcome in run_seeds([int(seed)], make))
