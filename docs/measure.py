"""Measure the code of a commit and of this tree: the table "before and after" of design.md.

    python docs/measure.py               prints the table
    python docs/measure.py --write       and puts it into docs/design.md

Each of the two is built as a wheel and measured from it, so that what is counted is what users install. Lines are those
of Python files, comments and blank lines included, without the modules that protoc generates. A room is a folder that
the layers of pyproject.toml name. An import climbs when it leads from a room to one that stands above it, or beside it;
a circle is a set of modules that import each other. Imports under TYPE_CHECKING count.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
BEFORE = "482129d"
SHORT_LINES = 50

ROOMS = (
    ("strandline.chaos.mutants", "lab"),
    ("strandline.chaos.explore", "lab"),
    ("strandline.chaos", "chaos"),
    ("strandline.cli", "cli"),
    ("strandline.cluster.cli", "cli"),
    ("strandline.client.commands", "cli"),
    ("strandline.tools", "tools"),
    ("strandline.client.copying", "tools"),
    ("strandline.client.backup", "tools"),
    ("strandline.client.dead_letters", "tools"),
    ("strandline.client.replay", "tools"),
    ("strandline.client.watch", "tools"),
    ("strandline.client", "client"),
    ("strandline.lake", "lake"),
    ("strandline.cluster.groups", "cluster/groups"),
    ("strandline.cluster.coordinator", "cluster/groups"),
    ("strandline.cluster.broker", "cluster/broker"),
    ("strandline.cluster.kafka", "cluster/broker"),
    ("strandline.cluster.service", "cluster/broker"),
    ("strandline.cluster.security", "cluster/security"),
    ("strandline.cluster", "cluster/node"),
    ("strandline.spark", "spark"),
    ("strandline.replica", "replica"),
    ("strandline.controller", "controller"),
    ("strandline.log", "log"),
    ("strandline.proto", "proto"),
    ("lab", "lab"),
)
"""The room of a module: the first prefix that fits. Folders of before stand for the rooms that their parts went to."""

LEVELS: Mapping[str, int] = {
    "lab": 10,
    "chaos": 9,
    "cli": 8,
    "cluster/node": 7,
    "cluster/broker": 6,
    "cluster/groups": 5,
    "spark": 5,
    "tools": 5,
    "cluster/security": 4,
    "client": 4,
    "lake": 4,
    "controller": 4,
    "replica": 4,
    "log": 3,
    "proto": 2,
}
"""The floor on which a room stands; those of one floor do not import each other."""


@dataclass(frozen=True)
class Figures:
    """What was measured of one version.

    Attributes:
        rooms: files and lines of each.
        beside: of the lab, where it stands beside the package.
        short: files below SHORT_LINES.
        longest_file, longest_function: lines, and where.
        climbing: imports, as "importer -> imported".
        circles: how many modules each has.
        walk: files that one record passes through, and how many of them it enters by more than two doors.
    """

    rooms: Mapping[str, tuple[int, int]]
    beside: tuple[int, int] | None
    short: int
    longest_file: tuple[int, str]
    longest_function: tuple[int, str]
    climbing: list[str]
    circles: list[int]
    walk: tuple[int, int]

    @property
    def files(self) -> int:
        """Of all rooms in the wheel."""
        return sum(files for files, _ in self.rooms.values())

    @property
    def lines(self) -> int:
        """Of all rooms in the wheel."""
        return sum(lines for _, lines in self.rooms.values())


def room_of(module: str) -> str | None:
    """None: the package itself."""
    for prefix, room in ROOMS:
        if module == prefix or module.startswith(f"{prefix}."):
            return room
    return None


def imports(packages: Iterable[str]) -> dict[str, set[str]]:
    """Which modules each module imports."""
    import grimp

    graph = grimp.build_graph(*packages, include_external_packages=False, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in sorted(graph.modules)}


def climbing(graph: Mapping[str, set[str]]) -> list[str]:
    """Imports that lead up, or to a neighbour."""
    found = []
    for module, imported in graph.items():
        for other in sorted(imported):
            here, there = room_of(module), room_of(other)
            if here and there and here != there and LEVELS[there] >= LEVELS[here]:
                found.append(f"{module} -> {other}")
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph.get(module, ())):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            circle = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(circle) > 1:
                found.append(circle)

    sys.setrecursionlimit(10_000)
    for module in graph:
        if module not in index:
            visit(module)
    return sorted(found, key=len, reverse=True)


def measured(source: Path, installed: Path) -> Figures:
    """The figures of a package that is unpacked in `installed`; in a process of its own, see `measure`."""
    lab = [len(path.read_text().splitlines()) for path in source.glob("lab/**/*.py")]
    files = [path for path in sorted(installed.rglob("strandline/**/*.py")) if "_pb2" not in path.name]
    lines = {path: len(path.read_text().splitlines()) for path in files}
    rooms: dict[str, list[int]] = {}
    for path, count in lines.items():
        module = ".".join(path.relative_to(installed).with_suffix("").parts)
        rooms.setdefault(room_of(module) or "strandline", []).append(count)
    functions = [
        (count, f"{path.relative_to(installed)}, {name}") for path in files for name, count in _functions(path)
    ]
    graph = imports(["strandline"])
    longest = max(lines, key=lambda path: lines[path])
    return Figures(
        rooms={room: (len(counts), sum(counts)) for room, counts in rooms.items()},
        beside=(len(lab), sum(lab)) if lab else None,
        short=sum(count < SHORT_LINES for count in lines.values()),
        longest_file=(lines[longest], str(longest.relative_to(installed))),
        longest_function=max(functions),
        climbing=climbing(graph),
        circles=[len(circle) for circle in circles(graph)],
        walk=_walk(),
    )


def _functions(path: Path) -> Iterable[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or 0) - node.lineno + 1


def _walk() -> tuple[int, int]:
    import walk

    stops = walk.follow().stops
    return len(stops), sum(len(stop.most_doors) > walk.DOORS for stop in stops)


def measure(commit: str | None) -> Figures:
    """Build a wheel of a commit (None: of this tree), unpack it and measure it."""
    with tempfile.TemporaryDirectory(prefix="measure-") as name:
        source, installed = Path(name) / "source", Path(name) / "installed"
        source.mkdir()
        _copy(commit, source)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
        subprocess.run([*command, name, source], check=True, capture_output=True)
        [wheel] = Path(name).glob("*.whl")
        with ZipFile(wheel) as packed:
            packed.extractall(installed)
        code = "import measure, sys; print(measure.as_json(measure.measured(*map(measure.Path, sys.argv[1:]))))"
        done = subprocess.run(
            [sys.executable, "-c", code, source, installed],
            env={"PYTHONPATH": f"{installed}:{Path(__file__).parent}", "PATH": ""},
            cwd=name,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return Figures(**json.loads(done.stdout))


def as_json(figures: Figures) -> str:
    """For the process that asked."""
    return json.dumps(asdict(figures))


def _copy(commit: str | None, to: Path) -> None:
    """The files of a commit, or those of this tree that git knows."""
    if commit is not None:
        listed = ["git", "archive", commit]
        packed = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
    else:
        listed = ["git", "ls-files", "-z", "src", "lab", "pyproject.toml", "README.md", "LICENSE"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
        there = b"\0".join(each for each in names.split(b"\0") if each and (ROOT / each.decode()).exists())
        pack = ["tar", "--null", "--files-from=-", "--create", "--file=-"]
        packed = subprocess.run(pack, cwd=ROOT, input=there, check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract", "--file=-"], cwd=to, input=packed, check=True)


def table(before: Figures, after: Figures) -> str:
    """Side by side, for design.md."""
    rows: list[tuple[str, str, str]] = []

    def row(what: str, shown: Callable[[Figures], str]) -> None:
        rows.append((what, shown(before), shown(after)))

    row(
        "`lab`, beside the package now: files, lines", lambda figures: _pair(figures.beside or figures.rooms.get("lab"))
    )
    for room in sorted({*before.rooms, *after.rooms} - {"strandline", "lab"}, key=lambda name: (-LEVELS[name], name)):
        row(f"`{room}`: files, lines", lambda figures, room=room: _pair(figures.rooms.get(room)))
    row("**the wheel**: files, lines", lambda figures: _pair((figures.files, figures.lines)))
    row(f"files below {SHORT_LINES} lines", lambda figures: f"{figures.short}")
    row("the longest file", lambda figures: _longest(figures.longest_file))
    row("the longest function", lambda figures: _longest(figures.longest_function))
    row("imports that climb", lambda figures: f"{len(figures.climbing)}")
    row("circles of imports, modules in each", lambda figures: _circles(figures.circles))
    row("files on the walk of one record", lambda figures: f"{figures.walk[0]}")
    row("of these, entered by more than two doors", lambda figures: f"{figures.walk[1]}")
    head = ["| what | before | after |", "|---|---|---|"]
    return "\n".join([*head, *(f"| {what} | {old} | {new} |" for what, old, new in rows)])


def _pair(counts: tuple[int, int] | None) -> str:
    return "" if counts is None else f"{counts[0]}, {counts[1]:,}"


def _longest(found: tuple[int, str]) -> str:
    return f"{found[0]} lines: `{found[1].removeprefix('strandline/')}`"


def _circles(sizes: list[int]) -> str:
    counted = Counter(sizes)
    shown = ", ".join(f"{size}" + (f" ({counted[size]} times)" if counted[size] > 1 else "") for size in counted)
    return f"{len(sizes)}: {shown}" if sizes else "0"


def rooms_diagram() -> str:
    """The rooms and which import which, as Mermaid; an import that a longer way implies is left out."""
    graph = imports(["strandline", "lab"])
    edges = {
        (here, there)
        for module, imported in graph.items()
        for other in imported
        if (here := room_of(module)) and (there := room_of(other)) and here != there
    }
    ways = {room: {there for here, there in edges if here == room} for room in LEVELS}
    shown = [
        (here, there) for here, there in edges if not any(_leads(ways, way, there) for way in ways[here] - {there})
    ]
    lines = ["```mermaid", "flowchart TD"]
    used = {room for edge in edges for room in edge}
    lines += [f'    {_id(room)}["{room}"]' for room in LEVELS if room in used]
    lines += [
        f"    {_id(here)} --> {_id(there)}" for here, there in sorted(shown, key=lambda edge: (-LEVELS[edge[0]], edge))
    ]
    return "\n".join([*lines, "```"])


def _leads(ways: Mapping[str, set[str]], start: str, end: str) -> bool:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        room = waiting.pop()
        if room == end:
            return True
        if room not in seen:
            seen.add(room)
            waiting += ways[room]
    return False


def _id(room: str) -> str:
    return room.replace("/", "_")


def main() -> None:
    """Print the table, and write it if asked."""
    parser = argparse.ArgumentParser(description="Measure the code of a commit and of this tree.")
    parser.add_argument("--before", default=BEFORE, help=f"the commit to compare with (default: {BEFORE})")
    parser.add_argument("--write", action="store_true", help="write the table into docs/design.md")
    parser.add_argument("--list", action="store_true", help="list the imports that climb in this tree")
    chosen = parser.parse_args()
    after = measure(None)
    if chosen.list:
        print("\n".join(after.climbing))
    text = table(measure(chosen.before), after)
    print(text)
    if chosen.write:
        page = ROOT / "docs" / "design.md"
        part = re.compile(r"(<!-- measured: [^>]*-->\n).*?(<!-- /measured -->)", re.DOTALL)
        page.write_text(part.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page.read_text()))


if __name__ == "__main__":
    main()
