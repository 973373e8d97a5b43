"""Tables on a screen: what fits is whole, and what does not is never cut within a word."""

from __future__ import annotations

import pytest

from strandline.cli.common import drawn_table

COLUMNS = ("partition", "leader", "epoch", "replicas", "in sync", "eligible", "log start", "high watermark", "health")
ROWS = [(0, 2, 0, "2,3,1", "2,3,1", "-", 0, 1, "ok"), (1, 3, 0, "3,1,2", "3,1", "2", 7, 1_234_567, "ok")]


def lines_of(width: int, columns: tuple[str, ...] = COLUMNS, rows: list[tuple[object, ...]] | None = None) -> list[str]:
    table = drawn_table(columns, ROWS if rows is None else rows, title=None, width=width, colour=False)
    return [line.rstrip() for line in table.splitlines() if line.strip()]


def test_a_wide_screen_has_each_header_on_one_line() -> None:
    header, rule, *rows = lines_of(100)
    assert header.split() == " ".join(COLUMNS).split()
    assert set(rule.strip()) == {"─"}
    assert [row.split() for row in rows] == [[str(cell) for cell in row] for row in ROWS]


def test_eighty_columns_hold_a_topic() -> None:
    lines = lines_of(80)
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["in", "log", "high"]  # headers take two lines, broken between words
    assert " ".join(lines[1].split()) == "partition leader epoch replicas sync eligible start watermark health"


@pytest.mark.parametrize("width", [10, 40, 60, 79])
def test_short_cells_and_words_are_whole_on_any_screen(width: int) -> None:
    lines = lines_of(width)
    words = " ".join(lines).split()
    assert {"partition", "watermark", "1234567", "2,3,1"} <= set(words)
    assert [line.split() for line in lines[-2:]] == [[str(cell) for cell in row] for row in ROWS]


def test_a_long_cell_is_folded_and_nothing_of_it_lost() -> None:
    directory = "7949d058-c06f-4135-80bb-2dbe3f0e3cf2"
    lines = lines_of(40, ("node", "caught up", "directory id"), [(1, "372 ms ago", directory)])
    assert max(map(len, lines)) <= 40
    assert directory in "".join(line[-21:].strip() for line in lines[2:])
    assert "372 ms ago" in lines[2]


def test_a_table_without_rows_has_its_headers() -> None:
    assert lines_of(100, rows=[])[0].split() == " ".join(COLUMNS).split()
