"""The table of mutants for the documentation."""

from __future__ import annotations

from itertools import groupby

from strandline.chaos.mutants import MUTANTS

_TITLES = {
    "A": "The quorum (A)",
    "B": "The controller and replication (B)",
    "C": "Idempotence and groups (C)",
    "F": "After a crash (F)",
}


def mutants_table() -> str:
    """Rule, mutant, and what kills it, in the order of the rules."""
    lines: list[str] = []
    mutants = sorted(MUTANTS.values(), key=lambda mutant: mutant.part[0])
    for letter, group in groupby(mutants, key=lambda mutant: mutant.part[0]):
        lines += [f"### {_TITLES.get(letter, letter)}", "", "| rule taken out | mutant | killed by |", "|---|---|---|"]
        for mutant in group:
            killers = "<br>".join(f"`{killer}`" for killer in mutant.killed_by)
            rule = mutant.rule.replace("|", "\\|")  # |ISR| is no column
            lines.append(f"| {rule} | `{mutant.name}` | {killers} |")
        lines.append("")
    return "\n".join(lines)
