"""Every parser against bytes that are anything, and against the kept corpus: nothing but its documented refusals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.proto.errors import ProtocolError
from tests.hostile.messages import EVERY_ANSWER, EVERY_VERSION, answer, mutated, request
from tests.hostile.targets import CORPUS, MESSAGES, TARGETS, read_answer, read_request, run

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


@pytest.mark.parametrize("name", MESSAGES)
def test_every_side_reads_what_was_meant_for_another(name: str) -> None:
    """The corpora of all messages, against the parsers of broker and client alike."""
    for other in MESSAGES:
        for path in sorted((CORPUS / other).iterdir()):
            run(name, path.read_bytes())


def test_requests_of_every_version_mutated() -> None:
    """The requests of the live test, a thousand more, against the broker's parsers alone."""
    rng = random.Random(3)
    for key, version in EVERY_VERSION:
        for _ in range(6):
            try:
                read_request(key, version, mutated(request(key, version, rng), rng))
            except ProtocolError:
                continue


def test_answers_of_every_version_mutated() -> None:
    """As many answers against the client's; those that are whole are read."""
    rng = random.Random(4)
    for api, version in EVERY_ANSWER:
        for _ in range(6):
            sent = answer(api, version, rng)
            read_answer(api, version, sent.body)
            try:
                read_answer(api, version, mutated(sent, rng))
            except ProtocolError:
                continue
