"""`strandline tier` on a directory that has what nodes copied there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.log.helpers import TOPIC_ID, TP, FailingDisk, fill, open_test_log
from tests.log.tier.tiers import CLUSTER, copy_closed

from strandline.cli.main import main
from strandline.log.config import LogConfig
from strandline.log.object_store import open_store


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["tier", *map(str, words)])


@pytest.fixture
def tiered(tmp_path: Path) -> Path:
    """A store with three segments of 40 records, the second with a batch of 5 MB."""
    root, disk = tmp_path / "store", FailingDisk()
    log = open_test_log(disk, tmp_path / "log", config=LogConfig(preallocate_bytes=0, max_message_bytes=8 << 20))
    for number in range(3):
        fill(log, 19, count=2, size=200)
        fill(log, 1, count=2, size=5 << 19 if number == 1 else 10)
        log.roll()

    async def copy() -> None:
        store = open_store(f"file://{root}", {}, timeout_ms=10_000)
        await copy_closed(store, log)
        await store.close()

    asyncio.run(copy())
    log.close()
    disk.close()
    return root


def objects(root: Path, suffix: str) -> list[Path]:
    return sorted(root.rglob(f"*{suffix}"))


def test_what_is_in_a_store(tiered: Path) -> None:
    told = run("list", "--store", f"file://{tiered}", "-o", "json")
    assert (told.exit_code, told.stderr) == (0, "")
    [partition] = json.loads(told.stdout)["partitions"]
    assert (partition["cluster_id"], partition["topic"], partition["topic_id"]) == (CLUSTER, TP.topic, str(TOPIC_ID))
    assert [(item["base_offset"], item["end_offset"]) for item in partition["segments"]] == [
        (0, 40),
        (40, 80),
        (80, 120),
    ]
    assert [item["size_bytes"] for item in partition["segments"]] == [
        path.stat().st_size for path in objects(tiered, ".log")
    ]
    said = run("list", "--store", f"file://{tiered}", "--topic", TP.topic).stdout
    assert "120" in said
    assert "cluster" in said
    assert (
        json.loads(run("list", "--store", f"file://{tiered}", "--topic", "none", "-o", "json").stdout)["partitions"]
        == []
    )


def test_a_store_that_is_whole(tiered: Path) -> None:
    told = run("verify", "--store", f"file://{tiered}")
    assert told.exit_code == 0, told.output
    assert "3 segments" in told.stdout
    assert "Nothing found that is wrong." in told.stdout


def test_nothing_is_no_store_that_is_whole(tiered: Path) -> None:
    """A topic or a store whose name is mistyped is not "nothing found that is wrong"."""
    told = run("verify", "--store", f"file://{tiered}", "--topic", "none")
    assert (told.exit_code, "Nothing found that is wrong" in told.stdout) == (1, False)
    assert "There is no segment of a topic 'none' in file://" in told.stdout
    assert run("verify", "--store", f"file://{tiered}", "--topic", "none", "-o", "json").exit_code == 1
    said = run("list", "--store", f"file://{tiered}", "--topic", "none")
    assert (said.exit_code, "There is no segment of a topic 'none'" in said.stdout) == (0, True)


@pytest.mark.parametrize("command", ["list", "verify"])
def test_who_looks_makes_no_store(tmp_path: Path, command: str) -> None:
    """A directory below a mount that is gone would be one from then on, and the nodes would write to it."""
    bare = tmp_path / "bare"
    for made in (False, True):
        told = run(command, "--store", f"file://{bare}")
        assert told.exit_code == 2
        assert "its mount is gone" in told.stderr
        assert list(tmp_path.rglob("*")) == [bare] * made
        bare.mkdir(exist_ok=True)


def flaws(root: Path) -> list[dict[str, object]]:
    told = run("verify", "--store", f"file://{root}", "-o", "json")
    found: list[dict[str, object]] = json.loads(told.stdout)["flaws"]
    assert told.exit_code == bool(found)
    return found


def test_damage_is_found_where_it_is(tiered: Path) -> None:
    """In any byte of a log or a sidecar; an object that is cut; each with exit code 1."""
    for suffix, number, places in ((".log", 1, (0, 15, 700, -1)), (".index", 2, (0, 50, -1))):
        path = objects(tiered, suffix)[number]
        whole = path.read_bytes()
        for place in places:
            damaged = bytearray(whole)
            damaged[place] ^= 4
            path.write_bytes(damaged)
            [flaw] = flaws(tiered)
            assert flaw["object"] == str(path.relative_to(tiered))
        path.write_bytes(whole[:-1])
        assert [flaw["object"] for flaw in flaws(tiered)] == [str(path.relative_to(tiered))]
        path.write_bytes(whole)
    assert flaws(tiered) == []


def test_segments_that_are_missing(tiered: Path) -> None:
    """A gap is damage; what is being deleted at the front, or was not finished, is none."""
    logs, sidecars = objects(tiered, ".log"), objects(tiered, ".index")
    sidecars[0].unlink()
    assert flaws(tiered) == [], "a deletion was cut short"
    logs[2].unlink()
    (tiered / "README").write_text("not ours")
    told = run("verify", "--store", f"file://{tiered}")
    assert told.exit_code == 0, "nor was the copy finished"
    assert "1 attempt without a log" in told.stdout
    assert "1 object that no node has written" in told.stdout


def test_a_gap_is_damage(tiered: Path) -> None:
    for path in (objects(tiered, ".log")[1], objects(tiered, ".index")[1]):
        path.unlink()
    [flaw] = flaws(tiered)
    assert (flaw["offset"], flaw["found"]) == (40, "offsets 40 to 79 are missing")


def test_a_log_without_its_sidecar_is_damage(tiered: Path) -> None:
    objects(tiered, ".index")[1].unlink()
    assert [flaw["found"] for flaw in flaws(tiered)] == [
        "its sidecar is missing: it cannot be read",
        "offsets 40 to 79 are missing",
    ]


def test_a_wrong_command_line(tmp_path: Path) -> None:
    for words in (
        ["--store", "ftp://x"],
        ["--store", f"file://{tmp_path}", "-X", "region=x"],
        ["--store", "s3://b", "-X", "x"],
    ):
        told = run("list", *words)
        assert told.exit_code == 2, told.output
        assert "Traceback" not in told.output
