"""A producer's open batches, compiled and in Python: the same bytes written, the same records refused."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from types import ModuleType
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client import open_batches as in_use
from strandline.client import open_batches_python
from strandline.log.batch import RecordBatchBuilder, decode_records, finish_batch, parse_header, verify_crc
from strandline.log.compression import Codec

try:
    from strandline.client import _open_batches as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

BOTH = [open_batches_python] if compiled is None else [open_batches_python, compiled]
needs_compiled = pytest.mark.skipif(compiled is None, reason="this installation has no C compiler")
both = pytest.mark.parametrize("module", BOTH, ids=lambda module: module.__name__.rpartition(".")[2])

PARTITIONS = 3
NUMBERS = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 40}

blobs = st.none() | st.binary(max_size=120)
pairs = st.lists(st.tuples(st.text(max_size=9), blobs), max_size=3).map(tuple)
odd = st.sampled_from([b"", "text", 3, bytearray(b"x"), ("a",), (("a",),), ((1, b""),), (("a", "b"),)])
records = st.fixed_dictionaries(
    {
        "value": blobs | odd,
        "key": blobs | odd,
        "headers": pairs | odd,
        "partition": st.none() | st.integers(-1, PARTITIONS) | st.sampled_from([2**70, "0"]),
        "timestamp_ms": st.none() | st.integers(-5, 2**44) | st.sampled_from([2**63 - 1, 2**63, 1.5]),
    }
)
steps = st.lists(
    st.tuples(st.just("record"), records)
    | st.tuples(st.just("stick"), st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 300)))
    | st.tuples(st.sampled_from(["open", "seal"]), st.integers(0, PARTITIONS - 1))
    | st.tuples(st.just("grow"), st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 1_200)))
    | st.tuples(st.just("give back"), st.integers(0, 200))
    | st.tuples(st.just("close"), st.none()),
    max_size=40,
)


class Play:
    """The same steps with one of the two; `said` is all that can be seen of them."""

    def __init__(self, module: Any, memory: int, batch_max: int, *, threads: bool) -> None:
        self._module = module
        self._threads = threads
        self._clock = 1_000
        self.memory = module.Memory(memory, 200, batch_max)
        self.open_batches = module.OpenBatches(PARTITIONS, self._wall_ms)
        self.batches: list[Any] = []
        self.said: list[Any] = []

    def _wall_ms(self) -> int:
        self._clock += 3
        return self._clock

    def step(self, what: str, given: Any) -> None:
        if what == "record":
            self.said.append(self._append(given))
        elif what == "stick":
            self.open_batches.stick(*given)
        elif what == "open":
            batch = self._open()
            self.open_batches.open(given, batch)
        elif what == "seal":
            for batch in self.batches[given::PARTITIONS]:
                batch.seal()
        elif what == "grow":
            self.said.append([batch.grow(given[1]) for batch in self.batches[given[0] :: PARTITIONS]])
        elif what == "give back":
            self.memory.give_back(min(given, self.memory.used))
        else:
            self.memory.close()
        self.said.append((self.memory.used, self.open_batches.sticky, self.open_batches.sticky_left))

    def _open(self) -> Any:
        make, lists = self._module.RecordSlot, (None, None)
        if not self._threads:
            made: list[object] = []
            make, lists = (lambda: made.append(None) or len(made)), ([], [])  # type: ignore[assignment, func-returns-value]
        batch = self._module.OpenBatch(self.memory, ("results", len(self.batches)), make, *lists)
        self.batches.append(batch)
        self.said.append(lists)
        return batch

    def _append(self, given: dict[str, Any]) -> Any:
        try:
            future = self.open_batches.append(*given.values())
        except (UnicodeEncodeError, OverflowError) as error:
            return type(error)
        if future is None or not self._threads:
            return future
        return future._results, future._index, future._timestamp_ms

    def end(self) -> list[Any]:
        for batch in self.batches:
            figures = (batch.count, batch.size_bytes, batch.reserved_bytes, batch.base_timestamp, batch.max_timestamp)
            batch.seal()
            data = batch.take()
            assert len(data) == batch.size_bytes
            self.said.append((figures, bytes(data)))
        return self.said


@needs_compiled
@given(steps, st.integers(100, 2_000), st.integers(0, 600), st.booleans())
@settings(max_examples=300, deadline=None)
def test_both_take_and_refuse_the_same(program: list[Any], memory: int, batch_max: int, threads: bool) -> None:
    """Whatever comes: records and what is none, full batches, such as grow, full memory, sealed ones."""
    said = []
    for module in (open_batches_python, compiled):
        play = Play(module, memory, batch_max, threads=threads)
        for number in range(PARTITIONS):
            play.step("open", number)
        for step in program:
            play.step(*step)
        said.append(play.end())
    assert said[0] == said[1]


@both
@given(st.lists(st.tuples(st.integers(0, 2**40), blobs, blobs, pairs), min_size=1, max_size=9), st.sampled_from(Codec))
@settings(max_examples=100, deadline=None)
def test_a_batch_is_what_the_other_writer_makes(module: ModuleType, items: list[Any], codec: Codec) -> None:
    """Byte for byte, compressed or not, with the numbers of its producer."""
    memory = module.Memory(1 << 20, 1 << 20, 1 << 20)
    batch = module.OpenBatch(memory, None, module.RecordSlot, None, None)
    builder = RecordBatchBuilder(codec)
    for item in items:
        assert batch.append(*item) is not None
        builder.append(*item)
    batch.seal()
    data = finish_batch(
        batch.take(), count=batch.count, base_timestamp=batch.base_timestamp, max_timestamp=batch.max_timestamp,
        codec=codec, **NUMBERS,
    )  # fmt: skip
    assert data == builder.build(**NUMBERS)
    verify_crc(data)
    assert parse_header(data).count == len(items)
    assert [record[1:] for record in decode_records(data)] == items


@needs_compiled
@given(st.binary(max_size=300))
def test_both_hash_alike(key: bytes) -> None:
    assert compiled.murmur2(key) == open_batches_python.murmur2(key)


@both
def test_what_is_no_record_is_an_error_for_who_asks_the_batch(module: Any) -> None:
    """`OpenBatches.append` says None to all of it; whoever then asks the batch gets the reason."""
    memory = module.Memory(1 << 20, 1 << 20, 1 << 20)
    batch = module.OpenBatch(memory, None, module.RecordSlot, None, None)
    for key, value, headers in ((1, b"", ()), (b"", "x", ()), (b"", b"", []), (b"", b"", ((b"a", b""),))):
        with pytest.raises(TypeError):
            batch.append(1, key, value, headers)
    for timestamp, error in ((-1, ValueError), (2**63, OverflowError), ("1", TypeError)):
        with pytest.raises(error):
            batch.append(timestamp, None, None, ())
    with pytest.raises(TypeError):
        module.OpenBatch(memory, None, print, None, None)
    with pytest.raises(ValueError, match="taken once"):
        batch.take()
    batch.seal()
    assert batch.append(1, None, b"x", ()) is None
    assert batch.take() == bytes(61)
    with pytest.raises(ValueError, match="taken once"):
        batch.take()
    with pytest.raises(ValueError, match="at least one"):
        module.OpenBatches(0, None)
    for call in (lambda: module.OpenBatches(2, None).open(2, batch), lambda: module.OpenBatches(2, None).stick(-1, 5)):
        with pytest.raises(IndexError):
            call()


@both
def test_the_time_of_a_record_is_what_time_says_at_the_moment(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator replaces `time.time_ns`: a clock read in C would bring real time, and chance, into it."""
    open_batches = module.OpenBatches(1, None)
    open_batches.open(
        0, module.OpenBatch(module.Memory(1 << 20, 1 << 20, 1 << 20), None, module.RecordSlot, None, None)
    )
    before = time.time_ns() // 1_000_000
    assert before <= open_batches.append(b"", None, (), 0, None)._timestamp_ms <= time.time_ns() // 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: 5_999_999)
    assert open_batches.append(b"", None, (), 0, None)._timestamp_ms == 5


@both
def test_threads_share_batches_without_losing_or_doubling_a_record(module: Any) -> None:
    """Four threads append while a fifth seals and opens: every future has a record, and each record one future."""
    memory = module.Memory(1 << 30, 1 << 20, 1 << 20)
    open_batches = module.OpenBatches(1, None)
    batches: list[Any] = []
    over = threading.Event()
    lock = threading.Lock()

    def open_one() -> None:
        batch = module.OpenBatch(memory, len(batches), module.RecordSlot, None, None)
        batches.append(batch)
        open_batches.open(0, batch)

    def write(thread: int, places: list[Any]) -> None:
        for number in range(5_000):
            value = b"%d-%d" % (thread, number)
            while (future := open_batches.append(value, None, (), 0, 5)) is None:
                pass
            places.append((future._results, future._index, value))

    def turn() -> None:
        while not over.is_set():
            with lock:
                batches[-1].seal()
                open_one()

    open_one()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        places: list[list[Any]] = [[] for _ in range(4)]
        threads = [threading.Thread(target=write, args=(number, places[number])) for number in range(4)]
        turner = threading.Thread(target=turn)
        for thread in (*threads, turner):
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        turner.join()
    finally:
        sys.setswitchinterval(interval)
    batches[-1].seal()
    found = {}
    for number, batch in enumerate(batches):
        if batch.count:
            data = finish_batch(
                batch.take(), count=batch.count, base_timestamp=5, max_timestamp=5, codec=Codec.NONE, **NUMBERS
            )
            found.update({(number, record.offset): record.value for record in decode_records(data)})
    assert found == {(batch, index): value for several in places for batch, index, value in several}
    assert len(found) == 20_000
    assert memory.used == sum(batch.reserved_bytes for batch in batches)


@needs_compiled
def test_a_finalizer_that_sends_is_not_in_the_way() -> None:
    """Garbage is collected while a future is made, and a `__del__` may send to the very same batch."""
    memory = compiled.Memory(1 << 30, 1 << 20, 1 << 20)
    open_batches = compiled.OpenBatches(1, None)
    batch = compiled.OpenBatch(memory, None, compiled.RecordSlot, None, None)
    open_batches.open(0, batch)

    class Sends:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            open_batches.append(b"from a finalizer", None, (), 0, 1)

    before = gc.get_threshold()
    gc.set_threshold(5, 1, 1)
    try:
        kept = []
        for number in range(500):
            Sends()
            kept.append(open_batches.append(b"%d" % number, None, (), 0, 1))
    finally:
        gc.set_threshold(*before)
        gc.collect()
    batch.seal()
    data = finish_batch(batch.take(), count=batch.count, base_timestamp=1, max_timestamp=1, codec=Codec.NONE, **NUMBERS)
    values = [record.value for record in decode_records(data)]
    assert [values[future._index] for future in kept] == [b"%d" % number for number in range(500)]
    assert values.count(b"from a finalizer") == 500


@needs_compiled
def test_nothing_leaks() -> None:
    """A hundred thousand records and refusals of every kind: the process does not grow."""
    rng = random.Random(1)
    process = psutil.Process()

    def load() -> None:
        for threads in (True, False):
            play = Play(compiled, 1 << 20, 4_000, threads=threads)
            for number in range(PARTITIONS):
                play.step("open", number)
            for number in range(400):
                headers: Any = rng.choice([(), (("name", b"x" * 50),), (("name", 5),), ((), ())])
                value: Any = rng.choice([b"v" * rng.randrange(190), None, "text"])
                given = {"value": value, "key": rng.choice([None, b"k"]), "headers": headers}
                given |= {"partition": None, "timestamp_ms": None}
                play.step("stick", (number % PARTITIONS, 500))
                play.step("record", given)
                if number % 50 == 49:
                    play.step("open", number % PARTITIONS)
            play.end()

    for _ in range(20):
        load()
    gc.collect()
    before = process.memory_info().rss
    for _ in range(120):
        load()
    gc.collect()
    assert process.memory_info().rss - before < 4 << 20


@needs_compiled
def test_the_compiled_ones_are_in_use() -> None:
    assert in_use.COMPILED
    assert in_use.OpenBatches is compiled.OpenBatches
