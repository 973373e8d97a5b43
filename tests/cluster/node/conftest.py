"""Nodes run in the process of the tests, beside commands whose output is compared."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logs_go_elsewhere() -> Iterator[None]:
    """What a node logs never stands in the output of a command: not on a busy machine, where nodes say that requests
    are slow, or that they stood still."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.stdout))
    yield
    structlog.reset_defaults()
