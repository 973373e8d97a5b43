"""What a mutant is: production code with one rule taken out, named, and what notices that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patch:
    """One change to the source of one function, made at run time.

    Text and not a stand-in function: the change is as small as the rule, reads like a line of a diff, and goes stale
    loudly, because `old` must occur in the function exactly once.
    """

    where: str
    """`module:function` or `module:Class.method`, the module without its `strandline.`"""
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule taken out.

    Attributes:
        name: what `--break` and `python -m lab.mutants` call it.
        rule: the rule that is gone: its number in docs/rules.md (`A6`, or `schedule 45` where the rule has no other
            name), a colon, and the clause.
        patches: together they take the rule out.
        killed_by: each of these must fail with the rule gone: pytest node ids, or `seed:SCENARIO:N`.
    """

    name: str
    rule: str
    patches: tuple[Patch, ...]
    killed_by: tuple[str, ...]

    @property
    def part(self) -> str:
        """What its rule is filed under: the rule's text up to the colon, such as `A6` or `schedule 45`."""
        return self.rule.partition(":")[0]

    @property
    def section(self) -> str:
        """The section of docs/rules.md that has its rule: a letter, or `schedule`."""
        return self.part.rstrip("0123456789 ")


def one_change(name: str, rule: str, where: str, old: str, new: str, *killed_by: str) -> Mutant:
    """A mutant of one patch, as most are."""
    return Mutant(name, rule, (Patch(where, old, new),), killed_by)
