"""What tests of several folders share: a cluster of real processes; `--mutant NAME` takes a rule out of the code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.chaos.mutants import MUTANTS, without
from strandline.cluster.dev import DevCluster


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutant", choices=tuple(MUTANTS), metavar="NAME", help="take this rule out: tests should fail")


def pytest_configure(config: pytest.Config) -> None:
    """The rule is out from before the first test is collected until the session ends."""
    applied = without(config.getoption("--mutant"))
    applied.__enter__()
    config.add_cleanup(lambda: applied.__exit__(None, None, None))


@pytest.fixture(scope="session")
def cluster() -> Iterator[DevCluster]:
    """Three combined nodes for tests that break nothing; each test uses topics of its own."""
    with DevCluster() as running:
        yield running
