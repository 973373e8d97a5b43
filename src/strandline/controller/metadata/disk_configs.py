"""Settings of a broker's upkeep of its disks, which change while it runs: compaction, the scrub, the reserve."""

from __future__ import annotations

from strandline.controller.metadata.config_key import INT32_MAX, INT64_MAX, ConfigKey, ConfigType, above_zero, integer
from strandline.log.room import RESERVE_BYTES

CLEANER_HAS_NO_THREADS = (
    "compaction is always on and runs in the event loop: there are no threads and no buffers but "
    "log.cleaner.dedupe.buffer.size to set"
)


def _whole(name: str, default: int, low: int, high: int, doc: str) -> ConfigKey:
    type = ConfigType.INT if high <= INT32_MAX else ConfigType.LONG
    return ConfigKey(name, type, str(default), doc, integer(low, high), name, topic=False)


DISK_KEYS = (
    _whole(
        "log.cleaner.backoff.ms",
        15_000,
        1,
        INT32_MAX,
        "How often is looked for a compacted log of which enough is to be compacted, in milliseconds.",
    ),
    _whole(
        "log.cleaner.dedupe.buffer.size",
        128 << 20,
        1 << 20,
        INT64_MAX,
        "Memory for the keys of the log that is being compacted, in bytes, 42 for each (192 where nothing could be "
        "compiled; 27 in Kafka); what does not fit waits for the next pass. A pass under way keeps what it has.",
    ),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        ConfigType.DOUBLE,
        "1.7976931348623157E308",
        "What compaction reads and writes in a second, in bytes, together; by default as much as goes beside all else.",
        above_zero,
        "log.cleaner.io.max.bytes.per.second",
        topic=False,
    ),
    _whole(
        "log.dir.reserve.bytes",
        RESERVE_BYTES,
        0,
        2**40,
        "What clients' records leave of the disk, in bytes, for metadata, checkpoints and deletions: with less, the "
        "broker writes nothing more for clients, and others lead. At most 1/64 of the disk. 0: until a write fails.",
    ),
    _whole(
        "log.scrub.interval.ms",
        604_800_000,
        0,
        2**53,
        "How often all logs of the broker are read to find bits that rotted where nobody reads (rule B19 in "
        "docs/rules.md), in milliseconds; the first time an hour after the start, or after 0. 0: never, and a pass "
        "under way ends.",
    ),
    _whole(
        "log.scrub.max.bytes.per.second",
        10 << 20,
        64 << 10,
        2**40,
        "The most that the scrub reads in a second, in bytes.",
    ),
)
