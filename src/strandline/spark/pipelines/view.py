"""Progress display: a table that is updated in place, or plain lines if the output is not a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from strandline.proto.printable import printable
from strandline.spark.pipelines.progress import BatchSeen


class TerminalView:
    """Progress display on standard error, so that the result can be piped. Use it as a context manager."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live: Any = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        self._title = ""
        self._sent = ""
        self._last: dict[str, BatchSeen] = {}
        self._records: dict[str, int] = {}

    def __enter__(self) -> TerminalView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def step(self, title: str) -> None:
        """Show that a new step begins."""
        self._title, self._sent = title, ""
        self._show(f"... {title}")

    def sent(self, count: int, total: int) -> None:
        """Show that `count` of `total` events are in their topic."""
        self._sent = f"{count:,} of {total:,} sent"
        if self._live is not None:
            self._show("")

    def batch(self, seen: BatchSeen) -> None:
        """Show that a micro-batch is done."""
        self._last[seen.query] = seen
        self._records[seen.query] = self._records.get(seen.query, 0) + seen.records
        self._show("  " + ", ".join(f"{name} {value}" for name, value in self._cells(seen) if value))

    def _cells(self, seen: BatchSeen) -> list[tuple[str, str]]:
        return [
            ("query", seen.query),
            ("batch", str(seen.batch)),
            ("records", f"{self._records[seen.query]:,}"),
            ("lag", f"{seen.lag:,}"),
            ("watermark", seen.watermark[:16].replace("T", " ") if seen.watermark[:4] != "1970" else ""),
            ("duplicates", f"{seen.duplicates:,}" if seen.watermark else ""),
            ("late", f"{seen.late:,}" if seen.watermark else ""),
            ("state rows", f"{seen.state_rows:,}" if seen.state_rows else ""),
            ("seconds", f"{seen.seconds:.1f}"),
        ]

    def _show(self, line: str) -> None:
        if self._live is None:
            self._console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(printable(f"{self._title} {self._sent}")), title_justify="left")
        for query, seen in self._last.items():
            cells = self._cells(seen)
            if not table.columns:
                for name, _ in cells:
                    table.add_column(name, justify="left" if name == "query" else "right")
            table.add_row(Text(printable(query)), *[value for _, value in cells[1:]])
        self._live.update(table)
