"""`make check`: a change selects the tests that can notice it, and no others; quick files run first."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from lab import check, durations


@cache
def project() -> check.Project:
    """This checkout."""
    return check.Project()


def reached(*changed: str) -> set[str]:
    found = project().reached(changed)
    assert all((check.ROOT / name).is_file() for name in found)
    return set(found)


@pytest.mark.parametrize(
    ("changed", "noticed_by", "not_by"),
    [
        # Imports, over several modules.
        ("src/strandline/lake/commits.py", "tests/lake/test_commits.py", "tests/log/test_free_space.py"),
        ("src/strandline/log/segment.py", "tests/replica/test_manager.py", "tests/proto/test_scram.py"),
        # A node is started as a program, and imports its parts late.
        (
            "src/strandline/controller/raft/leader.py",
            "tests/acceptance/test_producer_guarantees.py",
            "tests/log/test_free_space.py",
        ),
        # A command is imported when it is typed.
        ("src/strandline/cli/tier.py", "tests/cli/test_commands.py", "tests/log/test_free_space.py"),
        # A client of live chaos is a program whose name is put together.
        (
            "src/strandline/chaos/live/clients/__init__.py",
            "tests/chaos/live/test_run.py",
            "tests/log/test_free_space.py",
        ),
        # C is compiled into a module, directly or as a header.
        ("src/strandline/log/_batches.h", "tests/log/test_records.py", "tests/proto/test_scram.py"),
        # What tests read is named by them.
        (
            "tests/golden/messages/strandline.proto",
            "tests/golden/test_golden_messages.py",
            "tests/log/test_free_space.py",
        ),
        # A fixture, for those who use it.
        ("tests/lake/conftest.py", "tests/lake/test_commits.py", "tests/log/test_free_space.py"),
        # A test is its own witness.
        ("tests/log/test_free_space.py", "tests/log/test_free_space.py", "tests/log/test_records.py"),
        # Whatever is changed in the package may hold the place of a mutant.
        ("src/strandline/lake/commits.py", "tests/lab/test_mutants.py", "tests/log/test_free_space.py"),
    ],
)
def test_a_change_selects_what_can_notice_it(changed: str, noticed_by: str, not_by: str) -> None:
    """By files of this checkout: they are there, or this test says nothing."""
    assert all((check.ROOT / name).is_file() for name in (changed, noticed_by, not_by))
    found = reached(changed)
    assert noticed_by in found
    assert not_by not in found


def test_what_every_test_depends_on_selects_all() -> None:
    """The settings of the project, and what all tests share."""
    everything = reached("pyproject.toml")
    assert everything == reached("tests/conftest.py", "docs/index.md")
    assert {"tests/log/test_free_space.py", "tests/lab/test_check.py"} <= everything


def test_made_up_files(tmp_path: Path) -> None:
    """A change passes through a package's own file, a relative import and a name in a string; not through a hook."""
    for name, text in {
        "src/strandline/__init__.py": "",
        "src/strandline/a/__init__.py": "from .b import one",
        "src/strandline/a/b.py": "one = 1",
        "src/strandline/late.py": "def run(): __import__('strandline.a.c')",
        "src/strandline/a/c.py": "",
        "lab/__init__.py": "",
        "lab/shown.py": "",
        "tests/conftest.py": "from lab import shown\ndef pytest_configure(): shown",
        "tests/sub/conftest.py": "import pytest, strandline.a.b\n@pytest.fixture\ndef thing(): ...",
        "tests/sub/test_fixture.py": "def test_it(thing): ...",
        "tests/sub/test_other.py": "def test_it(): open('data/rows.csv')",
        "tests/test_late.py": "import strandline.late",
        "tests/test_package.py": "import strandline.a.c",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    made_up = check.Project(tmp_path)
    select = {
        "src/strandline/a/b.py": ["sub/test_fixture", "test_late", "test_package"],
        "src/strandline/a/c.py": ["test_late", "test_package"],
        "src/strandline/late.py": ["test_late"],
        "tests/sub/data/rows.csv": ["sub/test_other"],
        "lab/shown.py": [],
    }
    for changed, tests in select.items():
        assert sorted(made_up.reached([changed])) == [f"tests/{test}.py" for test in tests], changed


def test_quick_files_run_first_and_slow_ones_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not measured yet is quick."""
    took = {"slow": 9.0, "slower": 30.0, "quick": 1.9}
    monkeypatch.setattr(durations, "_kept", lambda: {"files": took})
    assert durations.in_order(["slow", "quick", "slower", "new"]) == ["quick", "new", "slower", "slow"]


def test_what_a_run_took_is_kept_by_file() -> None:
    """Set up, called and torn down; the slowest by name."""
    kept = durations.summed({"tests/a.py::test_one": 1.26, "tests/a.py::test_two": 3.0, "tests/b.py::test_three": 0.1})
    assert kept["files"] == {"tests/a.py": 4.3}
    assert list(kept["slowest"]) == ["tests/a.py::test_two", "tests/a.py::test_one", "tests/b.py::test_three"]


def test_lint_comes_first_and_names_what_was_changed() -> None:
    """Style of the changed files alone; types and layers of all, as both keep caches."""
    run = [" ".join(command[1:]) for command in check.commands(["lab/check.py", "docs/index.md"], ["tests/x.py"], 2)]
    assert run[0].endswith("ruff format --check lab/check.py")
    assert run[1].endswith("ruff check lab/check.py")
    assert run[-1].endswith("tests/test_tidy.py tests/test_citations.py tests/test_docs.py tests/x.py")
    assert "--no-long" in run[-1]
