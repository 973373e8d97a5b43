"""Arrow arrays on the buffers of `strandline.log.columns`: nothing is copied. Needs pyarrow."""

from __future__ import annotations

import pyarrow as pa

from strandline.log.columns import RecordColumns


def numbers(kind: pa.DataType, rows: int, data: bytearray) -> pa.Array:
    """Array of numbers of a fixed size, none of them null."""
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])


def keys(columns: RecordColumns) -> pa.Array:
    """Bytes or null."""
    return _binary(columns.rows, columns.key_valid, columns.key_ends, columns.keys)


def values(columns: RecordColumns) -> pa.Array:
    """Bytes or null."""
    return _binary(columns.rows, columns.value_valid, columns.value_ends, columns.values)


def headers(columns: RecordColumns, kind: pa.DataType) -> pa.Array:
    """Lists of (name, value), in the two fields of the struct of `kind`; null, not an empty list, for a record without
    any, as in Spark's own Kafka source."""
    count = columns.header_count
    names = pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(columns.name_ends), pa.py_buffer(columns.names)]
    )
    contents = _binary(count, columns.header_valid, columns.header_ends, columns.headers)
    pairs = pa.StructArray.from_arrays([names, contents], fields=list(kind.value_type))
    lists = [pa.py_buffer(columns.list_valid), pa.py_buffer(columns.list_ends)]
    return pa.Array.from_buffers(kind, columns.rows, lists, children=[pairs])


def _binary(count: int, *buffers: bytearray) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), count, [pa.py_buffer(buffer) for buffer in buffers])
