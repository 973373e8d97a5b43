"""The wheel, not the checkout: built, unpacked elsewhere, and every module of it imported there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

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


def test_every_module_of_the_wheel_imports_outside_the_checkout(tmp_path: Path) -> None:
    built = tmp_path / "dist"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(built), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = built.glob("strandline-*.whl")
    home = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(home)
    assert "strandline/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "bench/")) for name in names)
    environment = {**os.environ, "PYTHONPATH": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, str(home)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
