"""The part of docs/protocol.md that is written by the code."""

from __future__ import annotations

from strandline.cluster.broker.table import APIS


def api_table() -> str:
    """The APIs that are served, as a table in Markdown."""
    lines = ["| key | API | versions | flexible from |", "|---|---|---|---|"]
    for key, served in sorted(APIS.items()):
        api = served.api
        lines.append(f"| {key} | {api.title} | {served.first}-{served.last} | {api.flexible_since} |")
    return "\n".join(lines) + "\n"
