"""Which segments of a store follow on each other, where no metadata tell (rule B25)."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from strandline.log.tier.chains import Chain, chain_of
from strandline.log.tier.inspection import StoredSegment
from strandline.log.tier.names import LOG_SUFFIX, ObjectName
from strandline.log.tier.sidecar import SidecarHeader
from strandline.proto.tier import EpochStart, TieredSegment

TOPIC_ID = UUID(int=5)


def stored(base: int, end: int, *epochs: tuple[int, int], number: int = 0, begins: int | None = None) -> StoredSegment:
    """Offsets [base, end) with these (leader epoch, start); its object may begin before, at `begins`."""
    name = ObjectName("c", "t", TOPIC_ID, 0, base, UUID(int=number or 1000 + base), LOG_SUFFIX)
    begins = base if begins is None else begins
    header = SidecarHeader("c", "t", TOPIC_ID, 0, begins, end, 100, 5, epochs or ((0, begins),), 0, 9)
    return StoredSegment(name, 100, 50, header)


def spans(chain: Chain) -> list[tuple[int, int]]:
    return [(one.base_offset, one.end_offset) for one in chain.tiered(7)]


def test_segments_that_follow_on_each_other() -> None:
    chain = chain_of([stored(20, 30), stored(5, 10), stored(10, 20)], [])
    assert spans(chain) == [(5, 10), (10, 20), (20, 30)]
    assert (chain.start_offset, chain.end_offset, chain.size_bytes, chain.left_out) == (5, 30, 300, ())


def test_what_the_metadata_will_say() -> None:
    """Of an object that begins before what counts: its epochs count from there."""
    [made] = chain_of([stored(10, 20, (1, 3), (2, 8), (4, 15), begins=3)], []).tiered(7)
    assert made == TieredSegment(UUID(int=1010), 10, 20, 100, 5, (EpochStart(2, 10), EpochStart(4, 15)), 7)


def test_repetitions_are_left_out_without_a_loss() -> None:
    """An attempt that was given up, and one of a leader whose segments end elsewhere."""
    again, across = stored(10, 20, number=1), stored(15, 25, number=2)
    chain = chain_of([stored(0, 10), stored(10, 20), stored(20, 30), again, across], [])
    assert spans(chain) == [(0, 10), (10, 20), (20, 30)]
    assert len(chain.left_out) == 2
    assert chain.losses == ()


def test_the_attempt_that_reaches_on_is_taken() -> None:
    """Of two at one offset the one behind which there is more."""
    chain = chain_of([stored(0, 10), stored(10, 25, number=1), stored(10, 20, number=2), stored(20, 30)], [])
    assert spans(chain) == [(0, 10), (10, 20), (20, 30)]


def test_the_later_leader_epoch_counts_after_an_unclean_election() -> None:
    """An attempt reached offset 50 in epoch 1, and was not added; the leader of epoch 2 lacked what is from 25 on,
    wrote its own, and copied to 40. Longer is not newer."""
    first, parted = stored(0, 20, (1, 0)), stored(20, 50, (1, 20), number=3)
    chain = chain_of([first, parted, stored(20, 40, (1, 20), (2, 25))], [])
    assert spans(chain) == [(0, 20), (20, 40)]
    [out] = chain.left_out
    assert (out.segment, out.is_loss) == (parted, False)
    assert "unclean" in out.why


def test_what_lies_behind_a_later_epoch_with_an_earlier_one_parted_too() -> None:
    chain = chain_of([stored(0, 20, (2, 0)), stored(20, 30, (1, 20))], [])
    assert spans(chain) == [(0, 20)]
    assert chain.losses == ()


def test_what_is_in_front_of_a_gap_is_a_loss() -> None:
    chain = chain_of([stored(0, 10), stored(10, 20), stored(21, 30)], [])
    assert spans(chain) == [(21, 30)]
    assert [one.segment.name.base_offset for one in chain.losses] == [0, 10]


def test_what_is_damaged_is_a_loss_where_nothing_else_has_its_records() -> None:
    """At the end nobody knows how far it reached; in the chain it is the repetition of another."""
    end, inside = stored(20, 30), stored(5, 10, number=4)
    chain = chain_of([stored(0, 10), stored(10, 20)], [(end, "rotten"), (inside, "rotten")])
    assert spans(chain) == [(0, 10), (10, 20)]
    assert [(one.segment, one.why) for one in chain.losses] == [(end, "rotten")]
    assert [one.segment for one in chain.left_out if not one.is_loss] == [inside]


def test_nothing_that_is_whole() -> None:
    only = stored(3, 9)
    chain = chain_of([], [(only, "rotten")])
    assert (chain.segments, [one.segment for one in chain.losses]) == ((), [only])
    assert (chain.start_offset, chain.end_offset) == (0, 0)


STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 9)),
    st.tuples(st.sampled_from(["add", "give up"]), st.integers(0, 9)),
    st.tuples(st.sampled_from(["elect", "elect uncleanly"]), st.integers(0, 9)),
)


@given(st.lists(STEPS, max_size=40))
def test_what_the_metadata_named_is_found(steps: list[tuple[str, int]]) -> None:
    """Whatever was written, elected, copied and given up: the chain begins where the tier did, reaches at least as far,
    and has the same record (by its leader epoch) at each offset that the tier had."""
    log: list[int] = []  # the leader epoch of each record
    tier: list[int] = []
    objects: list[StoredSegment] = []
    epoch = 0
    for kind, amount in steps:
        if kind == "write":
            log += [epoch] * amount
        elif kind == "elect":
            epoch += 1
        elif kind == "elect uncleanly":  # it begins behind the tier, if it lacks what is there
            epoch += 1
            del log[max(len(tier), len(log) - amount) :]
        elif len(log) > len(tier):
            base, end = len(tier), max(len(tier) + 1, len(log) - amount)
            starts = [(log[at], at) for at in range(base, end) if at == base or log[at - 1] != log[at]]
            objects.append(stored(base, end, *starts, number=len(objects) + 1))
            if kind == "add":
                tier = log[:end]
    chain = chain_of(objects, [])
    assert chain.losses == ()
    assert chain.end_offset >= len(tier)
    found: list[int] = []
    for segment in chain.tiered(7):
        assert segment.base_offset == len(found)
        starts = {start.start_offset: start.epoch for start in segment.epochs}
        for at in range(segment.base_offset, segment.end_offset):
            found.append(starts.get(at, found[-1] if found else 0))
    assert found[: len(tier)] == tier
    assert found == sorted(found)
