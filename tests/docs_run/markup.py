"""What a page says to `make docs-run`, as Sybil finds it: blocks that are run, and comments that readers do not see.

A block `sh`
    Commands, typed one after the other; variables and the directory are kept for the next block.
A block `python`
    A program of its own.
`<!-- NAME.py -->` before a block
    A file of docs/examples: whole, it is written into the directory; a part of it is only compared.
`<!-- prints` ... `-->` behind a block
    What the block prints; `...` stands for anything. A block without it prints nothing.
`<!-- prints -->` before a block `text`
    The same, for readers too.
`<!-- stays: COMMAND, until "TEXT" -->`
    Lines that begin so go on running, each in a terminal of its own, once they have printed that.
`<!-- fails -->` before a block
    Its last command ends with an error, and is meant to.
`<!-- unseen` ... `-->`
    Commands that a reader does in another way, or has done before.
`<!-- prelude` ... `-->`
    Python that stands before each further program of the page.
`<!-- skip: next "REASON" -->`
    The next block is not run here, and why.
"""

from __future__ import annotations

import doctest
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from sybil import Document, Example, Region
from sybil.parsers.markdown import SkipParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer

from tests.docs_run.session import Session, WentWrong

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"

SESSION, PRINTED, STAYS, PRELUDE, SHOWN, FAILS = "session", "printed", "stays", "prelude", "shown", "fails"
"""Names in a document's namespace: the reader, what the last block printed and nobody has compared yet, what stays
running, Python before each program, whether the next block `text` is what was printed, whether the next one fails."""

NOT_RUN = frozenset({"text", "json", "mermaid", "proto"})
"""Languages of blocks that only show something."""

_LANGUAGE = re.compile(r"(?P<language>[\w+-]*)[ \t]*$\n", re.MULTILINE)
_FILE = re.compile(r"<!-- (?P<name>[\w.]+\.\w+) -->\n[ \t]*\Z")
_STAYS = re.compile(r'(?P<command>.+), until "(?P<until>.*)"')
_SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class PageWrong(ValueError):
    """The page says something that cannot be understood."""


def parse(page: Path) -> Document:
    """The page, with an example for each block and comment."""
    return Document.parse(str(page), _blocks, _directives, _skips)


def finish(document: Document) -> None:
    """At the end of a page: everything that was printed has been compared, and what should run still runs."""
    session: Session = document.namespace[SESSION]
    _nothing_uncompared(document)
    session.check()


def _blocks(document: Document) -> Iterable[Region]:
    for block in RawFencedCodeBlockLexer(_LANGUAGE)(document):
        language = block.lexemes["language"]
        place = f"{document.path}, {document.line_column(block.start)}"
        if not language:
            raise PageWrong(f"{place}: a block without a language: sh, python, text ...")
        source = str(block.lexemes["source"])
        file = _FILE.search(document.text[: block.start])
        if file is not None:
            yield Region(block.start, block.end, [file["name"], source], _write_file)
        elif language == "sh":
            yield Region(block.start, block.end, source, _run_commands)
        elif language == "python":
            yield Region(block.start, block.end, source, _run_program)
        elif language == "text":
            yield Region(block.start, block.end, source, _compare_if_shown)
        elif language not in NOT_RUN:
            raise PageWrong(f"{place}: nothing here runs a block of the language {language!r}")


def _directives(document: Document) -> Iterable[Region]:
    evaluators = {
        "prints": _compare,
        "stays": _note_stays,
        "unseen": _run_unseen,
        "prelude": _note_prelude,
        "fails": _note_fails,
    }
    for name, evaluator in evaluators.items():
        for found in DirectiveInHTMLCommentLexer(name)(document):
            arguments, source = found.lexemes["arguments"], str(found.lexemes["source"])
            yield Region(found.start, found.end, [arguments or "", source], evaluator)


def _skips(document: Document) -> Iterable[Region]:
    for region in SkipParser()(document):
        action, reason = region.parsed
        if action != "next" or not reason:
            place = f"{document.path}, {document.line_column(region.start)}"
            raise PageWrong(f'{place}: one block at a time, and why: `skip: next "REASON"`')
        yield region


def _nothing_uncompared(document: Document) -> None:
    printed = document.namespace.pop(PRINTED, "")
    if printed.strip():
        raise AssertionError(f"the block before this printed something, and no `prints` holds it:\n{printed}")


def _run_commands(example: Example) -> None:
    _nothing_uncompared(example.document)
    session: Session = example.namespace[SESSION]
    stays: dict[str, str] = example.namespace.get(STAYS, {})
    printed, waiting = "", ""
    for line in _joined(example.parsed):
        prefix = next((command for command in stays if line.startswith(command)), None)
        if prefix is None:
            waiting += line + "\n"
            continue
        if waiting:
            printed, waiting = printed + session.shell(waiting), ""
        session.start(line, stays[prefix])
    try:
        printed += session.shell(waiting) if waiting else ""
    except WentWrong as wrong:
        if not example.namespace.pop(FAILS, False):
            raise
        printed += wrong.printed
    if example.namespace.pop(FAILS, False):
        raise AssertionError(f"the page says that this fails, and it does not:\n{example.parsed}")
    example.namespace[PRINTED] = printed


def _joined(script: str) -> list[str]:
    """Lines, those that a backslash continues joined."""
    return re.sub(r"\\\n\s*", "", script).splitlines()


def _run_program(example: Example) -> None:
    _nothing_uncompared(example.document)
    prelude = example.namespace.get(PRELUDE, "")
    example.namespace[PRINTED] = example.namespace[SESSION].python(prelude + example.parsed)


def _run_unseen(example: Example) -> None:
    _nothing_uncompared(example.document)
    _, script = example.parsed
    example.namespace[SESSION].shell(script)


def _write_file(example: Example) -> None:
    name, text = example.parsed
    found = [path.read_text() for path in sorted(EXAMPLES.rglob(name))]
    if any(text.strip() == whole.strip() for whole in found):
        (example.namespace[SESSION].directory / name).write_text(text)
    elif not any(textwrap.indent(text, depth * " ") in whole for whole in found for depth in range(0, 20, 4)):
        raise AssertionError(f"docs/examples has no {name} with this text")


def _compare(example: Example) -> None:
    arguments, wanted = example.parsed
    if arguments:
        raise PageWrong(f"{example.path}, line {example.line}: what it prints begins in the next line")
    if not wanted.strip():
        example.namespace[SHOWN] = True
        return
    _hold(example, wanted)


def _compare_if_shown(example: Example) -> None:
    if example.namespace.pop(SHOWN, False):
        _hold(example, example.parsed)


def _hold(example: Example, wanted: str) -> None:
    got = example.namespace.pop(PRINTED, "")
    checker = doctest.OutputChecker()
    if not checker.check_output(wanted.strip() + "\n", got.strip() + "\n", _SAME):
        shown = doctest.Example("", wanted.strip() + "\n")
        raise AssertionError(f"{checker.output_difference(shown, got, _SAME)}\n---- it printed:\n{got}")


def _note_stays(example: Example) -> None:
    told = _STAYS.fullmatch(example.parsed[0])
    if told is None:
        raise PageWrong(f'{example.path}, line {example.line}: write `stays: COMMAND, until "TEXT"`')
    example.namespace.setdefault(STAYS, {})[told["command"]] = told["until"]


def _note_fails(example: Example) -> None:
    example.namespace[FAILS] = True


def _note_prelude(example: Example) -> None:
    example.namespace[PRELUDE] = example.parsed[1]
