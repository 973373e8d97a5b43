"""The compiled record codec under AddressSanitizer and UBSan: `make sanitize` (gcc, Linux).

Builds `_records.c` with both in a temporary directory, and lets it read, check and write seeded damaged records for
half a minute, held against its twin in Python. Any access outside a buffer ends the process with a report.
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

SOURCE = Path(__file__).parents[2] / "src/strandline/log/_records.c"
SECONDS = 30


def build(directory: str) -> Path:
    """The instrumented codec. Raises CalledProcessError."""
    target = Path(directory) / f"_records{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    flags = ["-shared", "-fPIC", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    subprocess.run(["gcc", *flags, f"-I{include}", str(SOURCE), "-o", str(target)], check=True)
    return target


def outcome(call: Any, *arguments: Any) -> Any:
    """What it gives, or that it refuses."""
    try:
        return call(*arguments)
    except ValueError:
        return ValueError


def attack(path: str) -> int:
    """How many inputs were tried; both codecs agreed on each."""
    from strandline.log import records_python
    from strandline.log.records import Record

    spec = importlib.util.spec_from_file_location("_records", path)
    assert spec is not None
    assert spec.loader is not None
    compiled: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compiled)
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
        tried += 1
    return tried


def main() -> int:
    if len(sys.argv) > 1:
        print(f"{attack(sys.argv[1])} inputs, no access outside a buffer")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        library = build(directory)
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
            [sys.executable, "-m", "tests.hostile.sanitize", str(library)], env=environment, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
