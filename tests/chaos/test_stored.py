"""The checkers' own parser of record batches, held against what the product writes and against damage; and what it is
for: replicas compared after a run."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack_into

import pytest

from strandline.chaos.checkers.batches import NotABatch, parse, records, verify
from strandline.chaos.checkers.history import Partition, Send, Status
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.replicas import compare_replicas
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World
from strandline.log.batch import Record, build_batch
from strandline.log.compression import Codec

VALUES = (b"a", None, b"", b"x" * 300)


def batch(offset: int = 7, codec: Codec = Codec.NONE, found: tuple[bytes | None, ...] = VALUES) -> bytes:
    records = [Record(number, 1, b"key" if number else None, value, ()) for number, value in enumerate(found)]
    return bytes(build_batch(records, base_offset=offset, leader_epoch=5, codec=codec))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_batch_of_ours(codec: Codec) -> None:
    """Header, CRC and records, whatever they are packed by."""
    content = batch(codec=codec)
    found = parse(content)
    verify(found, content + b"more")
    assert (found.base_offset, found.last_offset, found.next_offset) == (7, 10, 11)
    assert (found.size, found.leader_epoch, found.count) == (len(content), 5, 4)
    assert [record.value for record in records(found, content)] == list(VALUES)
    assert [record.offset for record in records(found, content)] == [7, 8, 9, 10]
    assert [record.key for record in records(found, content)] == [None, b"key", b"key", b"key"]


def test_every_bit_counts() -> None:
    """One that turns over is noticed, save where the CRC does not look: base offset and leader epoch, which leaders
    set."""
    content = batch()
    free = {*range(8), *range(12, 16)}
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            try:
                found = parse(bytes(damaged))
                verify(found, bytes(damaged))
            except NotABatch:
                continue
            assert position in free, (position, bit)


def test_what_is_torn_or_says_other_numbers_is_refused() -> None:
    """By its length, or by a count that its offsets or its records do not bear out."""
    content = batch()
    with pytest.raises(NotABatch, match="are there"):
        verify(parse(content), content[:-1])
    with pytest.raises(NotABatch, match="no header"):
        parse(content[:60])
    fewer = bytearray(content)
    pack_into(">i", fewer, 57, 3)
    assert not parse(bytes(fewer)).is_whole, "compaction may have taken one"
    with pytest.raises(NotABatch, match="bytes follow"):
        records(parse(bytes(fewer)), bytes(fewer))
    pack_into(">i", fewer, 57, 5)
    with pytest.raises(NotABatch, match="5 records over 4 offsets"):
        parse(bytes(fewer))
    for count in (3, 5):
        other = bytearray(content)
        pack_into(">i", other, 23, count - 1)
        pack_into(">i", other, 57, count)
        with pytest.raises(NotABatch):
            records(parse(bytes(other)), bytes(other))
    with pytest.raises(NotABatch, match="codec 2"):
        records(parse(batch(codec=Codec.SNAPPY)), batch(codec=Codec.SNAPPY))


def disks(*logs: list[bytes]) -> Callable[[str, str], tuple[SimDisk, str]]:
    """n1, n2...: the batches of t-0 on each."""
    world = World(1)

    async def story() -> None:
        for number, log in enumerate(logs, 1):
            world.add_machine(f"n{number}")

            async def main(ports: Ports, log: list[bytes] = log) -> None:
                ports.disk.mkdir("/data/t-0")
                ports.disk.open(f"/data/t-0/{parse(log[0]).base_offset:020d}.log", create=True).pwrite(b"".join(log), 0)

            world.spawn(f"n{number}", main)
        await world.sleep_ms(10)

    world.loop.run_until_complete(story())
    return lambda name, directory: (world.machines[name].disk, f"/data/{directory}")


def send(offset: int, value: str, acks: int = -1) -> Send:
    return Send("p", Partition("t", 0), value, acks=acks, status=Status.OK, offset=offset)


def test_replicas_are_compared_where_all_have_records() -> None:
    """Byte by byte below the lowest high watermark, from where the last of them begins."""
    first, second, other = batch(0), batch(4), batch(4, found=(b"b", None, b"", b"y"))
    compare_replicas(disks([first, second], [first, second]), {"t-0": {"n1": 8, "n2": 8}})
    compare_replicas(disks([first, second], [second]), {"t-0": {"n1": 8, "n2": 8}})
    compare_replicas(disks([first, second], [first, other]), {"t-0": {"n1": 8, "n2": 4}})
    compare_replicas(disks([first, second], [first, second[:-1]]), {"t-0": {"n1": 8, "n2": 4}})
    for log in ([first, other], [first], [first, second[:-1]]):
        with pytest.raises(InvariantViolated, match="IdenticalReplicas"):
            compare_replicas(disks([first, second], log), {"t-0": {"n1": 8, "n2": 8}})


def test_what_was_acknowledged_is_in_the_log() -> None:
    """At its offset, by the checkers' own eyes; an acknowledgement of the leader alone promises nothing."""
    found, high_watermarks = disks([batch(0, Codec.ZSTD)]), {"t-0": {"n1": 4}}
    compare_replicas(found, high_watermarks, [send(0, "a"), send(3, "x" * 300), send(2, "lost", acks=1)])
    for wrong in (send(0, "b"), send(4, "a")):
        with pytest.raises(InvariantViolated, match="AckedIsStored"):
            compare_replicas(found, high_watermarks, [wrong])
