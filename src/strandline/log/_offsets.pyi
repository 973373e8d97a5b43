from strandline.log.batch import Buffer
from strandline.log.offset_map import Checksum, Stays

class OffsetMap:
    def __init__(self, buffer_bytes: int, secret: bytes) -> None: ...
    @property
    def keys_max(self) -> int: ...
    def __len__(self) -> int: ...
    def has_room(self, keys: int, /) -> bool: ...
    def put(self, key: bytes, offset: int, /) -> None: ...
    def latest(self, key: bytes, /) -> int: ...
    def note(self, records: Buffer, position: int, count: int, base_offset: int, base_timestamp: int, /) -> int: ...
    def keep(
        self,
        out: bytearray,
        records: Buffer,
        position: int,
        count: int,
        base_offset: int,
        base_timestamp: int,
        tombstones_go: bool,
        /,
    ) -> tuple[int, int, int, int, int]: ...
    def note_batches(
        self,
        data: Buffer,
        position: int,
        offset: int,
        first_dirty: int,
        until: int,
        count_max: int,
        crc32c: Checksum,
        /,
    ) -> tuple[int, int]: ...
    def keep_batches(
        self, data: Buffer, position: int, offset: int, until: int, count_max: int, crc32c: Checksum, /
    ) -> tuple[int, int, list[Stays]]: ...
