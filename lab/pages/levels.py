"""The part of docs/upgrade.md that is written by the code."""

from __future__ import annotations

from strandline.controller.metadata.features import FEATURES


def levels_table() -> str:
    """Every level of every feature, as a table in Markdown."""
    lines = ["| feature | level | known since | what it adds | can it be left again? |", "|---|---|---|---|---|"]
    for feature in FEATURES.values():
        for level in feature.levels:
            since = level.release or "the first builds"
            left = "yes: " if level.can_be_left else "no: "
            lines.append(f"| `{feature.name}` | {level.number} | {since} | {level.adds} | {left}{level.leaving} |")
    return "\n".join(lines) + "\n"
