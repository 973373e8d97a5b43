"""`make docs-run`: every command and program of these pages, as a reader types them, with what they print held.

Not collected by `make test`: it takes some twenty minutes, a fresh virtual environment with PySpark, a Java, kcat, and
the ports of `strandline dev`. The marks of the pages are explained in `markup.py`; `test_docs_run.py` tests it on small
pages, and runs a short one with `make test-long`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sybil import Example

from tests.docs_run import markup
from tests.docs_run.markup import ROOT
from tests.docs_run.session import Session

PAGES = (
    "README.md",
    "docs/client.md",
    "docs/storage.md",
    "docs/deploy.md",
    "docs/testing-your-code.md",
    "docs/spark.md",
    "docs/uses/hub.md",
    "docs/uses/capture.md",
    "docs/uses/recipes.md",
    "docs/uses/patterns.md",
    "docs/uses/pipelines.md",
    "docs/operations.md",
    "docs/upgrade.md",
    "docs/security.md",
    "docs/tiering.md",
    "docs/lake.md",
)

DOCUMENTS = {page: markup.parse(ROOT / page) for page in PAGES}

FRESH = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "STRANDLINE_BOOTSTRAP", "SPARK_HOME")
"""What a reader's shell does not have."""


def _bare_environment() -> dict[str, str]:
    """As after logging in: without the environment in which this runs."""
    here = str(ROOT / ".venv")
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if not folder.startswith(here)]
    kept = {name: value for name, value in os.environ.items() if name not in FRESH}
    return {**kept, "PATH": os.pathsep.join(path), "COLUMNS": "120"}


@contextmanager
def fresh_checkout() -> Iterator[Path]:
    """A copy of the repository, as `git clone` gives it. Not where the system empties directories: `strandline doctor`
    would find that."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="docs-run-", dir=ROOT / "build") as name:
        _copy_into(Path(name))
        yield Path(name)


def _copy_into(directory: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    copied = subprocess.run(
        ["tar", "--null", "--files-from=-", "--create", "--file=-"],
        cwd=ROOT,
        input=listed.stdout,
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "--extract", "--file=-"], cwd=directory, input=copied.stdout, check=True)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a reader who has done what the README says: for the pages that begin there."""
    home = tmp_path_factory.mktemp("reader") / "venv"
    with fresh_checkout() as checkout, Session(checkout, _bare_environment()) as session:
        session.shell(f"python3 -m venv {home} && . {home}/bin/activate && pip install --quiet . ")
        return session.environment


@pytest.fixture(scope="module")
def reader(request: pytest.FixtureRequest) -> Iterator[_Reader]:
    """Turns from one page to the next."""
    with _Reader(request) as one:
        yield one


class _Reader:
    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._page = ""
        self._stack = ExitStack()
        self.failed = False

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def open(self, page: str) -> None:
        """Begin a page, unless it is open."""
        if page == self._page:
            return
        self._stack.close()
        self._page, self.failed = page, False
        environment = _bare_environment() if page == "README.md" else self._request.getfixturevalue("installed")
        session = self._stack.enter_context(Session(self._stack.enter_context(fresh_checkout()), environment))
        DOCUMENTS[page].namespace[markup.SESSION] = session


def _examples() -> Iterator[Any]:
    for page, document in DOCUMENTS.items():
        for example in document:
            yield pytest.param(page, example, id=f"{page}:{example.line}")
        yield pytest.param(page, None, id=f"{page}:end")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("page", "example"), list(_examples()))
def test_page(reader: _Reader, page: str, example: Example | None) -> None:
    """One block, comment or end of a page."""
    reader.open(page)
    if reader.failed:
        pytest.skip("an earlier block of this page failed")
    try:
        if example is None:
            markup.finish(DOCUMENTS[page])
        else:
            example.evaluate()
    except Exception as error:
        reader.failed = "Skip" not in type(error).__name__
        raise
