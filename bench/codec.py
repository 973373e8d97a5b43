"""Records a second through the record codec, one core: the compiled one and its twin in Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType

from bench.measures import Results
from strandline.log import records_python
from strandline.log.batch import COMPILED, Record

RECORDS = 2_000
BEST_OF = 7
_PLAIN = (None,) * 5
_IN_ORDER = (0, 1, 2, 3, 4)


def codec_rates(results: Results) -> None:
    """Writing, reading and checking records of 100 B, each the best of several passes."""
    codecs: dict[str, ModuleType] = {"Python": records_python}
    if COMPILED:
        from strandline.log import _records

        codecs = {"compiled": _records, **codecs}
    for name, codec in codecs.items():
        data = _encoded(codec)
        steps: dict[str, Callable[[], object]] = {
            "write": lambda codec=codec: _encoded(codec),
            "read": lambda codec=codec, data=data: codec.decode(data, RECORDS, 0, 0, None, Record, _PLAIN, _IN_ORDER),
            "check": lambda codec=codec, data=data: codec.check(data, RECORDS),
        }
        for step, run in steps.items():
            results.add(f"record codec ({name}), {step} 100 B, records/s", RECORDS / min(map(_took, [run] * BEST_OF)))


def _encoded(codec: ModuleType) -> bytes:
    out = bytearray()
    append, value = codec.append, bytes(100)
    for number in range(RECORDS):
        append(out, number, number, None, value, ())
    return bytes(out)


def _took(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
