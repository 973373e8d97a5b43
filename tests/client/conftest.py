"""Where the client's tests meet real brokers: Strandline's own, and Apache Kafka where one is named."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from strandline.client import Admin, NewTopic

_numbers = itertools.count(1)


@pytest.fixture(params=["strandline", "kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of a cluster of three brokers. The same tests hold against both."""
    if request.param == "strandline":
        return str(request.getfixturevalue("cluster").bootstrap)
    named = os.environ.get("STRANDLINE_KAFKA_BOOTSTRAP")
    if not named:
        pytest.skip("no Apache Kafka here: name one in STRANDLINE_KAFKA_BOOTSTRAP to hold the client against it")
    return named


def eventually(holds: Callable[[], object], within_s: float = 30.0) -> None:
    """Wait until `holds()` is true: what one broker has acknowledged, another hears of a moment later."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"{holds} did not come true within {within_s} s"
        threading.Event().wait(0.02)


MakeTopic = Callable[..., str]


@pytest.fixture
def make_topic(bootstrap: str) -> Iterator[MakeTopic]:
    """Makes topics with names of their own, and deletes them afterwards."""
    made: list[str] = []
    with Admin(bootstrap) as admin:

        def make(partitions: int = 1, **configs: str) -> str:
            name = f"client-{os.getpid()}-{next(_numbers)}"
            named = {key.replace("_", "."): value for key, value in configs.items()}
            admin.create_topics([NewTopic(name, partitions, 3, named)])
            made.append(name)
            return name

        yield make
        if made:
            admin.delete_topics(made)
