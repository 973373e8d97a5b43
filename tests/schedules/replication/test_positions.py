"""Where a consumer stands after a leader change: schedules 102 and 103."""

from __future__ import annotations

import pytest

from strandline.proto.error_codes import ErrorCode
from strandline.replica.manager import ReplicaManager
from strandline.replica.states import LATEST_TIMESTAMP
from tests.replica.helpers import TP
from tests.schedules.helpers import schedule
from tests.schedules.replication.bench import Bench


async def stands_at_the_end(bench: Bench, node: int) -> tuple[int, int]:
    """Offset and leader epoch, as ListOffsets tells them to a consumer that begins with `auto.offset.reset=latest`."""
    await bench.until(lambda: bench.manager(node).list_offset(TP, LATEST_TIMESTAMP).error is ErrorCode.NONE)  # type: ignore[union-attr]
    found = bench.manager(node).list_offset(TP, LATEST_TIMESTAMP)
    assert found is not None
    return found.offset, found.leader_epoch


def goes_on_at(manager: ReplicaManager, offset: int, epoch: int) -> int | None:
    """Where librdkafka (`rd_kafka_toppar_handle_OffsetForLeaderEpoch`) and Apache Kafka's client go on after a leader
    change; None: wherever `auto.offset.reset` says, past what was written since."""
    end = manager.epoch_end_offset(TP, current_leader_epoch=-1, epoch=epoch)
    assert end.error is ErrorCode.NONE
    if end.end_offset < 0 or end.leader_epoch < 0:
        return None
    return min(offset, end.end_offset)


@schedule(
    102,
    rule="B33: the end offset of an epoch is that of the next larger one",
    mutant="epochs-of-nothing-have-no-end",
)
def test_102_a_consumer_of_an_empty_partition_over_a_failover() -> None:
    """Nothing was ever written. The consumer stands at the end; the next leader, which has never heard of the epoch
    before its own, is asked where that ended, after another client's record was acknowledged."""
    bench = Bench()

    async def scenario(bench: Bench) -> None:
        where, epoch = await stands_at_the_end(bench, 1)
        assert (where, epoch) == (0, 0)
        await bench.elect(2)
        await bench.append(2, b"acked")
        assert goes_on_at(bench.manager(2), where, epoch) == 0

    bench.play(scenario)


@schedule(103, rule="B33: also where all records are deleted", mutant="epochs-of-nothing-have-no-end")
@pytest.mark.parametrize("elections", [1, 2])
def test_103_a_consumer_of_an_emptied_partition_over_failovers(elections: int) -> None:
    """Records of several epochs were read and deleted; so may be the next leader, which notes its epoch where the log
    ends. Whoever stands there goes on there, over one election and over several."""
    bench = Bench(logs={node: [(0, 10), (3, 5)] for node in (1, 2, 3)}, leader_epoch=5)

    async def scenario(bench: Bench) -> None:
        await bench.append(1, b"read")
        where, epoch = await stands_at_the_end(bench, 1)
        assert where == 16
        bench.broker(1).run(lambda manager: manager.delete_records(TP, 16, lambda *_: None) and None)
        await bench.until(lambda: all(bench.status(node).log_start_offset == 16 for node in (1, 2, 3)))
        for node in (2, 3)[:elections]:
            await bench.elect(node)
        leader = elections + 1
        await bench.append(leader, b"acked")
        assert bench.log(leader).epochs.entries() == [(epoch + elections, 16)]
        for asked in (0, 3, epoch):
            assert goes_on_at(bench.manager(leader), where, asked) == 16

    bench.play(scenario)
