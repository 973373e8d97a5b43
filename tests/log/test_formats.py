"""Versions of the files in a directory: a newer one is refused before anything is changed (rule B35)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from click.testing import CliRunner
from crc32c import crc32c

from strandline.cli.main import main
from strandline.log.checkpoints import MetaProperties, encode_partition_metadata, with_checksum
from strandline.log.formats import FORMATS, FileVersion, Format, format_of, sealed, take_directory, unsealed
from strandline.log.real_disk import RealDisk
from strandline.log.rewriting import AWAY
from strandline.proto.errors import ConfigError
from strandline.proto.ids import NodeId
from tests.log.helpers import TOPIC_ID

PAGE = Path(__file__).resolve().parents[2] / "docs" / "storage.md"
OWN = [one for one in FORMATS if not one.guard]


def newer(one: Format) -> bytes:
    return sealed(one.version + 1, "9.8", b"what nobody knows yet")


def path_of(root: Path, one: Format) -> Path:
    return root / one.name.replace("T-P", "orders-3")


def whole(root: Path) -> Path:
    """A directory with every file that says its version itself, each of today's format."""
    for one in OWN:
        path = path_of(root, one)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"0\n0\n")
    (root / "meta.properties").write_bytes(MetaProperties("c", NodeId(1), TOPIC_ID).encode())
    (root / "orders-3" / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    take(root)
    return root


def tree(root: Path) -> Mapping[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != ".lock"}


def take(root: Path) -> None:
    disk = RealDisk()
    try:
        take_directory(disk, str(root)).release()
    finally:
        disk.close()


@pytest.mark.parametrize("away", ["", AWAY], ids=["in place", "moved away"])
@pytest.mark.parametrize("one", OWN, ids=lambda one: one.name)
def test_a_newer_file_is_refused_and_nothing_changes(one: Format, away: str, tmp_path: Path) -> None:
    root = whole(tmp_path)
    path = path_of(root, one)
    path.write_bytes(newer(one))
    os.rename(path, f"{path}{away}")
    before = tree(root)
    said = f"has the format {one.version + 1}, and this build, Strandline .*, reads it up to {one.version}"
    with pytest.raises(ConfigError, match=f"{said}. Install Strandline 9.8 or newer; nothing here was changed"):
        take(root)
    assert tree(root) == before


@pytest.mark.parametrize("one", OWN, ids=lambda one: one.name)
def test_a_rotten_head_is_damage_and_refuses_nothing(one: Format, tmp_path: Path) -> None:
    """A start that ends for one flipped bit helps nobody (rule B31)."""
    root = whole(tmp_path)
    data = newer(one)
    for at in range(0, len(data), 3):
        path_of(root, one).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        take(root)
    path_of(root, one).write_bytes(data[: len(data) // 2])
    take(root)


_PROMISE = b'{"leaderEpoch":3,"data_version":2%s}'


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("meta.properties", with_checksum(b"version=2\nnode.id=1\n")),
        ("orders-3/partition.metadata", with_checksum(b"version: 2\ntopic_id: x\n")),
        ("quorum-promise", _PROMISE % (b',"crc":%d' % crc32c(_PROMISE % b""))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_newer_version_under_a_checksum_of_its_own_counts_too(name: str, data: bytes, tmp_path: Path) -> None:
    root = whole(tmp_path)
    (root / name).write_bytes(data)
    with pytest.raises(ConfigError, match="Install the build that wrote it; nothing here was changed"):
        take(root)
    (root / name).write_bytes(data.replace(b"2", b"6", 1))
    take(root)


def test_what_is_sealed_is_unsealed() -> None:
    assert unsealed(sealed(7, "1.2.3", b"\0body\n")) == (FileVersion(7, "1.2.3"), b"\0body\n")
    assert unsealed(b"0\n0\n") == (FileVersion(0), b"0\n0\n")


def test_every_file_that_cannot_say_its_version_has_one_that_does() -> None:
    guards = {one.name for one in OWN}
    assert {one.guard for one in FORMATS if one.guard} <= guards


def test_the_table_and_the_page_have_the_same_files() -> None:
    section = PAGE.read_text().split("## What a node reads at its start")[1].split("\n## ")[0]
    said = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    sample = {name: name.replace("*/", "T-P/").replace("*", "00000000000000000000") for name in said}
    assert {name for name, path in sample.items() if format_of(path) is None} == set()
    known = {one.name for one in FORMATS}
    assert {one for one in known if not any(fnmatchcase(one, name) for name in said)} == set()


@pytest.mark.parametrize("words", [("log", "verify"), ("log", "repair", "--dry-run"), ("log", "repair", "--yes")])
def test_who_looks_at_a_stopped_node_refuses_too(words: tuple[str, ...], tmp_path: Path) -> None:
    """What is newer is no damage: nothing is shown as such, and nothing repaired."""
    root = whole(tmp_path)
    (root / "incarnations").write_bytes(sealed(1, "9.8", b"?"))
    before = tree(root)
    told = CliRunner().invoke(main, (*words, str(root)))
    assert told.exit_code != 0
    assert "Install Strandline 9.8 or newer" in told.output + told.stderr
    assert tree(root) == before
