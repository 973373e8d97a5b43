"""Who may read what a node keeps (rule A19): nobody but its user, whatever the umask says; what an older build made is
closed at the start."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from strandline.cluster.node.dev import DevCluster
from strandline.log.disk import write_file_durably
from strandline.log.real_disk import RealDisk

CLOSED = "other accounts of this machine could read the node's files: they no longer can"


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def open_to_others(root: Path) -> list[str]:
    """Paths that another account could reach, and read or change."""
    found = []
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            if mode(os.path.join(directory, name)) & 0o077:
                found.append(os.path.join(directory, name))
    return found


def test_what_a_disk_makes_is_for_its_user_alone(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.mkdir(f"{tmp_path}/data/t-0")
    disk.open(f"{tmp_path}/data/t-0/00.log", create=True).close()
    write_file_durably(disk, f"{tmp_path}/data/t-0/small", b"x")
    assert (mode(f"{tmp_path}/data/t-0"), open_to_others(tmp_path / "data/t-0")) == (0o700, [])
    disk.mkdir(f"{tmp_path}/data/t-0")  # fine if it is there
    with pytest.raises(OSError, match="exists"):
        disk.mkdir(f"{tmp_path}/data/t-0/small")


def test_what_an_older_build_made_is_closed_and_told_once(tmp_path: Path) -> None:
    """The directory, what stands in it, the files of the metadata log. A group that was let in stays; a link leads
    nowhere."""
    data, outside = tmp_path / "data", tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    for name in ("meta.properties", "t-0/00.log", "__cluster_metadata-0/00.log", "__cluster_metadata-0/quorum-state"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("")
    (data / "link").symlink_to(outside)
    data.chmod(0o755)
    disk = RealDisk()
    with capture_logs() as logs:
        disk.lock(str(data)).release()
        disk.lock(str(data)).release()
    assert [(line["event"], line["directory"]) for line in logs] == [(CLOSED, str(data))]
    assert (mode(data), mode(outside)) == (0o750, 0o644)
    for name in ("meta.properties", "t-0", "__cluster_metadata-0/00.log", "__cluster_metadata-0/quorum-state"):
        assert mode(data / name) & 0o007 == 0


def test_a_cluster_keeps_no_secret_where_others_read_it(tmp_path: Path) -> None:
    """The metadata log with SCRAM keys, snapshots, quorum files, configurations, certificates, the login of its user:
    real processes, with the usual umask."""
    root = tmp_path / "dev"
    with DevCluster(root, nodes=1, secure=True, sasl=True):
        pass
    assert mode(root) == 0o700
    public = [str(root / "certs"), str(root / "cluster.json")]  # names and ports; and the root is closed
    assert [path for path in open_to_others(root) if path not in public] == []
