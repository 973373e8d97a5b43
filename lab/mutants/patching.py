"""Puts a mutant's changes into the running program, and takes them out again.

The function keeps its identity and gets other code: whoever imported it by name runs the mutant too.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

from lab.mutants.mutant import Mutant, Patch


class StalePatch(ValueError):
    """The code that a patch changes is not there any more, or not once."""


@contextmanager
def applied(mutant: Mutant | None) -> Iterator[None]:
    """Run with the rules of `mutant` taken out (None: with all in place).

    Raises:
        StalePatch: a function or a fragment is not there (exactly once).
    """
    undo: list[tuple[FunctionType, CodeType]] = []
    try:
        for function, patches in _by_function(mutant.patches if mutant is not None else ()).items():
            undo.append((function, function.__code__))
            function.__code__ = _changed_code(function, patches)
        yield
    finally:
        for function, code in reversed(undo):
            function.__code__ = code


def _by_function(patches: tuple[Patch, ...]) -> Mapping[FunctionType, list[Patch]]:
    found: dict[FunctionType, list[Patch]] = {}
    for patch in patches:
        found.setdefault(_function(patch.where), []).append(patch)
    return found


def _function(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    try:
        owner: object = importlib.import_module(f"strandline.{module}")
    except ImportError as error:
        raise StalePatch(f"there is no module strandline.{module}: {error}") from error
    for name in path.split("."):
        members = vars(owner)
        if name not in members:
            raise StalePatch(f"{where}: there is no {name}")
        owner = members[name]
    if isinstance(owner, property):
        owner = owner.fget
    owner = getattr(owner, "__func__", owner)  # class and static methods
    owner = getattr(owner, "__wrapped__", owner)
    if not isinstance(owner, FunctionType):
        raise StalePatch(f"{where} is no function of Python's")
    return owner


def _changed_code(function: FunctionType, patches: list[Patch]) -> CodeType:
    path = function.__code__.co_filename
    lines, first = _source(path, function.__qualname__)
    text = "\n".join(lines)
    for patch in patches:
        times = text.count(patch.old)
        if times != 1:
            raise StalePatch(f"{patch.where}: {patch.old!r} is there {times} times, not once")
        text = text.replace(patch.old, patch.new)
    # In a class body again where it stood in one, so that its indentation is right and `super()` finds its cell.
    heading = "class Mutated:\n" if lines[0][:1].isspace() else ""
    padding = "\n" * (first - 2 - bool(heading))
    source = "from __future__ import annotations\n" + padding + heading + text
    code = compile(source, path, "exec", dont_inherit=True)
    found = _find(code, function.__name__)
    assert found is not None, function
    return found


@cache
def _source(path: str, qualified_name: str) -> tuple[list[str], int]:
    """The lines of a function, and the number of the first."""
    text = Path(path).read_text()
    scope: ast.AST = ast.parse(text)
    for name in qualified_name.split("."):
        scope = _named(scope, name, path)
    assert isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef), scope
    return text.splitlines()[scope.lineno - 1 : scope.end_lineno], scope.lineno


def _named(scope: ast.AST, name: str, path: str) -> ast.AST:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    raise StalePatch(f"{path} defines no {name}")


def _find(code: CodeType, name: str) -> CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found = constant if constant.co_name == name else _find(constant, name)
            if found is not None:
                return found
    return None
