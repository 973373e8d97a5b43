"""The wheel, not the checkout: built, unpacked elsewhere, and every module of it imported there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LINES_MAX = 124_000
"""Lines of Python in the wheel, without what protoc writes. The bound rises with a reason in docs/design.md only."""

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
    work = tmp_path_factory.mktemp("wheel")
    config = work / "setup.cfg"  # a build directory of its own: another's still holds modules that have moved
    config.write_text(f"[build]\nbuild_base = {work / 'build'}\n")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work), str(ROOT)]
    environment = {**os.environ, "DIST_EXTRA_CONFIG": str(config)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = work.glob("strandline-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work / "site")
    return work / "site"


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


def test_the_wheel_stays_small(home: Path) -> None:
    lines = sum(len(path.read_text().splitlines()) for path in home.rglob("*.py"))
    assert lines <= LINES_MAX, "what is repeated, dead, or of use in a checkout alone?"


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
