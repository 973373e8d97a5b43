"""`make check`: lint of what was changed, and the tests that the change can reach, quick ones first.

A file of tests is reached where it imports a changed file, or something that imports it, and so on. As imports count:
modules whose name stands in a string (commands that are imported late, programs that are started), C that a module is
compiled from, and files whose name stands in a string. A conftest.py counts for the tests that use a fixture of it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

from lab.durations import in_order, seconds

ROOT = Path(__file__).parents[1]

ALWAYS = ("tests/test_tidy.py", "tests/test_citations.py", "tests/test_docs.py")
"""Tests that every run includes, for they read every file."""

WALKERS = {"src/strandline/": ("tests/lab/test_mutants.py", "tests/test_wheel.py")}
"""Tests that read every file of a folder, whatever they import."""

EVERYTHING = ("pyproject.toml", "tests/conftest.py")
"""Every test may depend on what stands there."""

_FOLDERS = ("src", "tests", "lab", "bench", "interop", "docs")
_MODULE = re.compile(r"(?:strandline|pyspark_strandline|tests|lab|bench|interop)(?:\.\w+)*\.?")
_PROGRAM = re.compile(r"(?:.*/)?strandline")
_BESIDE = re.compile(r"(?:\.\w+)+:\w+")
"""`.tier:tier`: of a command that stands in the package of the module that names it."""
_MAIN = "src/strandline/cli/main.py"


class Project:
    """Dependencies of each file of a project, by the text of the files."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._files = {
            path.relative_to(root).as_posix(): path
            for folder in _FOLDERS
            for path in sorted((root / folder).rglob("*.py"))
            if "__pycache__" not in path.parts
        }
        self._modules = {_module_of(name): name for name in self._files}
        self._below = _by_package(self._modules)
        self._compiled, self._plugins = _of_pyproject(root)
        self._strings: dict[str, set[str]] = {}
        self._fixtures: dict[str, set[str]] = {}
        self._names: dict[str, set[str]] = {}
        self._needs = {name: set(self._direct(name, path)) for name, path in self._files.items()}

    def reached(self, changed: Iterable[str]) -> list[str]:
        """The files of tests that a change of these files can reach, quick ones first."""
        changed = set(changed)
        tests = [name for name in self._files if re.search(r"^tests/(?:.*/)?test_\w+\.py$", name)]
        if changed & set(EVERYTHING):
            return in_order(tests)
        found = self._dependents(changed | {name for file in changed for name in self._mentions(file)})
        for name, path in self._files.items():
            if path.name == "conftest.py" and name in found:
                below = [test for test in tests if test.startswith(name.removesuffix("conftest.py"))]
                fixtures = self._fixtures[name]
                found |= {
                    test for test in below if name in changed or fixtures & (self._names[test] | self._strings[test])
                }
        for folder, walkers in WALKERS.items():
            if any(name.startswith(folder) for name in changed):
                found |= set(walkers)
        return in_order(name for name in tests if name in found)

    def _dependents(self, names: Iterable[str]) -> set[str]:
        users: dict[str, set[str]] = defaultdict(set)
        for name, needs in self._needs.items():
            for need in needs:
                users[need].add(name)
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += users[name]
        return found

    def _mentions(self, changed: str) -> Iterator[str]:
        """Files whose strings name a file that is no module: by its name, or by the folder that it stands in."""
        path = Path(changed)
        if path.suffix == ".py":
            return
        words = (
            [path.name]
            if path.parent.name in {"", *_FOLDERS} or changed.startswith("src/")
            else [path.name, path.parent.name]
        )
        named = re.compile(rf"(?:^|/)(?:{'|'.join(map(re.escape, words))})(?:/|$)")
        for name, strings in self._strings.items():
            # What tests alone read is named by tests alone.
            if name.startswith("tests/") >= changed.startswith("tests/") and any(map(named.search, strings)):
                yield name

    def _direct(self, name: str, path: Path) -> Iterator[str]:
        tree = ast.parse(path.read_text())
        module = _module_of(name)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        self._strings[name] = set()
        self._names[name] = set()
        self._fixtures[name] = set()
        unused = _of_hooks_alone(tree) if path.name == "conftest.py" else set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._resolved(alias.name)
            elif isinstance(node, ast.ImportFrom):
                source = ".".join(filter(None, (package if node.level else "", node.module)))
                for alias in node.names:
                    if (alias.asname or alias.name) not in unused:
                        yield from self._resolved(f"{source}.{alias.name}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._strings[name].add(node.value)
                yield from self._named(node.value, package)
            elif isinstance(node, ast.arg):
                self._names[name].add(node.arg)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "fixture" in map(
                _word, node.decorator_list
            ):
                self._fixtures[name].add(node.name)

    def _resolved(self, module: str) -> Iterator[str]:
        """The files that an import of `module` runs: its own, and those of the packages that it stands in."""
        parts = module.split(".")
        for length in range(1, len(parts) + 1):
            prefix = ".".join(parts[:length])
            if prefix in self._modules:
                yield self._modules[prefix]
            yield from self._compiled.get(prefix, ())

    def _named(self, text: str, package: str) -> Iterator[str]:
        """The files that a string leads to, in a module of `package`."""
        if _BESIDE.fullmatch(text):
            text = package + text
        if text == "strandline.commands":
            for module in self._plugins:
                yield from self._resolved(module)
        elif _PROGRAM.fullmatch(text) and _MAIN in self._files:
            yield _MAIN
        elif _MODULE.fullmatch(text.partition(":")[0]) and "." in text:
            module = text.partition(":")[0]
            if module.endswith("."):  # the rest is put behind it while the program runs
                for below in self._below[module[:-1]]:
                    yield from self._resolved(below)
            else:
                yield from self._resolved(module)


def _word(decorator: ast.expr) -> str:
    """`fixture` of `@pytest.fixture(scope="module")`."""
    found = decorator.func if isinstance(decorator, ast.Call) else decorator
    return found.attr if isinstance(found, ast.Attribute) else getattr(found, "id", "")


def _of_hooks_alone(tree: ast.Module) -> set[str]:
    """Names that a conftest.py uses in hooks of pytest alone: what a test sees of them is how it is run."""
    hooks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("pytest_")]
    others = [node for node in tree.body if node not in hooks]
    in_hooks, elsewhere = (
        {node.id for one in nodes for node in ast.walk(one) if isinstance(node, ast.Name)} for nodes in (hooks, others)
    )
    return in_hooks - elsewhere


def _module_of(name: str) -> str:
    parts = Path(name.removeprefix("src/")).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _by_package(modules: Iterable[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        found[module.rpartition(".")[0]].append(module)
    return found


def _of_pyproject(root: Path) -> tuple[dict[str, list[str]], list[str]]:
    """The files that each compiled module is made of, and the modules that add commands to the program."""
    path = root / "pyproject.toml"
    settings = tomllib.loads(path.read_text()) if path.is_file() else {}
    tools = settings.get("tool", {}).get("setuptools", {})
    compiled = {one["name"]: [*one["sources"], *one.get("depends", [])] for one in tools.get("ext-modules", [])}
    commands = settings.get("project", {}).get("entry-points", {}).get("strandline.commands", {})
    return compiled, [command.partition(":")[0] for command in commands.values()]


def changed_files() -> list[str]:
    """Files that differ from the branch `main`, or from the last commit where that is checked out; new files too."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    return sorted({*_git("diff", "--name-only", base[0]), *_git("ls-files", "--others", "--exclude-standard")})


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def commands(changed: list[str], tests: list[str], jobs: int) -> Iterator[list[str]]:
    """Commands to run, in order."""
    python = [sys.executable, "-m"]
    modules = [name for name in changed if name.endswith(".py") and (ROOT / name).is_file()]
    if modules:
        yield [*python, "ruff", "format", "--check", *modules]
        yield [*python, "ruff", "check", *modules]
        yield [*python, "mypy"]
        yield [str(Path(sys.executable).with_name("lint-imports"))]
    workers = ["-n", str(jobs), "--dist", "loadfile", "--no-loadscope-reorder"] if jobs > 1 else []
    yield [*python, "pytest", "-q", "--no-long", *workers, *dict.fromkeys([*ALWAYS, *tests])]


def main() -> None:
    """Run them until one fails; the arguments are the files that were changed, or none: git knows."""
    arguments = sys.argv[1:]
    only_list = "--list" in arguments
    changed = [name for name in arguments if name != "--list"] or changed_files()
    if not changed:
        sys.exit("nothing differs from main: name files, as in `make check CHANGED=src/strandline/log/segment.py`")
    tests = Project().reached(changed)
    took = sum(map(seconds, tests))
    click.echo(
        f"{len(changed)} changed files; {len(tests)} files of tests can notice ({took:.0f} s when they ran last)"
    )
    if only_list:
        click.echo("\n".join(tests))
        return
    for command in commands(changed, tests, jobs=2 if took > 60 else 1):
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
