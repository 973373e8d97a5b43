"""`make docs-run` judged on small pages: what a page gets wrong is seen, and what it says is held."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import SkipTest

import psutil
import pytest

from strandline.cluster.node.ports import holder_of, is_free
from strandline.proto.ids import Endpoint
from tests.docs_run import markup
from tests.docs_run.markup import ROOT, PageWrong
from tests.docs_run.pages import DOCUMENTS
from tests.docs_run.session import Session, WentWrong

Read = Callable[[str], list[str]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Run a page from its text; the reasons of what it leaves out."""

    def run(text: str) -> list[str]:
        page = tmp_path / "page.md"
        page.write_text(text)
        document = markup.parse(page)
        left_out = []
        with Session(tmp_path, os.environ) as session:
            document.namespace[markup.SESSION] = session
            for example in document:
                try:
                    example.evaluate()
                except SkipTest as reason:
                    left_out.append(str(reason))
            markup.finish(document)
        return left_out

    return run


def test_a_page_is_run_as_it_stands(read: Read) -> None:
    """Variables and the directory are kept from block to block; a program is a process of its own; what is printed is
    compared, with dots for what is another one each time; what stays running runs beside the rest."""
    left_out = read("""
<!-- stays: sh -c, until "listening" -->
```sh
export GREETING=hello
mkdir below
cd below                       # a comment
sh -c 'echo listening; exec sleep 600' # one that goes on
echo $GREETING \\
   again
```
<!-- prints
hello again
-->

- In a list:

  ```python
  import os
  print("in", os.path.basename(os.getcwd()), os.getpid())
  print("two\\nlines")
  ```
  <!-- prints
  in below ...
  ...
  lines
  -->

```sh
echo seen
```

It says:

<!-- prints -->
```text
seen
```

<!-- fails -->
```sh
echo before
exit 3
```
<!-- prints
before
-->

A moment later:

<!-- eventually -->
```sh
printf x >> looks && test "$(cat looks)" = xxx && echo there
```
<!-- prints
there
-->

Each further program begins with this:

<!-- beginning -->
```python
word = "again"
```

```python
print(word)
```
<!-- prints
again
-->

<!-- skip: next "nobody has a moon" -->
```sh
land --on moon
```
""")
    assert left_out == ["nobody has a moon"]


@pytest.mark.parametrize(
    ("page", "error", "says"),
    [
        ("```sh\necho one\n```\n<!-- prints\ntwo\n-->", AssertionError, "Expected"),
        ("```sh\necho one\n```\n", AssertionError, "no `prints` holds it"),
        ("```sh\ntrue\n```\n<!-- prints\ntwo\n-->", AssertionError, "Expected"),
        ("```sh\nfalse\ntrue\n```", WentWrong, "ended with 1"),
        ("```python\nraise ValueError('no')\n```", WentWrong, "ValueError: no"),
        ('<!-- stays: sleep, until "x" -->\n```sh\nsleep 0\n```', WentWrong, "sleep 0 ended with 0"),
        ("<!-- fails -->\n```sh\ntrue\n```", AssertionError, "and it does not"),
        ("```\necho one\n```", PageWrong, "without a language"),
        ("```ruby\nputs 1\n```", PageWrong, "ruby"),
        ("<!-- skip: next -->\n```sh\nfalse\n```", PageWrong, "and why"),
        ("```properties\nbroker.id=1\nlog.dirz=a\n```", AssertionError, "no setting is called"),
        ("<!-- unseen\ntouch topic\n-->", PageWrong, "no mark is called 'unseen'"),
        ('<!-- stay: sleep, until "x" -->', PageWrong, "no mark is called 'stay'"),
        ("<!-- beginning\nimport os\n-->", PageWrong, "a block that readers see"),
        ("<!-- eventually -->\n```sh\ntrue\n```", AssertionError, "no `prints` says what"),
        ("<!-- ledger.py -->\n```python\nimport nothing\n```", AssertionError, "no ledger.py with this text"),
    ],
)
def test_what_a_page_gets_wrong_is_seen(read: Read, page: str, error: type[Exception], says: str) -> None:
    """Each of them fails the page, with the reason."""
    with pytest.raises(error, match=says):
        read(page)


def test_what_stays_is_ended_with_the_page(read: Read, tmp_path: Path) -> None:
    """Nothing outlives the page, whatever it thinks of Ctrl-C."""
    page = "<!-- stays: sh -c, until \"up\" -->\n```sh\nsh -c 'echo $$ > pid; echo up; exec sleep 600'\n```"
    read(page)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_page_may_end_what_it_started(read: Read, tmp_path: Path) -> None:
    """With Ctrl-C, where the page says so: what ends by itself has crashed."""
    start = "<!-- stays: sh -c, until \"up\" -->\n```sh\nsh -c 'echo $$ > pid; echo up; exec sleep 600'\n```\n"
    looks = "```sh\nkill -0 $(cat pid) 2> /dev/null || echo gone\n```\n<!-- prints\ngone\n-->\n"
    read(f"{start}\nCtrl-C ends it.\n\n<!-- ctrl-c: sh -c -->\n\n{looks}")
    with pytest.raises(WentWrong, match="nothing runs as sh -x"):
        read(f"{start}\nCtrl-C ends it.\n\n<!-- ctrl-c: sh -x -->\n")
    with pytest.raises(PageWrong, match="says nothing of Ctrl-C"):
        read(f"{start}\nIt ends.\n\n<!-- ctrl-c: sh -c -->\n")


def test_a_page_of_the_documentation() -> None:
    """A sample of `make docs-run`: a page that starts nodes, stops one, ruins its files and mends them."""
    if not is_free(Endpoint("127.0.0.1", 9092)):
        pytest.skip(f"the page needs the port of a first cluster: 127.0.0.1:9092 is taken, {holder_of(9092)}")
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "tests/docs_run/pages.py"]
    done = subprocess.run([*command, "-k", "operations"], cwd=ROOT, capture_output=True, text=True, check=False)
    if "No matching distribution found" in done.stdout:
        pytest.skip("pip finds no dependencies: a fresh environment needs the registry")
    assert done.returncode == 0, done.stdout
    assert "SKIPPED [1]" in done.stdout
    assert "two controllers of three without their logs" in done.stdout


def test_every_page_can_be_run() -> None:
    """Every block of the pages has a language, every one that is left out a reason: `make docs-run` runs the rest."""
    assert {page for page, document in DOCUMENTS.items() if list(document)} == set(DOCUMENTS)


def test_every_program_names_what_it_uses(tmp_path: Path) -> None:
    """A part of a program is no program: it fails with the first name that nothing has made."""
    for page, document in DOCUMENTS.items():
        for line, text in markup.programs(document):
            (tmp_path / f"{page.replace('/', '_')}_{line}.py").write_text(text)
    assert len(list(tmp_path.iterdir())) > 20
    command = ["ruff", "check", "--isolated", "--no-cache", "--select", "F821", "--output-format", "concise", tmp_path]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_part_of_a_file_stands_in_it() -> None:
    """The page and the example are changed together, though `make docs-run` runs now and then alone."""
    for document in DOCUMENTS.values():
        markup.check_files(document)
