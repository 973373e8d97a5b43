"""`strandline log repair`: what it changes, what it keeps, what it leaves, and what the next start then finds."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from strandline.chaos.sim.ports import Ports
from strandline.cli.main import main
from strandline.log.batch import parse_header
from strandline.log.checkpoints import RECOVERY_POINTS, encode_checked, encode_offsets
from strandline.log.findings import FINDINGS, LogCondition
from strandline.log.incarnations import Boots
from strandline.log.log_dir import LogDir
from strandline.log.offset_checkpoints import CHECKPOINT_COPY
from strandline.log.real_disk import RealDisk
from strandline.log.verify.flaws import AtStart, Flaw, Kind
from strandline.log.verify.repair import Repair
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from tests.log.helpers import TP
from tests.log.test_findings import SEGMENT, Machine, found, write_and_crash
from tests.log.test_verify import with_sequence
from tests.log.verifying import fingerprint, flip, made, segments, start, verify


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["log", "repair", *map(str, words)])


def repaired(root: Path, *, exit_code: int = 0) -> dict[str, Any]:
    """Repair for good, as a dry run said before."""
    before = fingerprint(root)
    dry = run(root, "--dry-run", "-o", "json")
    assert fingerprint(root) == before
    done = run(root, "--yes", "-o", "json")
    assert (dry.exit_code, done.exit_code) == (exit_code, exit_code), done.output
    rehearsed, document = json.loads(dry.stdout), json.loads(done.stdout)
    assert (rehearsed["changes"], rehearsed["left"]) == (document["changes"], document["left"])
    after = {change["after"]: change["bytes_after"] for change in document["changes"] if change["after"]}
    assert {name: (root / name).stat().st_size for name in after} == after
    gone = {change["before"] for change in document["changes"] if change["before"]}.difference(after)
    assert not [name for name in gone if (root / name).exists()]
    changed = {name for change in document["changes"] for name in (change["before"], change["after"]) if name}
    now = fingerprint(root)
    untouched = {name for name in before if name not in changed and (root / name).is_file()}
    assert {name: now[name] for name in untouched} == {name: before[name] for name in untouched}
    return dict(document)


def torn(tmp_path: Path) -> Path:
    """A node that was killed in the middle of a write."""
    root = made(tmp_path, stop=False)
    last = segments(root)[-1]
    (root / RECOVERY_POINTS).write_bytes(encode_offsets({TP: 60}))
    (root / "replication-offset-checkpoint").write_bytes(encode_offsets({TP: 60}))
    (root / CHECKPOINT_COPY).unlink()
    last.write_bytes(last.read_bytes()[:-5])
    return root


def test_a_torn_tail(tmp_path: Path) -> None:
    """It is cut where the start would cut it, what was cut is kept, and the log does not vouch for what it lost: the
    start after it tells the controller of a cut (schedule 45)."""
    root = torn(tmp_path)
    last = segments(root)[-1]
    before = last.read_bytes()
    document = repaired(root)
    assert [flaw["offset"] for flaw in document["repaired"]] == [87]
    kept = Path(document["kept_in"])
    [tail] = [name for name in document["kept"] if ".from-" in name]
    assert last.read_bytes() + (kept / tail).read_bytes() == before
    assert (root / FINDINGS).read_text() == encode_checked([f"{TP.topic} {TP.partition} cut"]).decode()
    assert verify(root).flaws == []

    def look(log_dir: LogDir) -> None:
        assert log_dir.logs[TP].log_end_offset == 87
        assert log_dir.findings.all[TP].condition is LogCondition.CUT

    start(root, look)


def test_hints(tmp_path: Path) -> None:
    """Indexes are built anew, the wrong snapshot is gone, the mark of a clean stop stays, and a start finds all."""
    root = made(tmp_path)
    whole = {path.name: path.read_bytes() for path in (root / str(TP)).iterdir()}
    stems = [path.with_suffix("") for path in segments(root)]
    stems[0].with_suffix(".index").write_bytes(struct.pack(">II", 5, 77))
    stems[1].with_suffix(".timeindex").write_bytes(struct.pack(">qI", 1_500_000_000_000, 2))
    stems[-1].with_suffix(".timeindex").unlink()
    newest = max((root / str(TP)).glob("*.snapshot"))
    newest.write_bytes(with_sequence(newest.read_bytes(), 1000))
    (root / str(TP) / "leader-epoch-checkpoint").write_bytes(b"0\n1\n0 0\n")
    document = repaired(root)
    assert (root / ".kafka_cleanshutdown").exists()
    after = {path.name: path.read_bytes() for path in (root / str(TP)).iterdir()}
    assert set(after) == set(whole) - {newest.name}
    assert not [name for name in after if after[name] != whole[name] and not name.endswith("index")]
    assert (Path(document["kept_in"]) / str(TP) / newest.name).exists()
    assert verify(root).flaws == []

    def look(log_dir: LogDir) -> None:
        assert log_dir.clean_shutdown_broker_epoch == 5
        assert log_dir.findings.all[TP].condition is LogCondition.INTACT
        entry = log_dir.logs[TP].producers.get(7)
        assert entry is not None
        assert entry.batches[-1].last_sequence == 89

    start(root, look)


def test_left_over_files(tmp_path: Path) -> None:
    """They are removed and kept; a swap is finished. What the node decides by its metadata is left."""
    root = made(tmp_path)
    log = root / str(TP)
    (log / f"{9:020d}.log.deleted").write_bytes(b"x")
    first = segments(root)[0]
    shutil.copy(first, f"{first}.swap")
    stray = root / "gone-1.0123-stray"
    stray.mkdir()
    document = repaired(root)
    assert [flaw["file"] for flaw in document["left"]] == [stray.name]
    assert "log.stray.delete.delay.ms" in document["left"][0]["instead"]
    assert {name.rpartition("/")[2] for name in document["kept"]} >= {f"{9:020d}.log.deleted", first.name}
    assert stray.exists()
    assert [flaw.at_start for flaw in verify(root).flaws] == [AtStart.IGNORE]


def test_what_no_repair_brings_back(tmp_path: Path) -> None:
    """Below what was durable nothing is cut; in such a log nothing at all is touched."""
    root = made(tmp_path, stop=False)
    last = segments(root)[-1]
    last.write_bytes(last.read_bytes()[:-5])
    (root / str(TP) / "x.tmp").write_bytes(b"")
    before = fingerprint(root)
    told = run(root, "--yes")
    assert told.exit_code == 1
    assert "no repair of the files brings back what is gone. Start the node" in told.stdout
    assert "0 findings repaired, 3 left." in told.stdout
    now = fingerprint(root)
    now.pop(".lock")
    assert now == before


def test_beside_rot(tmp_path: Path) -> None:
    """In a log with a damaged batch the indexes stay: by them a node finds what follows. The way out is said."""
    root = made(tmp_path)
    first = segments(root)[0]
    flip(first, parse_header(first.read_bytes()).size + 100)
    first.with_suffix(".index").write_bytes(b"half")
    document = repaired(root, exit_code=1)
    assert (document["repaired"], document["changes"], document["kept_in"]) == ([], [], None)
    instead = " ".join(flaw["instead"] for flaw in document["left"])
    assert "fetches the range from another replica" in instead
    assert "the index is all that tells" in instead

    def look(log_dir: LogDir) -> None:
        with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
            log_dir.logs[TP].read(3, 1000, 90)
        assert log_dir.logs[TP].read(6, 1000, 90) is not None

    start(root, look)


@pytest.mark.parametrize("how", ["kill", "power_cut"])
def test_struck_anywhere_a_cut_is_told(how: str) -> None:
    """Crash at every operation of a repair: the start after it tells of the cut, or finds the torn tail and then tells
    (schedule 45)."""
    ended = 0
    for operation in range(1, 110):
        machine = Machine(operation)
        told: list[dict[TopicPartition, LogCondition]] = []

        def repair(ports: Ports) -> None:
            assert Repair(ports.disk, "/data", ports.clock).run({str(TP): [TORN]}) == {}

        def begin(ports: Ports, told: list[dict[TopicPartition, LogCondition]] = told) -> None:
            told.append(found(LogDir.open(ports.disk, "/data", ports.clock)))

        async def scenario(machine: Machine, operation: int = operation) -> None:
            nonlocal ended
            assert await machine.live_until(write_and_crash, 0, machine.world.kill)
            content = machine.disk.files()[f"/data/{TP}/{SEGMENT}"].rstrip(b"\0")
            machine.disk.flip_bit(f"/data/{TP}/{SEGMENT}", len(content) - 2)
            ended += await machine.live_until(repair, operation, getattr(machine.world, how))
            assert await machine.live_until(begin, 0, machine.world.kill)

        machine.play(scenario)
        assert told[-1][TP] is LogCondition.CUT, operation
    assert 5 < ended < 105, "some were struck in the middle, some not at all"


TORN = Flaw(file=f"{TP}/{SEGMENT}", partition=str(TP), kind=Kind.BATCH, found="torn", offset=9, at_start=AtStart.CUT)


def test_the_boot_is_noted(tmp_path: Path) -> None:
    """After a reboot a repair is the first to use the directory: what it wrote may be in the page cache alone, and the
    next start must not take it for what was on the disk (schedule 47)."""
    root = torn(tmp_path)
    (root / ".boot-id").write_text("recovered.boot.id=before\nused.boot.id=before\n")
    disk = RealDisk()
    assert Boots(disk, str(root)).fresh
    repaired(root)
    assert not Boots(disk, str(root)).fresh
    assert not Boots(disk, str(root)).recovered
    disk.close()


def test_who_is_asked(tmp_path: Path) -> None:
    """Nothing without a yes, nothing beside a node."""
    root = torn(tmp_path)
    refused = run(root)
    assert refused.exit_code == 2
    assert "nobody is there to ask; see it with --dry-run, and say --yes" in refused.stderr
    disk = RealDisk()
    lock = disk.lock(str(root))
    for words in (("--yes",), ("--dry-run",)):
        beside = run(root, *words)
        assert beside.exit_code == 2
        assert "uses this directory" in beside.stderr
    lock.release()
    disk.close()
    assert len(verify(root).flaws) == 1
    shown = run(root, "--dry-run")
    assert shown.exit_code == 0
    assert f"would repair {TP}/" in shown.stdout
    assert "cut at byte" in shown.stdout
    nothing = run(made(tmp_path / "whole"), "--yes")
    assert nothing.exit_code == 0
    assert nothing.stdout == "0 findings repaired, 0 left.\n"
