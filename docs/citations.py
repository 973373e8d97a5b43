"""Citations of docs/rules.md: how they are spelled, where they stand, and what they lead to.

A citation is a rule (`rule A8`, `rules A7 to A9`, `rules B` for a whole section), a schedule (`schedule 27`,
`schedules 18, 20 and 23`) or a row (`row S86`). It stands in comments and docstrings, in the rules that mutants and
schedules name, and in the pages. There is no other spelling: `A8` or `D-27` alone is an error.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

_AND = r"(?:, and |, or |, | and | or | to )"


def _some(item: str) -> str:
    return rf"{item}(?!\w)(?:{_AND}{item}(?!\w))*"


_CITATION = re.compile(
    rf"\b[Rr]ules? (?P<rules>{_some('[A-EP][0-9]{1,2}')})"
    rf"|\b[Rr]ules (?P<sections>{_some('[A-EP]')})"
    rf"|\b[Ss]chedules? (?P<schedules>{_some('[0-9]{1,3}')})"
    rf"|\b[Rr]ows? (?P<rows>{_some('S[0-9]{2,3}')})"
)
_LABEL = re.compile(r"(?:(?P<rules>[A-E][0-9]{1,2}(?:, [A-E][0-9]{1,2})*)|schedule (?P<schedules>[0-9]{1,3})): ")
_OTHERWISE = re.compile(
    r"(?<![\w`./#-])(?:[A-E]-?[0-9]{1,2}|[DF]-?[0-9]{1,2}|S-?[0-9]{2,3})(?!\w)"
    r"|\b[Rr]ule [A-EP]\b(?![-' ])|\b[Cc]orrectness(?: rules?)? [A-F]\b|\b[Pp]erformance rules? [0-9]"
)
_LINK = re.compile(r"\]\((?:rules\.md)?#([a-z]+-?[0-9]*)\)")
_ANCHOR = re.compile(r'<a id="([a-z]+-?[0-9]*)"></a>')


@dataclass(frozen=True, slots=True)
class Citation:
    """One place of the project that cites one anchor of docs/rules.md.

    Attributes:
        path: the file, from the root of the project.
        line: where the comment, docstring or paragraph begins that cites.
        anchor: such as `a8`, `schedule-27`, `s86`.
        test: the test whose docstring it is, else None.
    """

    path: str
    line: int
    anchor: str
    test: str | None = None


@dataclass(frozen=True, slots=True)
class Prose:
    """A comment, a docstring, the rule that a schedule or a mutant names, or a page: text that may cite.

    Attributes:
        label: it begins with what it is filed under, as in `A6: no entry of an older epoch commits by count`.
        test: the test whose docstring it is, else None.
    """

    path: str
    line: int
    text: str
    label: bool = False
    test: str | None = None


def anchors() -> set[str]:
    """The anchors of docs/rules.md."""
    return set(_ANCHOR.findall((ROOT / "docs" / "rules.md").read_text()))


def cited(prose: Prose) -> Iterator[Citation]:
    """What the text cites, the ends and the middle of a range alike."""
    for anchor in _anchors_in(_plain(prose), prose.label):
        yield Citation(prose.path, prose.line, anchor, prose.test)


def misspelled(prose: Prose) -> list[str]:
    """What looks like a citation and is spelled otherwise."""
    text = _plain(prose)
    if prose.label and (match := _LABEL.match(text)):
        text = text[match.end() :]
    return [match.group() for match in _OTHERWISE.finditer(_CITATION.sub("", text))]


def all_prose() -> Iterator[Prose]:
    """Every text of the project that may cite."""
    for name in _files():
        text = (ROOT / name).read_text()
        if name.endswith(".py"):
            yield from _of_python(name, text)
        elif name.endswith(".md"):
            yield Prose(name, 1, re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
        else:
            lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.startswith(("#", "//"))]
            yield Prose(name, lines[0][0] if lines else 1, "\n".join(line for _, line in lines))


def _files() -> list[str]:
    """Source, tests and pages, of new files too, save what is generated and this page of rules itself."""
    kept = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(
        [*kept, "src", "tests", "bench", "interop", "lab", "docs", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        name
        for name in listed.stdout.splitlines()
        if name.endswith((".py", ".md"))
        or (name.startswith("tests/golden/") and name.endswith(".txt") and "/explore/" not in name)
        if name not in ("docs/rules.md", "docs/mutants.md") and (ROOT / name).is_file()
    ]


def _plain(prose: Prose) -> str:
    """One line a paragraph: a citation may go on behind the end of a line."""
    return re.sub(r"(?<!\n)\n[ \t]*(?:(?:#|//) )?(?!\n)", " ", prose.text)


def _anchors_in(text: str, label: bool) -> Iterator[str]:
    match = _LABEL.match(text) if label else None
    rest = _CITATION.finditer(text, match.end() if match else 0)
    for found in [*([match] if match else []), *rest]:
        for kind, items in found.groupdict().items():
            if items is not None:
                yield from _each(kind, items)
    yield from _LINK.findall(text)


def _each(kind: str, items: str) -> Iterator[str]:
    """Each of `rules A7 to A9`: three."""
    prefix = "schedule-" if kind == "schedules" else ""
    for part in re.split(r", and |, or |, | and | or ", items):
        first, _, last = part.partition(" to ")
        letter = re.sub(r"\d", "", first).lower()
        if not last:
            yield prefix + first.lower()
            continue
        width = len(first) - len(letter) if kind == "rows" else 0
        for number in range(int(first[len(letter) :]), int(last[len(letter) :]) + 1):
            yield f"{prefix}{letter}{number:0{width}}"


def _of_python(name: str, text: str) -> Iterator[Prose]:
    yield from _comments(name, text)
    tests: dict[int, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            tests[id(node.body[0])] = node.name
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Prose(name, node.lineno, node.value.value, test=tests.get(id(node)))
        elif isinstance(node, ast.Call):
            yield from _rules_named(name, node)


def _rules_named(name: str, call: ast.Call) -> Iterator[Prose]:
    """The rule of a mutant, or of a numbered schedule."""
    function = call.func.id if isinstance(call.func, ast.Name) else ""
    rules = [keyword.value for keyword in call.keywords if keyword.arg == "rule"]
    if function in ("one_change", "Mutant"):
        rules += call.args[1:2]
    elif function != "schedule":
        return
    for rule in rules:
        if isinstance(rule, ast.Constant) and isinstance(rule.value, str):
            yield Prose(name, rule.lineno, rule.value, label=True)


def _comments(name: str, text: str) -> Iterator[Prose]:
    """Comments of one column on lines that follow each other are one text."""
    begun: tuple[int, int] | None = None
    lines: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if begun is not None and token.start == (begun[0] + len(lines), begun[1]):
            lines.append(token.string)
            continue
        if begun is not None:
            yield Prose(name, begun[0], "\n".join(lines))
        begun, lines = token.start, [token.string]
    if begun is not None:
        yield Prose(name, begun[0], "\n".join(lines))
