"""What a leader sends by itself: appended data at once, a risen high watermark a little later if no data went along."""

from __future__ import annotations

import asyncio

from strandline.log.partition_log import AppendResult
from strandline.replica import frames
from strandline.replica.core.leader import LeaderCore
from strandline.replica.partition import Partition


class Publisher:
    """Fills the followers' streams of every partition that this broker leads. One timer for all watermarks."""

    def __init__(self, watermark_delay_ms: float) -> None:
        self._watermark_delay_ms = watermark_delay_ms
        self._risen: dict[Partition, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def publish(self, partition: Partition, core: LeaderCore, result: AppendResult) -> None:
        """Send an append to the followers that are at the end of the log: one copy, made here, is queued for all of
        them; the receive buffer is the caller's again when this returns."""
        data = result.data
        size = len(data)
        piece = b""
        for subscription in partition.subscriptions.values():
            if subscription.link.offer(subscription, result.base_offset, result.next_offset, size):
                if not piece:
                    header = frames.pack_data_header(
                        partition.channel,
                        core.leader_epoch,
                        result.base_offset,
                        high_watermark=core.high_watermark,
                        log_start_offset=result.log_start_offset,
                        size=size,
                    )
                    piece = b"".join((header, data))
                subscription.sent_high_watermark = core.high_watermark
                subscription.link.push(piece)

    def rose(self, partition: Partition) -> None:
        """Its high watermark rose: the followers learn it with the next data, or after a while without any."""
        if partition.subscriptions:
            self._risen[partition] = None
            if self._timer is None:
                delay_s = self._watermark_delay_ms / 1000
                self._timer = asyncio.get_running_loop().call_later(delay_s, self._send_watermarks)

    def trimmed(self, partition: Partition) -> None:
        """Its log start rose: tell the followers now, for somebody waits for them."""
        core, plog = partition.leader, partition.log
        if core is None or plog is None:
            return
        piece = frames.pack_watermark(partition.channel, core.high_watermark, plog.log_start_offset)
        for subscription in partition.subscriptions.values():
            if not subscription.lagging:  # else the data that it is being sent will tell
                subscription.sent_high_watermark = core.high_watermark
                subscription.link.push(piece)

    def stop(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _send_watermarks(self) -> None:
        self._timer = None
        risen, self._risen = self._risen, {}
        for partition in risen:
            core, plog = partition.leader, partition.log
            if core is None or plog is None:
                continue
            high_watermark = core.high_watermark
            piece = frames.pack_watermark(partition.channel, high_watermark, plog.log_start_offset)
            for subscription in partition.subscriptions.values():
                if subscription.sent_high_watermark < high_watermark and not subscription.lagging:
                    subscription.sent_high_watermark = high_watermark
                    subscription.link.push(piece)
