"""Documentation that cannot rot: generated parts are current, links lead somewhere, commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_generated_parts_are_current() -> None:
    """In an interpreter of its own: click remembers a command's help option from whoever showed its help first."""
    code = "import generate; print(*generate.stale())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "docs", capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == [], "make docs"


def without_blocks(page: Path) -> str:
    return re.sub(r"^[ ]*```.*?^[ ]*```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub and the site make them, and those that are written down."""
    text = without_blocks(page)
    found = set(re.findall(r'<a id="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = without_blocks(page)
    assert text.strip(), "an empty page"
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{page.name} links to {target}"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{page.name} links to {target}#{anchor}"


def test_the_site_has_every_page() -> None:
    """What `make site` refuses, without MkDocs: a page that its navigation does not name, a name without a page."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"(?:^|[- ])([\w/-]+\.md)$", nav, re.MULTILINE)
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert sorted(named) == sorted([*pages, "start.md", "changelog.md", "contributing.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_docs_exist(page: Path) -> None:
    from strandline.cli.main import main

    blocks = re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for line in "\n".join(blocks).splitlines():
        for words in re.findall(r"(?:^|[|;&]\s*|bin/)strandline ((?:[a-z-]+ ?)+)", line.strip()):
            group: object = main
            for word in words.split():
                commands = getattr(group, "list_commands", None)
                if commands is None:
                    break
                import click

                context = click.Context(group)  # type: ignore[arg-type]
                assert word in commands(context), f"{page.name}: strandline {words}"
                group = group.get_command(context, word)  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_in_the_docs_exist(page: Path) -> None:
    for name, test in re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", page.read_text()):
        path = ROOT / name
        assert path.is_file(), f"{page.name}: {name}"
        assert not test or f"def {test}(" in path.read_text(), f"{page.name}: {name}::{test}"


def test_the_readme_counts_the_heart_as_it_is() -> None:
    """The files that the README names in reading order exist, and are as many, and as long, as it says."""
    text = (ROOT / "README.md").read_text()
    said = re.search(r"The heart is (\d+) files and about ([\d,]+) lines", text)
    assert said
    files = re.findall(r"^\d+\. \[`[\w/.]+`\]\((src/[\w/.]+)\)", text, re.MULTILINE)
    lines = sum(len((ROOT / name).read_text().splitlines()) for name in files)
    assert len(files) == len(set(files)) == int(said[1])
    assert abs(lines - int(said[2].replace(",", ""))) <= 50


def test_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    """Each row of its table stands in docs/benchmarks.md, each cell as the median that stands before its spread."""
    table = (ROOT / "README.md").read_text().partition("| figure |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    assert len(rows) > 5
    for name, *cells in rows:
        there = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", measured, re.MULTILINE)
        assert there, name
        _aim, ours, kafka, nats, _nats_unsynced = [cell.partition("(")[0].strip() for cell in there[1].split("|")]
        assert [*cells, ""][:3] == [ours, kafka, nats], name


def test_files_that_a_contributor_touches_exist() -> None:
    """Each name in CONTRIBUTING.md that is a path; one without a folder lies beside the one named before it."""
    folder = ROOT
    named = re.findall(r"`([\w./-]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    paths = [name for name in named if "/" in name or name.endswith((".py", ".md", ".yml"))]
    for path in paths:
        there = [ROOT / path, folder / path]
        assert any(one.exists() for one in there), f"CONTRIBUTING.md: there is no {path}"
        folder = (ROOT / path).parent if "/" in path else folder
    assert len(paths) > 40


def test_make_words_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for word in re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert (word[0] or word[1]) in targets, f"{page.name}: make {word}"


def test_nobody_is_sent_to_a_distribution_that_is_not_there() -> None:
    """Strandline is not on PyPI: a page, a message or a program that says `pip install strandline` leads nowhere."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.py", "*.toml"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        for line in (ROOT / name).read_text().splitlines():
            if name != "tests/test_docs.py":
                assert not re.search(r"pip install (-\S+ )*['\"]?strandline(?![\w/])", line), f"{name}: {line}"
