"""The table of mutants for the documentation."""

from __future__ import annotations

from itertools import groupby

from lab.mutants import MUTANTS
from lab.mutants.mutant import Mutant

_TITLES = {
    "A": "The quorum (A)",
    "B": "The controller and replication (B)",
    "C": "Producers, transactions and groups (C)",
    "E": "What a stop leaves behind (E)",
    "schedule": "Rules of single schedules",
}


def mutants_table() -> str:
    """Rule, mutant, and what kills it, in the order of the rules."""
    lines: list[str] = []
    for section, group in groupby(sorted(MUTANTS.values(), key=_place), key=lambda mutant: mutant.section):
        lines += [f"### {_TITLES[section]}", "", "| rule taken out | mutant | killed by |", "|---|---|---|"]
        for mutant in group:
            killers = ", ".join(dict.fromkeys(_shown(killer) for killer in mutant.killed_by))
            clause = mutant.rule.removeprefix(mutant.part).replace("|", "\\|")  # |ISR| is no column
            rule = f"[{mutant.part}](rules.md#{mutant.part.lower().replace(' ', '-')}){clause}"
            lines.append(f"| {rule} | `{mutant.name}` | {killers} |")
        lines.append("")
    return "\n".join(lines)


def _shown(killer: str) -> str:
    """A test as a link to its file, whose name says the rest; a seed as it is."""
    path = killer.partition("::")[0]
    if not path.startswith("tests/"):
        return f"`{killer}`"
    return f"[{path.rpartition('/')[2].partition('.')[0]}](../{path})"


def _place(mutant: Mutant) -> tuple[str, int]:
    """The order of docs/rules.md: sections, then numbers."""
    return mutant.section, int(mutant.part.removeprefix(mutant.section) or 0)
