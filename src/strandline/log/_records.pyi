from collections.abc import Callable, Sequence
from typing import TypeVar

from typing_extensions import Buffer

T = TypeVar("T", bound=tuple[object, ...])

def append(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[str, Buffer | None]],
) -> int: ...
def check(data: Buffer, count: int) -> int: ...
def columns(
    arrays: tuple[bytearray, ...],
    data: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    low: int,
    high: int,
    with_headers: bool,
) -> tuple[int, int]: ...
def decode(
    data: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    kind: type[T],
    template: tuple[object, ...],
    slots: tuple[int, ...],
) -> tuple[list[T], int]: ...
def intact(
    data: Buffer, position: int, offset: int, epoch: int, until: int, crc32c: Callable[[Buffer], int]
) -> tuple[int, int]: ...
