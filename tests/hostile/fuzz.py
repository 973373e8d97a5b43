"""The coverage-guided fuzzer: `make fuzz MINUTES=5`. Atheris (libFuzzer) drives each parser in a process of its own.

What reaches new code is kept in `corpus/`, reduced to small files; what breaks a parser is left in `crashes/` of the
directory that is printed, and the command fails.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX = 1024
CORPUS_FILES_MAX = 60
"""Kept of each parser, the smallest first: coverage is nearly all in them."""


def seeds(name: str) -> list[bytes]:
    """Valid inputs to begin with."""
    from strandline.log.batch import Record, build_batch
    from strandline.log.compression import Codec, compress
    from tests.hostile.messages import EVERY_ANSWER, EVERY_VERSION, answer, request
    from tests.hostile.tls_target import client_hello

    records = [Record(0, 5, b"key", b"value", (("header", b"x"),)), Record(1, 6, None, b"w" * 40)]
    batches = [bytes(build_batch(records, codec=codec)) for codec in Codec]
    rng = random.Random(name)
    if name in ("batches", "client-batches", "replicated-batches", "segment"):
        return batches
    if name == "records":
        return [bytes([2]) + batches[0][61:]]
    if name == "decompress":
        return [bytes([codec]) + compress(codec, b"some text " * 9) for codec in Codec]
    if name == "request":
        return [
            bytes([number % 256]) + request(key, version, rng).body
            for number, (key, version) in enumerate(EVERY_VERSION)
            if number < 256
        ]
    keys = {"produce-request": (0, 3), "fetch-request": (1, 4), "metadata-request": (3, 0)}
    if name in keys:
        key, first = keys[name]
        return [bytes([v - first]) + request(k, v, rng).body for k, v in EVERY_VERSION if k == key]
    if name == "response":
        return [bytes([n]) + answer(api, v, rng).body for n, (api, v) in enumerate(EVERY_ANSWER) if n < 256]
    answers = {"produce-response": (0, 3), "fetch-response": (1, 4)}
    if name in answers:
        key, first = answers[name]
        return [bytes([v - first]) + answer(k, v, rng).body for k, v in EVERY_ANSWER if k == key]
    if name == "checkpoints":
        return [
            b"0\n1\nt 0 5\n",
            b"0\n1\n3 7\n",
            b"version=1\ncluster.id=x\nnode.id=1\ndirectory.id=" + b"A" * 22 + b"\n",
        ]
    if name == "quorum-state":
        return [b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,"data_version":1}']
    if name == "hand-over":
        return [bytes([piece]) + client_hello() for piece in (255, 90, 3)] + [b"\xffGET / HTTP/1.1\r\n\r\n"]
    if name == "indexes":
        return [struct.pack(">IIII", 1, 2, 3, 4), struct.pack(">qI", 5, 6)]
    return [bytes([number]) + rng.randbytes(20) for number in range(8)]


def one(name: str, corpus: str, seconds: int, artifacts: str) -> None:
    """Fuzz one parser; never returns. The parsers must not have been imported before: they are instrumented here."""
    import atheris

    with atheris.instrument_imports(include=["strandline", "kio"], enable_loader_override=False):
        from tests.hostile.targets import run

    arguments = [
        "fuzz",
        corpus,
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-artifact_prefix={artifacts}/{name}-",
        "-rss_limit_mb=1024",
        "-timeout=5",
        "-verbosity=0",
        "-print_final_stats=1",
    ]
    atheris.Setup(arguments, lambda data: run(name, data))
    atheris.Fuzz()


def keep(name: str, found: Path) -> int:
    """Replace the kept corpus of a parser by the smallest of what was found; how many there are."""
    files = sorted(
        (path for path in found.iterdir() if path.is_file()), key=lambda path: (path.stat().st_size, path.name)
    )
    kept = CORPUS / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for path in files[:CORPUS_FILES_MAX]:
        shutil.copy(path, kept / path.name[:16])
    return min(len(files), CORPUS_FILES_MAX)


def main() -> int:
    """Fuzz every parser for its share of the time. The exit code is 1 if one broke."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=5)
    options.add_argument("--only", default="", help="one parser")
    options.add_argument("--child", nargs=3, metavar=("CORPUS", "SECONDS", "ARTIFACTS"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.child:
        one(chosen.only, chosen.child[0], int(chosen.child[1]), chosen.child[2])
    from tests.hostile.targets import TARGETS

    names = [chosen.only] if chosen.only else list(TARGETS)
    seconds = max(1, int(chosen.minutes * 60 / len(names)))
    work = Path(tempfile.mkdtemp(prefix="strandline-fuzz-"))
    (work / "crashes").mkdir()
    broken = []
    for name in names:
        corpus = work / name
        if (CORPUS / name).is_dir():
            shutil.copytree(CORPUS / name, corpus)
        corpus.mkdir(exist_ok=True)
        for number, data in enumerate(seeds(name)):
            (corpus / f"seed-{number}").write_bytes(data[:INPUT_BYTES_MAX])
        child = [
            sys.executable,
            "-m",
            "tests.hostile.fuzz",
            "--only",
            name,
            "--child",
            str(corpus),
            str(seconds),
            str(work / "crashes"),
        ]
        done = subprocess.run(child, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": "."})
        if done.returncode:
            broken.append(name)
            print(done.stdout[-3000:], done.stderr[-1500:])
        runs = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
        verdict = "  BROKEN" if name in broken else ""
        print(f"{name:20} {(runs or ['?'])[0]:>9} inputs, {keep(name, corpus):>3} kept{verdict}", flush=True)
    if broken:
        print(f"broken: {' '.join(broken)}; the inputs are in {work / 'crashes'}")
        return 1
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
