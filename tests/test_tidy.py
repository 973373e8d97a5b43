"""Tidiness that only tightens: file and function length, banned words, the layout. Lower a bound when you can."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("proto", "cli", "cluster", "controller", "replica", "log", "client", "lake", "tools", "spark", "chaos")

FILE_LINES_MAX = 1_000
"""One subject, one file: a file is split by role before this, and never by length alone."""
FUNCTION_LINES_MAX = 90

BANNED_EVERYWHERE = {
    r"\b(TODO|FIXME|XXX|HACK)\b": "finish it, or write it into the change log's limits",
    r"NotImplementedError": "a part that is not there must not look as if it were",
    r"time\.sleep\(": "waits by time: wait for the condition",
    r"\bshield\(": "reports failures that others hear of, from Python 3.14 on: proto.tasks.shared",
}
BANNED_IN_NODE = {
    r"\btime\.(time|monotonic|perf_counter)(_ns)?\(": "time comes in through the Clock port",
    r"\brandom\.(random|randint|choice|uniform|shuffle)\(": "chance comes in through the Rng port",
    r"\b(uuid4|urandom)\(": "chance comes in through the Rng port",
    r"\bwait_for\(": "can swallow a cancellation on Python 3.11: asyncio.timeout",
    r"\b(to_thread|threading\.Thread)\(": "threads are invisible to the simulator: the Disk port",
}
ASSERTS_MAX = {"controller": 0, "replica": 12, "log": 0, "cluster": 16}
"""`assert` is gone under `python -O`: `proto.ensure`, or an error that says what to do. Only lower these."""
WORLD = {
    # The production twins of the ports, and the synchronous client's background loop: the edge of the world.
    "src/strandline/proto/system.py",
    "src/strandline/log/real_disk.py",
    "src/strandline/log/real_sync.py",
    "src/strandline/client/loop_thread.py",
}
IN_NODE = (
    "proto",
    "log",
    "controller",
    "replica",
    "cluster/broker",
    "cluster/node/internal",
    "client/aio",
)


def tracked(*patterns: str) -> list[str]:
    """Files that git keeps, and those that the next commit of all would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def sources() -> list[str]:
    return tracked("src/*.py", "tests/*.py", "bench/*.py", "interop/*.py", "lab/*.py")


def test_files_are_short() -> None:
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in sources()}
    long = {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX}
    assert not long, f"split by role: {long}"


def functions(name: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name}:{node.name}", (node.end_lineno or 0) - node.lineno + 1


def test_functions_are_short() -> None:
    long = {at: lines for name in sources() for at, lines in functions(name) if lines > FUNCTION_LINES_MAX}
    assert not long, f"split by step: {long}"


AWAITED_TASKS = {
    # Whoever makes these awaits them, or looks at their end: an error of theirs is somebody's.
    "src/strandline/proto/tasks.py": 1,  # the helper itself
    "src/strandline/log/syncer.py": 1,  # the answer of a disk
    "src/strandline/log/watched_disk.py": 1,  # the same
    "src/strandline/log/real_disk.py": 1,  # the same
    "src/strandline/log/tier/reading.py": 1,
    "src/strandline/log/tier/restoring.py": 1,
    "src/strandline/log/object_store.py": 2,
    "src/strandline/replica/leader_stream.py": 1,
    "src/strandline/replica/fetcher.py": 1,
    "src/strandline/replica/tiering.py": 1,
    "src/strandline/controller/broker_session.py": 1,
    "src/strandline/controller/session_server.py": 1,  # of a TaskGroup
    "src/strandline/cluster/groups/internal_topic.py": 1,
    "src/strandline/cluster/broker/connection.py": 1,
    "src/strandline/cluster/broker/handlers/producers.py": 1,
    "src/strandline/cluster/node/broker_role.py": 2,
    "src/strandline/cluster/node/internal/grpc_server.py": 1,
    "src/strandline/cluster/node/run_node.py": 2,
}


def offences(names: list[str], banned: dict[str, str]) -> list[str]:
    found = []
    for name in names:
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            found += [f"{name}:{number}: {reason}" for pattern, reason in banned.items() if re.search(pattern, line)]
    return found


def test_no_banned_words() -> None:
    names = [name for name in sources() if name.startswith(("src/", "lab/"))]
    assert not offences(names, BANNED_EVERYWHERE)


def test_a_node_reaches_the_world_through_its_ports() -> None:
    names = [
        name
        for name in sources()
        if name not in WORLD and any(name.startswith(f"src/strandline/{folder}/") for folder in IN_NODE)
    ]
    assert names
    assert not offences(names, BANNED_IN_NODE)


def test_json_of_others_is_read_in_one_place() -> None:
    """Deep brackets end Python's reader by a RecursionError: `proto.json_text.read_json` says ValueError."""
    names = [name for name in sources() if name.startswith("src/") and name != "src/strandline/proto/json_text.py"]
    assert not offences(names, {r"\bjson\.loads?\(": "read_json"})


def test_commands_write_in_one_place() -> None:
    """Rule A29: what reaches a terminal goes through `cli.screen`, which makes text from outside printable."""
    names = [name for name in sources() if name.startswith("src/") and name != "src/strandline/cli/screen.py"]
    assert not offences(names, {r"\bclick\.(echo|secho|confirm|echo_via_pager)\(": "cli.screen"})


def test_no_task_of_a_node_ends_unseen() -> None:
    """Schedule 59: what nobody awaits is started by `proto.tasks.spawn`, which tells of its unforeseen end."""
    folders = tuple(f"src/strandline/{folder}/" for folder in ("proto", "log", "replica", "controller", "cluster"))
    made = {
        name: len(re.findall(r"\b(?:create_task|ensure_future)\(", (ROOT / name).read_text()))
        for name in sources()
        if name.startswith(folders)
    }
    assert {name: count for name, count in made.items() if count} == AWAITED_TASKS


@pytest.mark.parametrize("folder", ASSERTS_MAX)
def test_no_safety_check_vanishes_under_python_o(folder: str) -> None:
    names = [name for name in sources() if name.startswith(f"src/strandline/{folder}/")]
    assert names
    found = [
        f"{name}:{node.lineno}"
        for name in names
        for node in ast.walk(ast.parse((ROOT / name).read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert len(found) <= ASSERTS_MAX[folder], f"ensure or present of proto/ensure.py: {found}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_has_its_link_at_the_top(folder: str) -> None:
    link = ROOT / folder
    assert link.is_symlink()
    assert link.readlink() == Path("src/strandline") / folder
    assert (link / "__init__.py").is_file()


def test_no_path_of_a_machine() -> None:
    pattern = re.compile(r"/(work|root|home/\w+)/(?!\.\.\.)")
    names = [name for name in tracked() if not (ROOT / name).is_symlink() and not name.endswith((".png", ".bin"))]
    this = Path(__file__).relative_to(ROOT).as_posix()
    found = [name for name in names if name != this and pattern.search((ROOT / name).read_text(errors="replace"))]
    assert not found


def test_every_package_says_what_it_is() -> None:
    names = tracked("src/*.py", "lab/*.py")
    silent = [name for name in names if not ast.get_docstring(ast.parse((ROOT / name).read_text()))]
    assert not silent, f"a sentence at the head of each module: {silent}"
