"""Measure the code of a commit and of this tree: the table "before and after" of design.md.

    python docs/measure.py               prints the table
    python docs/measure.py --write       and puts it into docs/design.md

Each of the two is built as a wheel and measured from it, so that what is counted is what users install. Lines are those
of Python files, comments and blank lines included, without the modules that protoc generates. Statements are those of
Python's grammar, without docstrings. A room is a folder that the layers of pyproject.toml name. An import climbs when
it leads from a room to one that stands above it, or beside it; a circle is a set of modules that import each other.
Imports under TYPE_CHECKING count.

What a setting, an operation of the controller, an API and a metadata record cost is counted by their names: the files
of the wheel that name one, in any spelling (`CreateTopics`, `create_topics`, `create.topics`). The median is shown, of
those that both versions have. Tests show, with a made-up one of each, how little one more takes:
tests/cluster/broker/test_rows_of_settings.py, tests/controller/test_operations.py,
tests/cluster/broker/test_rows_of_apis.py, tests/controller/metadata/test_table.py; and
tests/client/test_admin_operations.py, tests/proto/kafka/test_declared.py.

Seconds of tests are those that tests/durations.json of the version keeps, added up over all workers; seconds of lint
are those of the last `make lint` on this machine (build/lint-seconds). An empty cell: not kept.
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
from statistics import median
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
BEFORE = "53dd7cb1"
SHORT_LINES = 50

ROOMS = (
    ("strandline.chaos", "chaos"),
    ("strandline.cli", "cli"),
    ("strandline.tools", "tools"),
    ("strandline.client", "client"),
    ("strandline.lake", "lake"),
    ("strandline.cluster.groups", "cluster/groups"),
    ("strandline.cluster.transactions", "cluster/transactions"),
    ("strandline.cluster.broker", "cluster/broker"),
    ("strandline.cluster.security", "cluster/security"),
    ("strandline.cluster", "cluster/node"),
    ("strandline.spark", "spark"),
    ("strandline.replica", "replica"),
    ("strandline.controller", "controller"),
    ("strandline.log", "log"),
    ("strandline.proto", "proto"),
    ("lab", "lab"),
)
"""The room of a module: the first prefix that fits."""

LEVELS: Mapping[str, int] = {
    "lab": 11,
    "chaos": 10,
    "cli": 9,
    "cluster/node": 8,
    "cluster/broker": 7,
    "cluster/transactions": 6,
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


Counts = tuple[int, int, int]
"""Files, lines, statements."""

KINDS = ("setting", "operation of the controller", "API", "metadata record")
"""Kinds of things that are added most often."""

_MADE = ("strandline/client/settings.py",)
"""Written by docs/generate.py: a name there costs nothing."""


@dataclass(frozen=True)
class Figures:
    """Figures of one version.

    Attributes:
        rooms: files, lines and statements of each.
        lab: the same of the lab, which stands beside the package.
        short: files below SHORT_LINES.
        one_importer: modules that one other module of the wheel imports, and their lines.
        longest_file, longest_function: lines, and where.
        climbing: imports, as "importer -> imported".
        circles: how many modules each has.
        walk: files that one record passes through, and how many of them it enters by more than two doors.
        anchored: mutants that name `Partition.append`, or its source text: a rename breaks them.
        test_seconds: of all files of tests together; None: not kept.
        named_in: for each kind of `KINDS`, in how many files each of its names stands.
    """

    rooms: Mapping[str, Counts]
    lab: Counts
    short: int
    one_importer: tuple[int, int]
    longest_file: tuple[int, str]
    longest_function: tuple[int, str]
    climbing: list[str]
    circles: list[int]
    walk: tuple[int, int]
    anchored: int
    test_seconds: float | None
    named_in: Mapping[str, Mapping[str, int]]

    @property
    def wheel(self) -> Counts:
        """Files, lines and statements of all rooms in the wheel."""
        files, lines, statements = (sum(column) for column in zip(*self.rooms.values(), strict=True))
        return files, lines, statements


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


def measured(source: Path, installed: Path, names: Path) -> Figures:
    """The figures of a package that is unpacked in `installed`; in a process of its own, see `measure`.

    `names` is a file with the names to look for, as `names_of_kinds` gives them.
    """
    texts = {
        str(path.relative_to(installed)): path.read_text()
        for path in sorted(installed.rglob("strandline/**/*.py"))
        if "_pb2" not in path.name
    }
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    rooms: dict[str, list[tuple[int, int]]] = {}
    for path, tree in trees.items():
        rooms.setdefault(room_of(_module(path)) or "strandline", []).append((lines[path], statements(tree)))
    lab = [path.read_text() for path in source.glob("lab/**/*.py")]
    graph = imports(["strandline"])
    alone = single_importers(graph)
    longest = max(lines, key=lambda path: lines[path])
    kept = source / "tests" / "durations.json"
    return Figures(
        rooms={room: (len(counts), *map(sum, zip(*counts, strict=True))) for room, counts in rooms.items()},
        lab=(len(lab), sum(len(text.splitlines()) for text in lab), sum(statements(ast.parse(text)) for text in lab)),
        short=sum(count < SHORT_LINES for count in lines.values()),
        one_importer=(len(alone), sum(count for path, count in lines.items() if _module(path) in alone)),
        longest_file=(lines[longest], longest),
        longest_function=max((count, f"{path}, {name}") for path in trees for name, count in _functions(trees[path])),
        climbing=climbing(graph),
        circles=[len(circle) for circle in circles(graph)],
        walk=_walk(),
        anchored=sum(anchored(text) for text in lab),
        test_seconds=sum(json.loads(kept.read_text())["files"].values()) if kept.exists() else None,
        named_in=named_in(json.loads(names.read_text()), texts),
    )


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def statements(tree: ast.AST) -> int:
    """Statements, without docstrings and other lone strings."""
    return sum(
        isinstance(node, ast.stmt) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(tree)
    )


def single_importers(graph: Mapping[str, set[str]]) -> set[str]:
    """Modules that exactly one other module imports."""
    importers = Counter(module for imported in graph.values() for module in imported)
    return {module for module, count in importers.items() if count == 1}


def anchored(text: str) -> int:
    """Strings in a file of the lab that name `Partition.append` as the place of a mutant."""
    return sum(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(":Partition.append")
        for node in ast.walk(ast.parse(text))
    )


def named_in(names: Mapping[str, Iterable[str]], texts: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Of each kind, each name with the number of files that have it; spelling by case, `_`, `.` and `-` aside."""
    plain = [_plain(text) for path, text in texts.items() if path not in _MADE]
    return {kind: {name: sum(_plain(name) in text for text in plain) for name in each} for kind, each in names.items()}


def _plain(text: str) -> str:
    return text.lower().translate({ord(sign): None for sign in "_.-"})


def names_of_kinds() -> dict[str, list[str]]:
    """The names of this tree, by `KINDS`. A name of one word is left out: it means too many other things."""
    sys.path.insert(0, str(ROOT))
    from strandline.cluster.broker.table import APIS
    from strandline.cluster.node.config import NodeConfig
    from strandline.controller.metadata.records import MetadataRecord
    from strandline.controller.metadata.settings import BROKER_SETTINGS, TOPIC_SETTINGS
    from strandline.controller.operations import OPERATIONS

    classes = [kind.__name__.removesuffix("Record") for kind in MetadataRecord.__subclasses__()]
    settings = [row.name for row in NodeConfig.rows.values()] + [*BROKER_SETTINGS, *TOPIC_SETTINGS]
    found = [sorted({*settings}), [each.name for each in OPERATIONS], [row.api.title for row in APIS.values()], classes]
    return {kind: [name for name in names if len(_words(name)) > 1] for kind, names in zip(KINDS, found, strict=True)}


def _words(name: str) -> list[str]:
    return re.findall(r"[A-Z]?[a-z0-9]+", name)


def _functions(tree: ast.AST) -> Iterable[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or 0) - node.lineno + 1


def _walk() -> tuple[int, int]:
    import walk

    stops = walk.follow().stops
    return len(stops), sum(len(stop.most_doors) > walk.DOORS for stop in stops)


def measure(commit: str | None) -> Figures:
    """Build a wheel of a commit (None: of this tree), unpack it and measure it."""
    with tempfile.TemporaryDirectory(prefix="measure-") as name:
        source, installed, names = Path(name) / "source", Path(name) / "installed", Path(name) / "names.json"
        names.write_text(json.dumps(names_of_kinds()))
        source.mkdir()
        _copy(commit, source)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
        subprocess.run([*command, name, source], check=True, capture_output=True)
        [wheel] = Path(name).glob("*.whl")
        with ZipFile(wheel) as packed:
            packed.extractall(installed)
        code = "import measure, sys; print(measure.as_json(measure.measured(*map(measure.Path, sys.argv[1:]))))"
        done = subprocess.run(
            [sys.executable, "-c", code, source, installed, names],
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
        listed = [
            "git",
            "ls-files",
            "-z",
            "src",
            "lab",
            "tests/durations.json",
            "pyproject.toml",
            "README.md",
            "LICENSE",
        ]
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

    row("`lab`, beside the package: files, lines, statements", lambda figures: _counts(figures.lab))
    for room in sorted({*before.rooms, *after.rooms} - {"strandline"}, key=lambda name: (-LEVELS[name], name)):
        row(f"`{room}`: files, lines, statements", lambda figures, room=room: _counts(figures.rooms.get(room)))
    row("**the wheel**: files, lines, statements", lambda figures: _counts(figures.wheel))
    row("files with one importer, and their lines", lambda figures: "{:,}, {:,}".format(*figures.one_importer))
    row(f"files below {SHORT_LINES} lines", lambda figures: f"{figures.short}")
    row("the longest file", lambda figures: _longest(figures.longest_file))
    row("the longest function", lambda figures: _longest(figures.longest_function))
    row("imports that climb", lambda figures: f"{len(figures.climbing)}")
    row("circles of imports, modules in each", lambda figures: _circles(figures.circles))
    row("files on the walk of one record", lambda figures: f"{figures.walk[0]}")
    row("of these, entered by more than two doors", lambda figures: f"{figures.walk[1]}")
    for kind in KINDS:
        both = [name for name, count in after.named_in[kind].items() if count and before.named_in[kind][name]]
        what = f"files that name a{'n' if kind[0] in 'oA' else ''} {kind}, median of {len(both)}"
        row(what, lambda figures, kind=kind, both=both: _median([figures.named_in[kind][name] for name in both]))
    row("mutants that a rename of `Partition.append` breaks", lambda figures: f"{figures.anchored}")
    row("seconds of `make test`, all workers together", lambda figures: _seconds(figures.test_seconds))
    lint = ROOT / "build" / "lint-seconds"
    rows.append(("seconds of `make lint`, warm", "", lint.read_text().strip() if lint.exists() else ""))
    head = ["| what | before | after |", "|---|---|---|"]
    return "\n".join([*head, *(f"| {what} | {old} | {new} |" for what, old, new in rows)])


def _counts(counts: Counts | None) -> str:
    return "" if counts is None else ", ".join(f"{count:,}" for count in counts)


def _median(counts: list[int]) -> str:
    return f"{median(counts):g}" if counts else ""


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.0f}"


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
