"""Every request of every version, mutated: the node answers or closes, and nobody else notices."""

from __future__ import annotations

import random
import socket
from collections import Counter

import pytest

from strandline.cluster.dev import DevCluster
from tests.hostile.node import attack, endpoint, frame
from tests.hostile.requests import EVERY_VERSION, mutated, request

ROUNDS = 6
"""Requests of each API and version: about a thousand in all."""

PATIENCE_S = 0.05
"""A request that waits (a fetch for data, a member for others) is left alone after this, its connection closed."""


@pytest.mark.parametrize("seed", [5])
def test_every_request_of_every_version_mutated(victim: DevCluster, seed: int) -> None:
    """Each on a connection of its own: it is answered, or closed with one line in the log, or waits as it asks to."""
    rng = random.Random(seed)
    ends: Counter[str] = Counter()
    with attack(victim) as watched:
        for key, version in EVERY_VERSION:
            for _ in range(ROUNDS):
                sent = request(key, version, rng)
                raw = frame(key, version, mutated(sent, rng), flexible=sent.flexible)
                ends[_send(endpoint(victim), raw)] += 1
    assert min(ends["answered"], ends["closed"]) > ends.total() // 5, ends
    assert ends["waits"] < ends.total() // 5, ends
    assert watched.log.count("closed a client's connection") <= ends["closed"] + ends["waits"]
    assert watched.log.count("closed a client's connection") > ends["closed"] * 0.9


def _send(address: tuple[str, int], raw: bytes) -> str:
    """How it ended."""
    with socket.create_connection(address, 20) as connection:
        connection.sendall(raw)
        connection.settimeout(PATIENCE_S)
        try:
            return "answered" if connection.recv(1 << 16) else "closed"
        except ConnectionResetError:
            return "closed"
        except TimeoutError:
            return "waits"
