"""`make docs-run` judged on small pages: what a page gets wrong is seen, and what it says is held."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest import SkipTest

import psutil
import pytest

from tests.docs_run import markup
from tests.docs_run.markup import PageWrong
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
<!-- unseen
export GREETING=hello
mkdir below
-->
```sh
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


def test_every_page_can_be_run() -> None:
    """Every block of the pages has a language, every one that is left out a reason: `make docs-run` runs the rest."""
    assert {page for page, document in DOCUMENTS.items() if list(document)} == set(DOCUMENTS)
