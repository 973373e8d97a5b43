"""Every parser against bytes that are anything, and against the kept corpus: nothing but its documented refusals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.cluster.kafka.table import APIS
from strandline.proto.errors import ProtocolError
from strandline.proto.kafka import schema
from tests.hostile.requests import EVERY_VERSION, mutated, request
from tests.hostile.targets import CORPUS, TARGETS, run

EDGES = b"\0\1\2\x7f\x80\xff"
CORPUS_BYTES_MAX = 1 << 20

structured = st.lists(
    st.sampled_from([bytes([edge]) for edge in EDGES]) | st.binary(max_size=8) | st.integers(0, 60).map(bytes),
    max_size=20,
).map(b"".join)


@pytest.mark.parametrize("name", TARGETS)
def test_anything(name: str) -> None:
    """Random bytes, runs of zeros, and the bytes at which lengths change their meaning."""

    @settings(max_examples=50, database=None, deadline=None)
    @given(st.binary(max_size=200) | structured)
    def attempt(data: bytes) -> None:
        run(name, data)

    attempt()


@pytest.mark.parametrize("name", TARGETS)
def test_the_kept_corpus(name: str) -> None:
    """What the fuzzer found worth keeping, and each of them altered in one byte."""
    kept = sorted((CORPUS / name).iterdir())
    assert kept, "every parser has a corpus"
    rng = random.Random(name)
    for path in kept:
        data = path.read_bytes()
        run(name, data)
        for _ in range(3):
            damaged = bytearray(data)
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            run(name, bytes(damaged[: rng.randrange(len(damaged) + 1)] if rng.random() < 0.3 else damaged))


def test_the_corpus_stays_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < CORPUS_BYTES_MAX


def test_requests_of_every_version_mutated() -> None:
    """The requests of the live test, a thousand more, against the parsers alone."""
    rng = random.Random(3)
    for key, version in EVERY_VERSION:
        for _ in range(6):
            sent = request(key, version, rng)
            try:
                schema.request(APIS[key].api, version).decode(mutated(sent, rng))
            except ProtocolError:
                continue
