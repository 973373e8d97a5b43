"""What docs/rules.md says of the code: the mutants of each rule, the tests of each schedule, who cites each row."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from citations import ROOT, Citation, all_prose, cited

_RULE = re.compile(r'(<a id="(?P<anchor>[a-e][0-9]+)"></a>(?:(?!<a id=).)*?\n\*Mutants:\*)[^\n]*', re.DOTALL)
_SCHEDULE = re.compile(r'(<a id="schedule-(?P<number>[0-9]+)"></a>.*?\n\*Replayed by:\*)[^\n]*', re.DOTALL)
_ROW = re.compile(r'(\| <a id="(?P<anchor>s[0-9]+)"></a>[^|\n]*\|[^|\n]*\|)[^|\n]*\|')
_NAMED = re.compile(r"^(?:async )?def (test_(?:(?P<schedule>[0-9]{2,3})|(?P<row>s[0-9]{2,3}))_\w+)\(", re.MULTILINE)


def filled(page: str) -> str:
    """The page with its generated lines and cells as the code has them today."""
    citations = [*_citations(), *_names()]
    by_anchor: dict[str, list[Citation]] = defaultdict(list)
    for citation in citations:
        by_anchor[citation.anchor].append(citation)
    mutants = _mutants()
    bare = set(re.findall(r'<a id="([a-e][0-9]+)"></a>', page)) - {found["anchor"] for found in _RULE.finditer(page)}
    if bare:
        raise ValueError(f"docs/rules.md: without a line that begins with *Mutants:* are {sorted(bare)}")
    page = _RULE.sub(
        lambda found: f"{found[1]} {_taken_out(mutants[found['anchor']], by_anchor[found['anchor']])}", page
    )
    page = _SCHEDULE.sub(lambda found: f"{found[1]} {_replayed(by_anchor['schedule-' + found['number']])}", page)
    return _ROW.sub(lambda found: f"{found[1]} {_files(by_anchor[found['anchor']])} |", page)


def _citations() -> Iterable[Citation]:
    """Citations of source, tests and benches; a page that cites says nothing of the code."""
    for prose in all_prose():
        if not prose.path.endswith(".md"):
            yield from cited(prose)


def _names() -> Iterable[Citation]:
    """Tests that bear a number in their name: `test_45_...` replays a schedule, `test_s07_...` shows a row."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for found in _NAMED.finditer(path.read_text()):
            anchor = found["row"] or f"schedule-{int(found['schedule'])}"
            yield Citation(str(path.relative_to(ROOT)), 0, anchor, found[1])


def _mutants() -> dict[str, list[str]]:
    from lab.mutants import MUTANTS

    found: dict[str, list[str]] = defaultdict(list)
    for mutant in MUTANTS.values():
        found[mutant.part.lower().replace(" ", "-")].append(mutant.name)
    return found


def _taken_out(mutants: list[str], citations: list[Citation]) -> str:
    """The mutants of a rule; where it has none, the files that cite it."""
    if mutants:
        return ", ".join(f"`{name}`" for name in mutants) + "."
    files = _files(citations)
    return f"none; cited by {files}." if citations else "none yet."


def _replayed(citations: list[Citation]) -> str:
    """The files of tests and the golden scenarios of a schedule."""
    tests = re.compile(r"^tests/.*(/test_\w+\.py|\.txt)$")
    paths = sorted({citation.path for citation in citations if tests.match(citation.path)})
    return ", ".join(_link(path, path.removeprefix("tests/")) for path in paths) + "." if paths else "nothing yet."


def _files(citations: list[Citation]) -> str:
    """The tests and benches that cite; the source where no test does."""
    paths = sorted({citation.path for citation in citations})
    paths = [path for path in paths if path.startswith(("tests/", "bench/"))] or paths
    return ", ".join(_link(path, path.rpartition("/")[2].removesuffix(".py")) for path in paths) or "nothing"


def _link(path: str, name: str) -> str:
    return f"[{name}](../{path})"
