"""Damage at random: it is found, and a real start does what was said of it."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from strandline.cli.main import main
from strandline.log.findings import LogCondition
from strandline.log.log_dir import LogDir
from strandline.log.verify.flaws import AtStart, Flaw, Kind
from strandline.proto.errors import CorruptLogError
from tests.log.helpers import TP
from tests.log.verifying import flip, made, segments, start, verify


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A directory after an orderly stop, and one after a kill with half a log above the recovery point."""
    path = tmp_path_factory.mktemp("whole")
    killed = made(path / "killed", stop=False)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (killed / name).write_text("0\n1\norders 0 45\n")
    (killed / "offset-checkpoints-copy").unlink()
    return {True: made(path / "stopped"), False: killed}


def damage(root: Path, rng: random.Random) -> str:
    """One thing that goes wrong in the partition's directory; says what, and in which file."""
    path = rng.choice(sorted((root / str(TP)).iterdir()))
    size = path.stat().st_size
    kind = rng.choice(["flip", "flip", "flip", "cut", "remove", "garbage", "zeros"])
    if kind == "flip" and size:
        flip(path, rng.randrange(size))
    elif kind == "cut" and size:
        path.write_bytes(path.read_bytes()[: rng.randrange(size)])
    elif kind == "remove":
        path.unlink()
    elif kind == "garbage":
        path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 200)))
    elif kind == "zeros" and size:
        at = rng.randrange(size)
        data = path.read_bytes()
        path.write_bytes(data[:at] + bytes(min(50, size - at)) + data[at + 50 :])
    return f"{kind} {path.name}"


@pytest.mark.parametrize("seed", range(60))
def test_what_was_said_is_what_happens(templates: dict[bool, Path], tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    clean = rng.random() < 0.5
    root = tmp_path / "data"
    shutil.copytree(templates[clean], root)
    did = [damage(root, rng) for _ in range(rng.choice([1, 1, 2]))]
    logs = {path.name: path.read_bytes() for path in segments(root)}
    whole = {path.name: path.read_bytes() for path in segments(templates[clean])}
    found = verify(root)
    flaws = [flaw for flaw in found.flaws if flaw.partition == str(TP)]
    unproven = set() if clean else {max(whole)}  # after a kill nothing tells that there was another segment
    if any(logs.get(name, b"" if name not in unproven else content) != content for name, content in whole.items()):
        assert flaws, did
    try:
        start(root, lambda log_dir: compare(log_dir, flaws, did, clean=clean))
    except CorruptLogError:
        assert [flaw for flaw in found.flaws if flaw.at_start is AtStart.REFUSE], did


def compare(log_dir: LogDir, flaws: list[Flaw], did: list[str], *, clean: bool) -> None:
    """A real start against what was said of it."""
    told = {flaw.at_start for flaw in flaws}
    if TP in log_dir.offline:
        assert AtStart.REFUSE in told, (did, flaws)
        return
    assert AtStart.REFUSE not in told, (did, flaws)
    if TP not in log_dir.logs:
        assert AtStart.REMOVE in told, (did, flaws)
        return
    log = log_dir.logs[TP]
    cut = [flaw.offset for flaw in flaws if flaw.at_start is AtStart.CUT]
    if cut:
        assert log.log_end_offset == min(cut), (did, flaws)
    condition = log_dir.findings.all[TP].condition
    if not flaws:
        assert condition is LogCondition.INTACT, did
        assert log.log_end_offset == 90 or not clean, did
    if condition is not LogCondition.INTACT:
        assert cut or any(flaw.kind is Kind.SHORT for flaw in flaws), (did, flaws)
    rotten = [flaw for flaw in flaws if flaw.kind in (Kind.BATCH, Kind.EPOCHS) and flaw.at_start is AtStart.HEAL]
    offset = int(log.log_start_offset)
    assert offset == 0 or any(flaw.kind is Kind.GAP for flaw in flaws) or not clean, (did, flaws)
    while offset < log.log_end_offset and not rotten:
        read = log.read(offset, 1 << 20, log.log_end_offset)
        assert read is not None
        assert read.data, (did, flaws)
        offset = int(read.next_offset)


@pytest.mark.parametrize("seed", range(40))
def test_a_repair_makes_nothing_look_better(templates: dict[bool, Path], tmp_path: Path, seed: int) -> None:
    """After a repair a start finds what it would have found without: the same ends, conditions no better, and nothing
    usable that was refused. What a repair says that it repaired is found no more."""
    rng = random.Random(1000 + seed)
    root, other = tmp_path / "data", tmp_path / "other"
    shutil.copytree(templates[rng.random() < 0.5], root)
    for _ in range(rng.choice([1, 2, 3])):
        damage(root, rng)
    shutil.copytree(root, other)
    told = CliRunner().invoke(main, ["log", "repair", str(other), "--yes", "-o", "json"])
    assert told.exit_code in (0, 1), told.output
    repaired = {(flaw["file"], flaw["found"]) for flaw in json.loads(told.stdout)["repaired"]}
    assert not repaired & {(flaw.file, flaw.found) for flaw in verify(other).flaws}
    assert _start(other) == _start(root)


def _start(root: Path) -> tuple[object, ...]:
    found: list[object] = []

    def look(log_dir: LogDir) -> None:
        log = log_dir.logs.get(TP)
        finding = log_dir.findings.all.get(TP)
        found.append(None if finding is None else finding.condition)
        found.append(None if log is None else (log.log_start_offset, log.log_end_offset, log.latest_epoch))

    start(root, look)
    return tuple(found)
