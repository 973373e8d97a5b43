"""A log that is cut whole begins anew at a later offset; a start must not take that for a first segment that is missing
(schedule 48), wherever the node ends in between."""

from __future__ import annotations

from uuid import UUID

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.log.config import LogConfig
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.proto.ids import NodeId
from tests.log.helpers import TOPIC_ID, TP, fill
from tests.log.striking import OneStrike

CONFIG = LogConfig(segment_bytes=400, preallocate_bytes=0, file_delete_delay_ms=0)
AGAIN = 600


class CutWhole(OneStrike):
    """A log whose start was raised is cut whole, and filled; after `operations` of its disk something strikes.

    Attributes:
        begun: what was written after the cut is synced.
    """

    begun = False

    async def first_life(self, ports: Ports) -> None:
        format_log_dir(ports.disk, "/d", "c", NodeId(1), UUID(int=1))
        log_dir = LogDir.open(ports.disk, "/d", ports.clock, CONFIG)
        log = log_dir.create(TP, TOPIC_ID, CONFIG)
        fill(log, 20)
        log.sync_now()
        log.delete_records_before(10)
        log_dir.write_checkpoints({TP: 20})
        while log.removed:
            await log.delete_oldest_removed()
        assert log.bases[0] > 0
        self.aim()
        log.truncate_fully_and_start_at(AGAIN)
        fill(log, 20)
        log.sync_now()
        self.begun = True
        log_dir.write_checkpoints({TP: AGAIN + 20})
        log.sync_now()
        self.ended = True

    async def second_life(self, ports: Ports) -> None:
        log_dir = LogDir.open(ports.disk, "/d", ports.clock, CONFIG)
        assert log_dir.offline == {}
        log = log_dir.logs[TP]
        assert log.log_start_offset <= log.log_end_offset
        if self.begun:
            assert (log.log_start_offset, log.log_end_offset) == (AGAIN, AGAIN + 20)


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
def test_a_log_that_begins_anew_opens_whenever_it_crashed(power: bool) -> None:
    """After each operation of the disk; with the power, any of the names that were not synced are gone."""
    for seed in range(2 if power else 1):
        for operations in range(1, 200):
            life = CutWhole(seed, operations, power=power)
            if life.run():
                break
        assert life.ended, life.error
        assert operations > 30
