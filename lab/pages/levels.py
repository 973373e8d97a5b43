"""The parts of docs/upgrade.md and docs/storage.md on levels and versions that are written by the code."""

from __future__ import annotations

from strandline.controller.metadata.features import FEATURES
from strandline.log.formats import FORMATS
from strandline.log.tier.sidecar import VERSION


def levels_table() -> str:
    """Every level of every feature, as a table in Markdown."""
    lines = ["| feature | level | known since | what it adds | can it be left again? |", "|---|---|---|---|---|"]
    for feature in FEATURES.values():
        for level in feature.levels:
            since = level.release or "the first builds"
            left = "yes: " if level.can_be_left else "no: "
            lines.append(f"| `{feature.name}` | {level.number} | {since} | {level.adds} | {left}{level.leaving} |")
    return "\n".join(lines) + "\n"


def formats_table() -> str:
    """Every file that a node writes, with its version, as a table in Markdown."""
    lines = ["| file | version | which file says it |", "|---|---|---|"]
    lines += [f"| `{one.name}` | {one.version} | {f'`{one.guard}`' if one.guard else 'itself'} |" for one in FORMATS]
    lines.append(f"| sidecars of segments in the object store | {VERSION} | itself |")
    return "\n".join(lines) + "\n"
