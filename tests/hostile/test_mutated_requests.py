"""Every request of every version, mutated: the node answers or closes, and nobody else notices."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter

import pytest

from strandline.cluster.node.dev import DevCluster
from tests.acceptance.helpers import eventually
from tests.acceptance.raw import receive_frame
from tests.cluster.node.test_metrics import scrape, value
from tests.hostile.messages import EVERY_VERSION, mutated, request
from tests.hostile.node import METADATA, attack, endpoint, frame

ROUNDS = 6
"""Requests of each API and version: about a thousand in all."""

PATIENCE_S = 0.05
"""A request that waits (a fetch for data, a member for others) is left alone after this and PATIENCE_ANSWERS times what
an answer takes on this machine now, its connection closed."""

PATIENCE_ANSWERS = 10


@pytest.mark.parametrize("seed", [5])
def test_every_request_of_every_version_mutated(victim: DevCluster, seed: int) -> None:
    """Each on a connection of its own: it is answered, or closed as one that was refused, or waits as it asks to."""
    rng = random.Random(seed)
    ends: Counter[str] = Counter()
    refused_before = _refused(victim)
    with attack(victim) as watched:
        for key, version in EVERY_VERSION:
            patience_s = PATIENCE_S + PATIENCE_ANSWERS * _answer_s(endpoint(victim))
            for _ in range(ROUNDS):
                sent = request(key, version, rng)
                raw = frame(key, version, mutated(sent, rng), flexible=sent.flexible)
                ends[_send(endpoint(victim), raw, patience_s)] += 1
        # The log has a line of each kind once in ten seconds (rule A23): the counter tells how many there were.
        eventually(lambda: _refused(victim) - refused_before > ends["closed"] * 0.9)
    assert min(ends["answered"], ends["closed"]) > ends.total() // 5, ends
    assert ends["waits"] < ends.total() // 5, ends
    assert _refused(victim) - refused_before <= ends["closed"] + ends["waits"]
    assert "closed a client's connection" in watched.log


def _refused(cluster: DevCluster) -> float:
    """Connections that the node has closed for what they sent, on each of its listeners."""
    return value(scrape(cluster, 1), "strandline_refused_connections_total")


def _answer_s(address: tuple[str, int]) -> float:
    """How long a connection and the answer to the smallest question take."""
    began = time.perf_counter()
    with socket.create_connection(address, 20) as connection:
        connection.sendall(METADATA)
        receive_frame(connection)
    return time.perf_counter() - began


def _send(address: tuple[str, int], raw: bytes, patience_s: float) -> str:
    """How it ended."""
    with socket.create_connection(address, 20) as connection:
        connection.sendall(raw)
        connection.settimeout(patience_s)
        try:
            return "answered" if connection.recv(1 << 16) else "closed"
        except ConnectionResetError:
            return "closed"
        except TimeoutError:
            return "waits"
