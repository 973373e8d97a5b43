"""The part of docs/protocol.md that is written by the code."""

from __future__ import annotations

from strandline.cluster.kafka.table import APIS


def api_table() -> str:
    """The APIs that are served, as a table in Markdown."""
    lines = ["| key | API | versions | flexible from |", "|---|---|---|---|"]
    for key, api in sorted(APIS.items()):
        lines.append(f"| {key} | {api.name} | {api.first}-{api.last} | {api.flexible_since} |")
    return "\n".join(lines) + "\n"
