"""Puts a mutant's changes into the running program, and takes them out again.

The function keeps its identity and gets other code: whoever imported it by name runs the mutant too.
"""

from __future__ import annotations

import ast
import copy
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

from lab.mutants.changing import change, undefined_names
from lab.mutants.mutant import Mutant
from lab.mutants.places import PACKAGE, Function, Marked, StaleMutant, place_of, source


@dataclass(frozen=True, slots=True)
class Changed:
    """A function with a rule taken out.

    Attributes:
        path: the file that defines it.
        scopes: the classes that it stands in, outermost first; most often one, or none.
        function: its tree, as it is without the rule.
        original: its tree, as it is.
    """

    path: Path
    scopes: tuple[ast.ClassDef, ...]
    function: Function
    original: Function

    @property
    def qualified_name(self) -> str:
        """Name of the function below its module, as `Partition.append`."""
        return ".".join([*(scope.name for scope in self.scopes), self.function.name])


@contextmanager
def applied(mutant: Mutant | None) -> Iterator[None]:
    """Run with the rule of `mutant` taken out (None: with all in place).

    Raises:
        StaleMutant: a place is not marked once, or the statement there has no such part.
    """
    undo: list[tuple[FunctionType, CodeType]] = []
    try:
        for changed in changed_functions(mutant) if mutant is not None else ():
            function = _running(changed)
            undo.append((function, function.__code__))
            function.__code__ = _compiled(changed)
        yield
    finally:
        for function, code in reversed(undo):
            function.__code__ = code


def changed_functions(mutant: Mutant, package: Path = PACKAGE) -> list[Changed]:
    """The functions that a mutant changes, with the changes made; nothing of them is imported.

    Raises:
        StaleMutant: a place is not marked once, or the statement there has no such part.
    """
    copies: dict[Function, Changed] = {}
    twins: dict[Function, dict[ast.AST, ast.AST]] = {}
    for marker, made in zip(mutant.markers, mutant.changes, strict=True):
        place = place_of(marker, package)
        file = source(place.path)
        found = file.found(place.line)
        if found.function not in copies:
            function = copy.deepcopy(found.function)
            copies[found.function] = Changed(place.path, found.scopes, function, found.function)
            twins[found.function] = dict(zip(ast.walk(found.function), ast.walk(function), strict=True))
        unknown = undefined_names(copies[found.function].function, file.names, made)
        if unknown:
            names = ", ".join(sorted(unknown))
            raise StaleMutant(f"{mutant.name}: {names}: nothing in {found.function.name} is called so")
        statement = twins[found.function][found.statement]
        assert isinstance(statement, Marked), statement
        change(copies[found.function].function, statement, made)
    return list(copies.values())


def _running(changed: Changed) -> FunctionType:
    parts = changed.path.relative_to(PACKAGE.parent).with_suffix("").parts
    owner: object = importlib.import_module(".".join(parts).removesuffix(".__init__"))
    for name in changed.qualified_name.split("."):
        owner = vars(owner)[name]
    if isinstance(owner, property):
        owner = owner.fget
    owner = getattr(owner, "__func__", owner)  # class and static methods
    owner = getattr(owner, "__wrapped__", owner)
    if not isinstance(owner, FunctionType):
        raise StaleMutant(f"{changed.qualified_name} is no function while the program runs")
    return owner


def _compiled(changed: Changed) -> CodeType:
    changed.function.decorator_list.clear()
    # In its classes again, so that `super()` finds its cell and names that begin with two underscores their class.
    body: ast.stmt = changed.function
    for scope in reversed(changed.scopes):
        body = ast.ClassDef(scope.name, bases=[], keywords=[], body=[body], decorator_list=[])
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], level=0)
    tree = ast.fix_missing_locations(ast.Module([future, body], type_ignores=[]))
    code = compile(tree, str(changed.path), "exec", dont_inherit=True)
    for name in changed.qualified_name.split("."):
        code = next(inner for inner in code.co_consts if isinstance(inner, CodeType) and inner.co_name == name)
    return code
