"""The wheel, not the checkout: built, unpacked elsewhere, and every module of it imported there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.rolling import wheel_of

ROOT = Path(__file__).parent.parent

SLACK_LINES = 500
"""A room that is so much smaller than its bound has a bound that bounds nothing."""

ROW = re.compile(r"^\| `([a-z/]+)` \| ([\d,]+) \| [^|]+ \|$", re.MULTILINE)
"""Of the table of rooms in docs/design.md: room, lines at most, and the reason for its last growth."""

IMPORT_ALL = """
import importlib, pathlib, pkgutil, sys
import strandline, pyspark_strandline
home = pathlib.Path(sys.argv[1])
assert pathlib.Path(strandline.__file__).is_relative_to(home), strandline.__file__
names = [module.name for module in pkgutil.walk_packages(strandline.__path__, "strandline.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked."""
    return wheel_of(ROOT, tmp_path_factory.mktemp("wheel") / "present")


def test_the_wheel_holds_what_a_user_runs(home: Path) -> None:
    """The package, and nothing that only a checkout can use."""
    [metadata] = home.glob("*.dist-info")
    [scripts] = home.glob("*.data")
    assert {path.name for path in home.iterdir()} == {"strandline", "pyspark_strandline", metadata.name, scripts.name}
    assert [str(path.relative_to(scripts)) for path in scripts.rglob("*") if path.is_file()] == [
        "scripts/strandline-python"
    ]
    assert (home / "strandline/py.typed").is_file()
    assert list(metadata.rglob("LICENSE"))


def test_each_room_of_the_wheel_stays_within_its_lines(home: Path) -> None:
    """The bound of a room rises with a reason in docs/design.md."""
    bounds = {room: int(lines.replace(",", "")) for room, lines in ROW.findall((ROOT / "docs/design.md").read_text())}
    found = dict.fromkeys(bounds, 0)
    for path in (home / "strandline").glob("*/**/*.py"):
        place = path.relative_to(home / "strandline").as_posix()
        if place != "cluster/__init__.py":  # it has four rooms
            [room] = [room for room in bounds if place.startswith(f"{room}/")]
            found[room] += len(path.read_text().splitlines())
    too_large = {room: lines for room, lines in found.items() if lines > bounds[room]}
    assert not too_large, "what is repeated, dead, or of use in a checkout alone?"
    too_wide = {room: lines for room, lines in found.items() if lines <= bounds[room] - SLACK_LINES}
    assert not too_wide, "lower these bounds"


def test_every_module_of_the_wheel_imports_outside_the_checkout(home: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, str(home)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
