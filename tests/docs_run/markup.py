"""What a page says to `make docs-run`, as Sybil finds it: blocks that are run, and comments that readers do not see.

A block `sh`
    Commands, typed one after the other; variables and the directory are kept for the next block.
A block `python`
    A program of its own.
A block `properties`
    Lines of a file of a node or a client: each name is a setting.
`<!-- NAME.py -->` before a block
    A file of docs/examples, or a part of it: it is compared, and not run.
`<!-- prints` ... `-->` behind a block
    What the block prints; `...` stands for anything. A block without it prints nothing.
`<!-- prints -->` before a block `text`
    The same, for readers too.
`<!-- eventually -->` before a block
    Its commands are typed again until they print that, as a reader does who looks a moment too early.
`<!-- stays: COMMAND, until "TEXT" -->`
    Lines that begin so go on running, each in a terminal of its own, once they have printed that.
`<!-- ctrl-c: COMMAND -->`
    Ctrl-C in the terminal of what goes on running as COMMAND, as the paragraph above says.
`<!-- fails -->` before a block
    Its last command ends with an error, and is meant to.
`<!-- beginning -->` before a block `python`
    It stands before each further program of the page, and the page says so.
`<!-- skip: next "REASON" -->`
    The next block is not run here, and why: the run prints the reasons, with how many blocks each leaves out.

No mark does what the page does not say: there is none that types something unseen. Any other comment is refused, but
for those around what `make docs` writes.
"""

from __future__ import annotations

import doctest
import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

from sybil import Document, Example, Region
from sybil.parsers.markdown import SkipParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer

from strandline.client.config import ConsumerConfig, ProducerConfig
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.config_security import listener_setting
from strandline.cluster.node.config_values import parse_properties
from strandline.controller.metadata.settings import BROKER_SETTINGS
from tests.docs_run.session import Session, WentWrong

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"

SESSION, PRINTED, STAYS, BEGINNING, SHOWN, FAILS = "session", "printed", "stays", "beginning", "shown", "fails"
EVENTUALLY, AGAIN = "eventually", "again"
"""Names in a document's namespace: the reader, what the last block printed and nobody has compared yet, what stays
running, Python before each program, whether the next block `text` is what was printed, whether the next one fails, and
whether it is typed again; what is to be typed again."""

NOT_RUN = frozenset({"text", "json", "mermaid", "proto", "ini"})
"""Languages of blocks that only show something."""

_LANGUAGE = re.compile(r"(?P<language>[\w+-]*)[ \t]*$\n", re.MULTILINE)
_FILE = re.compile(r"<!-- (?P<name>[\w.]+\.\w+) -->\n[ \t]*\Z")
_COMMENT = re.compile(r"<!-- ?(?P<words>.*?)(?:-->|$)", re.MULTILINE)
_FILE_NAME = re.compile(r"[\w.]+\.\w+")
_STAYS = re.compile(r'(?P<command>.+), until "(?P<until>.*)"')
_SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class PageWrong(ValueError):
    """The page says something that cannot be understood."""


def parse(page: Path) -> Document:
    """The page, with an example for each block and comment. Raises PageWrong."""
    return Document.parse(str(page), _blocks, _directives, _skips, _strangers)


def programs(document: Document) -> Iterable[tuple[int, str]]:
    """(line, text) of each program that the page runs; nothing is run."""
    beginning: str | None = ""
    left_out = False
    for example in document:
        evaluator = example.region.evaluator
        if evaluator is _note_beginning:
            beginning = None
        elif evaluator is _run_program and not left_out:
            yield example.line, (beginning or "") + example.parsed
            if beginning is None:
                beginning = example.parsed + "\n"
        if evaluator not in _MARKS.values():
            left_out = isinstance(example.parsed, tuple)  # (action, reason) of a skip


def check_files(document: Document) -> None:
    """Each part of a file stands in it as the page shows it. Raises AssertionError."""
    for example in document:
        if example.region.evaluator is _compare_file:
            _compare_file(example)


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
            yield Region(block.start, block.end, [file["name"], source], _compare_file)
        elif language == "sh":
            yield Region(block.start, block.end, source, _run_commands)
        elif language == "python":
            yield Region(block.start, block.end, source, _run_program)
        elif language == "properties":
            yield Region(block.start, block.end, source, _check_settings)
        elif language == "text":
            yield Region(block.start, block.end, source, _compare_if_shown)
        elif language not in NOT_RUN:
            raise PageWrong(f"{place}: nothing here runs a block of the language {language!r}")


def _directives(document: Document) -> Iterable[Region]:
    for name, evaluator in _MARKS.items():
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


def _strangers(document: Document) -> Iterable[Region]:
    """Comments that are no mark: a misspelt one would hold nothing, and one that hides commands has no place here."""
    generated = set(re.findall(r"<!-- /([\w-]+) -->", document.text))
    for comment in _COMMENT.finditer(document.text):
        words = comment["words"].strip()
        name = re.split(r"[ :]", words, maxsplit=1)[0].removeprefix("/")
        if name in _MARKS or name == "skip" or name in generated or _FILE_NAME.fullmatch(words):
            continue
        place = f"{document.path}, {document.line_column(comment.start())}"
        known = ", ".join([*_MARKS, "skip"])
        raise PageWrong(f"{place}: no mark is called {name!r}: {known}, or a file of docs/examples")
    return ()


def _nothing_uncompared(document: Document) -> None:
    printed = document.namespace.pop(PRINTED, "")
    if AGAIN in document.namespace:
        raise AssertionError("the block before this is typed until it prints something, and no `prints` says what")
    if printed.strip():
        raise AssertionError(f"the block before this printed something, and no `prints` holds it:\n{printed}")


def _run_commands(example: Example) -> None:
    _nothing_uncompared(example.document)
    session: Session = example.namespace[SESSION]
    if example.namespace.pop(EVENTUALLY, False):
        example.namespace[AGAIN] = example.parsed
        example.namespace[PRINTED] = ""
        return
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
    beginning = example.namespace.get(BEGINNING, "")
    if beginning is None:
        beginning, example.namespace[BEGINNING] = "", example.parsed + "\n"
    example.namespace[PRINTED] = example.namespace[SESSION].python(beginning + example.parsed)


def _check_settings(example: Example) -> None:
    """A block is a part of a file, so its values are not judged together."""
    known = {*NodeConfig.rows, *BROKER_SETTINGS, *ProducerConfig.rows, *ConsumerConfig.rows}
    for name in parse_properties(example.parsed, str(example.path)):
        if name not in known and not listener_setting(name):
            raise AssertionError(f"no setting is called {name}")


def _compare_file(example: Example) -> None:
    name, text = example.parsed
    found = [path.read_text() for path in sorted(EXAMPLES.rglob(name))]
    if not any(textwrap.indent(text, depth * " ") in whole for whole in found for depth in range(0, 20, 4)):
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
    again = example.namespace.pop(AGAIN, None)
    if again is not None:
        session: Session = example.namespace[SESSION]
        got = session.again(again, lambda got: checker.check_output(_whole(wanted), _whole(got), _SAME))
    if not checker.check_output(_whole(wanted), _whole(got), _SAME):
        shown = doctest.Example("", _whole(wanted))
        raise AssertionError(f"{checker.output_difference(shown, got, _SAME)}\n---- it printed:\n{got}")


def _whole(text: str) -> str:
    return text.strip() + "\n"


def _note_stays(example: Example) -> None:
    told = _STAYS.fullmatch(example.parsed[0])
    if told is None:
        raise PageWrong(f'{example.path}, line {example.line}: write `stays: COMMAND, until "TEXT"`')
    example.namespace.setdefault(STAYS, {})[told["command"]] = told["until"]


def _interrupt(example: Example) -> None:
    _nothing_uncompared(example.document)
    paragraph = example.document.text[: example.region.start].rstrip().rpartition("\n\n")[2]
    if "Ctrl-C" not in paragraph:
        raise PageWrong(f"{example.path}, line {example.line}: the paragraph above says nothing of Ctrl-C")
    example.namespace[SESSION].interrupt(example.parsed[0])


def _note_fails(example: Example) -> None:
    example.namespace[FAILS] = True


def _note_eventually(example: Example) -> None:
    example.namespace[EVENTUALLY] = True


def _note_beginning(example: Example) -> None:
    if example.parsed[1].strip():
        raise PageWrong(f"{example.path}, line {example.line}: a beginning is a block that readers see")
    example.namespace[BEGINNING] = None


_MARKS: dict[str, Callable[[Example], None]] = {
    "prints": _compare,
    "stays": _note_stays,
    "ctrl-c": _interrupt,
    "beginning": _note_beginning,
    "fails": _note_fails,
    "eventually": _note_eventually,
}
