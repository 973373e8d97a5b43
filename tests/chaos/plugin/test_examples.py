"""The worked examples of docs/testing-your-code.md: they stand there as they are run, and do what the page says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = DOCS / "examples"


def take(pytester: pytest.Pytester, *names: str) -> None:
    for name in names:
        shutil.copy(EXAMPLES / name, pytester.path / name)


def test_a_service_survives_the_crash_of_a_leader(pytester: pytest.Pytester) -> None:
    """On real processes: SIGKILL of the leader, and a leader that lacks replicas for a moment."""
    take(pytester, "orders.py", "test_orders.py")
    result = pytester.runpytest_subprocess()
    assert result.parseoutcomes() == {"passed": 2}, result.stdout.str()


def test_a_consumer_handles_nothing_twice(pytester: pytest.Pytester) -> None:
    """Killed at will, over seeds."""
    take(pytester, "payments.py", "test_payments.py")
    result = pytester.runpytest_subprocess("--strandline-seeds", "5")
    assert result.parseoutcomes() == {"passed": 5}, result.stdout.str()


def test_the_payments_test_would_see_a_consumer_that_handles_twice(pytester: pytest.Pytester) -> None:
    """The position in a transaction of its own, some time later: a kill in between pays twice."""
    take(pytester, "payments.py", "test_payments.py")
    source = (pytester.path / "payments.py").read_text()
    right = "ledger.pay(record.key.decode(), int(record.value), record.partition, record.offset)"
    assert right in source
    wrong = (
        "ledger.pay(record.key.decode(), int(record.value), record.partition, ledger.next_offset(record.partition) - 1)"
        "\n            import asyncio\n            await asyncio.sleep(0.02)\n"
        "            ledger.pay('', 0, record.partition, record.offset)"
    )
    (pytester.path / "payments.py").write_text(source.replace(right, wrong))
    result = pytester.runpytest_subprocess("--strandline-seeds", "20", "-x")
    assert result.parseoutcomes()["failed"] == 1, result.stdout.str()
    assert "assert ledger.total() == 100 * PAYMENTS" in result.stdout.str()


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_the_page_shows_what_is_run(example: Path) -> None:
    """Every example stands in the page, whole or in consecutive parts of it that are marked by their file's name."""
    page = (DOCS / "testing-your-code.md").read_text()
    blocks = re.findall(rf"<!-- {re.escape(example.name)} -->\n```python\n(.*?)```", page, re.DOTALL)
    assert blocks, f"{example.name} is not in the page"
    source = example.read_text()
    for block in blocks:
        assert block.strip() in source, block
