"""Changes of a mutant, made in the tree of the function that holds its place.

Shapes are compared, not text: neither line ends, brackets nor quotes count. Where no expression of the marked statement
is spelled like the one that a mutant names, the one of the same shape that shares most names with it is meant: a name
was changed, and the names in what the mutant puts there change along.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator
from textwrap import dedent

from lab.mutants.mutant import Change, Kind
from lab.mutants.places import Function, Marked, StaleMutant, bound_names

_NAMES: dict[type[ast.AST], str] = {ast.Name: "id", ast.Attribute: "attr", ast.keyword: "arg", ast.arg: "arg"}
_WITH_VALUE: dict[type[ast.AST], str] = {
    **dict.fromkeys((ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr), "value"),
    **dict.fromkeys((ast.For, ast.AsyncFor), "iter"),
    ast.Raise: "exc",
    ast.ExceptHandler: "type",
}


def change(function: Function, statement: Marked, made: Change) -> None:
    """Make one change to a statement of a function.

    Raises:
        StaleMutant: the statement has no such part, or several.
    """
    if made.kind is Kind.STATEMENT:
        if isinstance(statement, ast.ExceptHandler):
            raise StaleMutant(f"{_shown(statement)} is no statement: `value` changes what it catches")
        _replace(function, statement, _statements(made.new, statement))
    elif made.kind is Kind.CONDITION:
        if not isinstance(statement, ast.If | ast.While):
            raise StaleMutant(f"{_shown(statement)} has no condition")
        statement.test = _expression(made.new, statement.test, {})
    elif made.kind is Kind.VALUE:
        field = _WITH_VALUE.get(type(statement))
        if field is None:
            raise StaleMutant(f"{_shown(statement)} has no value")
        setattr(statement, field, _expression(made.new, getattr(statement, field), {}))
    else:
        _change_part(statement, made)


def undefined_names(function: Function, module: set[str], made: Change) -> set[str]:
    """Names in what the change puts there that the function does not know: it would fail for them, not for the rule."""
    new = ast.parse(dedent(made.new))
    read = {node.id for node in ast.walk(new) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    known = module | bound_names(new) | bound_names(function) | set(vars(builtins)) | {"_"}
    for scope in (new, function, ast.parse(made.old)):
        for node in ast.walk(scope):
            if isinstance(node, ast.arg):
                known.add(node.arg)
            elif isinstance(node, ast.Name) and scope is not new:
                known.add(node.id)
    return read - known


# --- statements ------------------------------------------------------------------------------------------------------


class _Put(ast.NodeTransformer):
    """Puts a statement in place of each `...` that stands as one."""

    def __init__(self, old: ast.stmt) -> None:
        self._old = old

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return self._old if _is_old(node.value) else node


def _statements(code: str, old: ast.stmt) -> list[ast.stmt]:
    new = ast.parse(dedent(code))
    _stand_at(new, old)
    put: ast.Module = _Put(old).visit(new)
    return put.body


def _stand_at(new: ast.AST, old: ast.AST) -> None:
    """Give the new code the line of the old, for tracebacks."""
    for node in ast.walk(new):
        if isinstance(node, ast.expr | ast.stmt | ast.ExceptHandler | ast.arg | ast.keyword):
            ast.copy_location(node, old)


def _replace(function: Function, old: ast.stmt, new: list[ast.stmt]) -> None:
    for node in ast.walk(function):
        for _, children in ast.iter_fields(node):
            if isinstance(children, list) and any(child is old for child in children):
                at = next(index for index, child in enumerate(children) if child is old)
                children[at : at + 1] = new
                return
    raise StaleMutant(f"{_shown(old)} was replaced by an earlier change of the mutant")


# --- expressions -----------------------------------------------------------------------------------------------------


def _change_part(statement: Marked, made: Change) -> None:
    pattern = ast.parse(made.old, mode="eval").body
    parent, field, index, renamed = _find(statement, pattern, made.old)
    children = getattr(parent, field)
    if made.kind is Kind.PART:
        old = children if index is None else children[index]
        new = _expression(made.new, old, renamed)
        if index is None:
            setattr(parent, field, new)
        else:
            children[index] = new
        return
    if index is None:
        raise StaleMutant(f"{made.old!r} is no operand, argument or item in {_shown(statement)}")
    del children[index]
    if isinstance(parent, ast.BoolOp) and len(children) == 1:
        _put_for(statement, parent, children[0])


def _find(statement: Marked, pattern: ast.expr, said: str) -> tuple[ast.AST, str, int | None, dict[str, str]]:
    best: list[tuple[ast.AST, str, int | None, dict[str, str]]] = []
    most = -1
    for parent, field, index, node in _heads(statement):
        names: dict[str, str] = {}
        if _fits(pattern, node, names):
            same = sum(old == new for old, new in names.items()) - len(names)  # 0: spelled alike
            if not best or same > most:
                best, most = [], same
            if same == most:
                best.append((parent, field, index, names))
    if len(best) != 1:
        raise StaleMutant(f"{said!r} is there {len(best)} times, not once, in {_shown(statement)}")
    return best[0]


def _heads(statement: Marked) -> Iterator[tuple[ast.AST, str, int | None, ast.expr]]:
    """Each expression of a statement, save those of its body: the node that holds it, the field and the index there."""
    for field, held in ast.iter_fields(statement):
        if field not in {"body", "orelse", "finalbody", "handlers", "cases"}:
            yield from _expressions(statement, field, held)


def _expressions(parent: ast.AST, field: str, held: object) -> Iterator[tuple[ast.AST, str, int | None, ast.expr]]:
    for index, node in enumerate(held) if isinstance(held, list) else [(None, held)]:
        if isinstance(node, ast.expr):
            yield parent, field, index, node
        if isinstance(node, ast.AST):
            for inner, below in ast.iter_fields(node):
                yield from _expressions(node, inner, below)


def _fits(pattern: object, node: object, names: dict[str, str]) -> bool:
    """True if the shapes are equal, and each name of the one is always the same name of the other."""
    if isinstance(pattern, list) and isinstance(node, list):
        return len(pattern) == len(node) and all(map(lambda a, b: _fits(a, b, names), pattern, node))
    if not isinstance(pattern, ast.AST) or type(pattern) is not type(node):
        return type(pattern) is type(node) and pattern == node
    named = _NAMES.get(type(pattern))
    for field in pattern._fields:
        ours, theirs = getattr(pattern, field, None), getattr(node, field, None)
        if field == named and ours is not None and theirs is not None:
            if names.setdefault(ours, theirs) != theirs:
                return False
        elif field not in {"ctx", "kind"} and not _fits(ours, theirs, names):
            return False
    return True


def _expression(code: str, old: ast.expr, renamed: dict[str, str]) -> ast.expr:
    """Statements of `code`, at the place of `old`, with the names that the code has now."""
    new = ast.parse(code, mode="eval").body
    _stand_at(new, old)
    for node in ast.walk(new):
        field = _NAMES.get(type(node))
        if field is not None:
            name = getattr(node, field)
            setattr(node, field, renamed.get(name, name))
    context = getattr(old, "ctx", None)
    if isinstance(context, ast.Store | ast.Del):
        for node in [new, *getattr(new, "elts", [])]:
            node.ctx = context
    if _is_old(new):
        return old
    holder = ast.Expr(new)
    kept = copy.deepcopy(old)
    for parent, field, index, node in list(_heads(holder)):
        if _is_old(node):
            if index is None:
                setattr(parent, field, kept)
            else:
                getattr(parent, field)[index] = kept
    return holder.value


def _put_for(statement: Marked, old: ast.expr, new: ast.expr) -> None:
    for parent, field, index, node in _heads(statement):
        if node is old:
            if index is None:
                setattr(parent, field, new)
            else:
                getattr(parent, field)[index] = new
            return


def _is_old(node: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _shown(statement: Marked) -> str:
    return repr(ast.unparse(statement).partition("\n")[0])
