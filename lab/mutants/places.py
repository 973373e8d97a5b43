"""The places of mutants: comments of the package that name them, and the statements that the comments mark.

A marker stands behind the statement's first line or, on a line of its own, before it:

    if now - heard > self._timeout:  # rule A5/no-check-quorum

    # rule A5/no-check-quorum, rule A5/any-one-voter-is-a-majority
    if now - heard > self._timeout and not self._only_voter():
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "strandline"

MARKER = re.compile(r"(?:rule [A-E][0-9]{1,2}|schedule [0-9]{1,3})/[a-z0-9-]+(?:/[0-9])?(?![\w/-])")
_COMMENT = re.compile(rf"#(?P<text> (?:{MARKER.pattern}(?:, )?)+)$")

Marked = ast.stmt | ast.ExceptHandler
Function = ast.FunctionDef | ast.AsyncFunctionDef


class StaleMutant(ValueError):
    """The place of a mutant is not there any more, is there twice, or has another shape."""


@dataclass(frozen=True, slots=True)
class Place:
    """A marker in a file."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


@cache
def places(package: Path = PACKAGE) -> Mapping[str, tuple[Place, ...]]:
    """Every marker of the package, and where it stands: once, if nothing is wrong."""
    found: dict[str, list[Place]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "/" in line and (comment := _COMMENT.search(line)):
                for marker in MARKER.findall(comment["text"]):
                    found[marker].append(Place(path, number))
    return {marker: tuple(where) for marker, where in found.items()}


def place_of(marker: str, package: Path = PACKAGE) -> Place:
    """The one place of a marker.

    Raises:
        StaleMutant: there is none, or there are several.
    """
    found = places(package).get(marker, ())
    if len(found) == 1:
        return found[0]
    if found:
        raise StaleMutant(f"# {marker} marks {len(found)} places, not one: {', '.join(map(str, found))}")
    raise StaleMutant(f"no comment of the package says # {marker}: put it behind the statement that enforces the rule")


@dataclass(frozen=True, slots=True)
class Found:
    """A marked statement.

    Attributes:
        statement: it.
        function: the outermost function that it stands in.
        scopes: the classes that the function stands in, outermost first; most often one, or none.
    """

    statement: Marked
    function: Function
    scopes: tuple[ast.ClassDef, ...]


class Source:
    """A file: its tree, and the statements of its functions by the lines that mark them."""

    def __init__(self, path: Path) -> None:
        text = path.read_text()
        self.tree = ast.parse(text)
        self._lines = text.splitlines()
        self._by_line: dict[int, Found] = {}
        for node in self.tree.body:
            self._add(node, (), None)

    @cached_property
    def names(self) -> set[str]:
        """Names that the module itself gives: imports, functions, classes, constants."""
        found: set[str] = set()
        for node in self.tree.body:
            found |= {node.name} if isinstance(node, Function | ast.ClassDef) else bound_names(node)
        return found

    def found(self, number: int) -> Found:
        """The statement that the marker on a line marks.

        Raises:
            StaleMutant: no statement of a function stands there, as `else:` is none.
        """
        line = self._marked_line(number)
        if line not in self._by_line:
            raise StaleMutant(f"the marker on line {number} marks no statement of a function")
        return self._by_line[line]

    def _marked_line(self, number: int) -> int:
        """Number of that line or, where it holds a comment alone, of the next line of code."""
        while number < len(self._lines) and self._lines[number - 1].lstrip()[:1] in ("", "#"):
            number += 1
        return number

    def _add(self, node: ast.AST, scopes: tuple[ast.ClassDef, ...], function: Function | None) -> None:
        """Note the first lines of a statement, up to its body; inner statements come later, and win."""
        if function is not None and isinstance(node, Marked):
            for line in range(node.lineno, _head_end(node) + 1):
                self._by_line[line] = Found(node, function, scopes)
        if function is None and isinstance(node, Function):
            function = node
        if isinstance(node, ast.ClassDef) and function is None:
            scopes = (*scopes, node)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):
                self._add(child, scopes, function)


@lru_cache(maxsize=16)
def source(path: Path) -> Source:
    """The file, read once for the mutants that follow each other in it."""
    return Source(path)


def bound_names(scope: ast.AST) -> set[str]:
    """Names that a scope gives to something: variables, functions, classes, imports."""
    found: set[str] = set()
    for node in ast.walk(scope):
        if isinstance(node, Function | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def _head_end(node: Marked) -> int:
    body = getattr(node, "body", None)
    if isinstance(node, ast.Match):
        body = [node.cases[0].pattern]
    return max(body[0].lineno - 1, node.lineno) if body else node.end_lineno or node.lineno
