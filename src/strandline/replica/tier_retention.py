"""What age and size take from the front of a partition whose older part lies in the object store (KIP-405).

`retention.ms` and `retention.bytes` are for the whole, `local.retention.ms` and `local.retention.bytes` for what is on
the disks, of which nothing goes that was not copied. Pure: time and sizes come in.
"""

from __future__ import annotations

from strandline.log.config import LogConfig
from strandline.log.retention import Keep
from strandline.proto.ids import Offset
from strandline.proto.tier import Tier, TieredSegment


def keep_whole(config: LogConfig) -> Keep:
    """What is kept of a partition."""
    return Keep(config.retention_ms, config.retention_bytes)


def keep_local(config: LogConfig, tier: Tier) -> Keep:
    """What is kept on the disks of a partition of which `tier` was copied."""
    copied_to = tier.end_offset if tier.segments else 0
    return Keep(config.local_retention_ms, config.local_retention_bytes, "local.", copied_to)


def expired_start(tier: Tier, keep: Keep, uncopied_bytes: int, now_ms: int) -> Offset:
    """Where the tier begins once retention has taken what it takes now: whole segments from the front, its end if it
    takes all. `uncopied_bytes`: of what lies behind the tier."""
    excess = tier.size_bytes + uncopied_bytes - keep.size_bytes if keep.size_bytes >= 0 else -1
    for segment in tier.segments:
        too_old = keep.age_ms >= 0 and now_ms - _newest_ms(segment, now_ms) > keep.age_ms
        if not too_old and excess < segment.size_bytes:
            return max(tier.start_offset, segment.base_offset)
        excess -= segment.size_bytes
    return tier.end_offset


def _newest_ms(segment: TieredSegment, now_ms: int) -> int:
    """How old its newest record is. A timestamp of the future would hold the room in the store for as long: it counts
    from when the segment was copied; so does a record without one."""
    return segment.max_timestamp_ms if 0 <= segment.max_timestamp_ms <= now_ms else segment.copied_ms
