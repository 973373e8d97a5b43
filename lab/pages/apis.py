"""The part of docs/protocol.md that is written by the code."""

from __future__ import annotations

from strandline.cluster.broker.table import APIS


def api_table() -> str:
    """The APIs that are served, as a table in Markdown."""
    lines = ["| key | API | versions | flexible from |", "|---|---|---|---|"]
    for row in (APIS[key] for key in sorted(APIS)):
        lines.append(f"| {int(row.api)} | {row.api.title} | {row.first}-{row.last} | {row.api.flexible_since} |")
    return "\n".join(lines) + "\n"
