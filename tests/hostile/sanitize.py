"""The compiled parts under AddressSanitizer and UBSan: `make sanitize` (gcc, Linux).

Builds `_records.c`, `_offsets.c` and `_open_batches.c` with both in a temporary directory. The record codec reads,
checks and writes seeded damaged records for half a minute, and compaction's map goes over the same ones; then a
producer's open batches take records and refuse what is none for as long. All are held against their twins in Python.
Any access outside a buffer ends the process with a report.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from crc32c import crc32c

from strandline.log.batch import assemble_batch
from tests.client.test_open_batches import Play

SOURCES = [
    Path(__file__).parents[2] / "src/strandline" / name
    for name in ("log/_records.c", "log/_offsets.c", "client/_open_batches.c")
]
SECONDS = 30


def build(directory: str, source: Path) -> Path:
    """One of them, instrumented. Raises CalledProcessError."""
    target = Path(directory) / f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    flags = ["-shared", "-fPIC", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    subprocess.run(["gcc", *flags, f"-I{include}", str(source), "-o", str(target)], check=True)
    return target


def outcome(call: Any, *arguments: Any) -> Any:
    """What it gives, or that it refuses."""
    try:
        return call(*arguments)
    except ValueError:
        return ValueError


def loaded(path: str) -> Any:
    """The module in that file."""
    spec = importlib.util.spec_from_file_location(Path(path).name.partition(".")[0], path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def attack_open_batches(path: str) -> int:
    """How many programs were played; both twins agreed on each."""
    from strandline.client import open_batches_python

    compiled = loaded(path)
    rng = random.Random(2)
    end = time.monotonic() + SECONDS
    tried = 0
    while time.monotonic() < end:
        program = [_step(rng) for _ in range(rng.randrange(60))]
        memory, batch_max, threads = rng.randrange(100, 9_000), rng.randrange(4_000), rng.random() < 0.5
        said = []
        for module in (compiled, open_batches_python):
            play = Play(module, memory, batch_max, threads=threads)
            for step in [("open", 0), ("open", 1), *program]:
                play.step(*step)
            said.append(play.end())
        assert said[0] == said[1]
        tried += 1
    return tried


def _step(rng: random.Random) -> tuple[str, Any]:
    number = rng.randrange(3)
    if rng.random() < 0.2:
        other = {"open": number, "seal": number, "stick": (number, rng.randrange(900)), "give back": rng.randrange(300)}
        return rng.choice(list(other.items()))
    blobs = [None, b"", rng.randbytes(rng.randrange(190)), b"k" * rng.randrange(70), "text", 5]
    pairs: list[Any] = [("h" * rng.randrange(9), rng.choice(blobs)) for _ in range(rng.randrange(4))]
    record = {"value": rng.choice(blobs), "key": rng.choice(blobs), "headers": rng.choice([(), tuple(pairs), pairs])}
    place = {
        "partition": rng.choice([None, 0, 1, -1, 9, 2**80]),
        "timestamp_ms": rng.choice([None, 5, 2**62, -1, 2**63]),
    }
    return "record", record | place


def attack(path: str, offsets_path: str) -> int:
    """How many inputs were tried; both codecs and both maps agreed on each."""
    from strandline.log import records_python
    from strandline.log.batch import Record
    from strandline.log.offset_map import PythonOffsetMap

    compiled = loaded(path)
    makers = (loaded(offsets_path).OffsetMap, PythonOffsetMap)
    rng = random.Random(1)
    end = time.monotonic() + SECONDS
    tried = 0
    while time.monotonic() < end:
        count = rng.randrange(1, 6)
        data = bytearray()
        for number in range(count):
            value = rng.choice((None, b"", rng.randbytes(rng.randrange(90))))
            headers = [("h" * rng.randrange(4), rng.choice((None, b"x")))] * rng.randrange(3)
            compiled.append(data, rng.randrange(-5, 1 << 40), number, rng.choice((None, b"k")), value, headers)
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))
        # A buffer of its own, exactly as long as the data: one byte beyond it is noticed.
        exact = bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.4 else data)
        arguments = (exact, count + rng.randrange(-1, 2), 7, 5, None, Record, (None,) * 5, (0, 1, 2, 3, 4))
        assert outcome(compiled.decode, *arguments) == outcome(records_python.decode, *arguments)
        assert outcome(compiled.check, exact, count) == outcome(records_python.check, exact, count)
        run = _run(rng, exact, count)
        said = []
        for make in makers:
            latest, out = make(5_000, bytes(16)), bytearray()
            said.append((outcome(latest.note, exact, 0, arguments[1], 7, 5), len(latest)))
            kept = outcome(latest.keep, out, exact, 0, arguments[1], 7, 5, True)
            said.append((kept, b"" if kept is ValueError else bytes(out)))
            said.append(latest.note_batches(run, 0, 7, 0, len(run), 9, crc32c))
            said.append(latest.keep_batches(run, 0, 7, len(run), 9, crc32c))
        assert said[:4] == said[4:]
        tried += 1
    return tried


def _run(rng: random.Random, records: bytes, count: int) -> bytes:
    """Two batches of these records, whose CRCs hold mostly, cut anywhere at times."""
    numbers = {"count": count + rng.randrange(-1, 2), "last_offset_delta": count - 1, "max_timestamp": 5}
    run = bytearray()
    for offset in (7, 7 + count):
        run += assemble_batch(records, base_timestamp=5, base_offset=offset, timestamp_type=rng.randrange(2), **numbers)
    if rng.random() < 0.3:
        run[rng.randrange(len(run))] ^= 1 << rng.randrange(8)
    return bytes(run[: rng.randrange(len(run) + 1)] if rng.random() < 0.3 else run)


def main() -> int:
    if len(sys.argv) > 1:
        print(f"{attack(sys.argv[1], sys.argv[2])} inputs, no access outside a buffer")
        print(f"{attack_open_batches(sys.argv[3])} programs of appends, no access outside a buffer")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        libraries = [str(build(directory, source)) for source in SOURCES]
        preload = [
            subprocess.run(
                ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
            ).stdout.strip()
            for name in ("libasan.so", "libubsan.so")
        ]
        # Leaks are not looked for: the interpreter itself ends with memory in use.
        environment = {**os.environ, "LD_PRELOAD": " ".join(preload), "ASAN_OPTIONS": "detect_leaks=0"}
        environment["PYTHONMALLOC"] = "malloc"
        return subprocess.run(
            [sys.executable, "-m", "tests.hostile.sanitize", *libraries], env=environment, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
