"""Mutants: production code with one rule taken out, named, and what notices that.

A comment in the code marks the statement that a mutant changes: `# rule A5/no-check-quorum`. The mutant says what is
done to that statement. It names no module, class, function or line: code moves, is formatted and is renamed, and the
comment goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The part of a marked statement that a change touches."""

    STATEMENT = "the statement"
    CONDITION = "its condition"
    VALUE = "its value"
    PART = "an expression in it"
    OPERAND = "an operand in it"


@dataclass(frozen=True, slots=True)
class Change:
    """One change to one marked statement, made at run time.

    Attributes:
        kind: the part that goes.
        old: the expression to find in the statement, where the kind does not say which; else "".
        new: the source of what stands there instead. `...` in it is what stood there before.
    """

    kind: Kind
    old: str
    new: str


def removed() -> Change:
    """The statement is not there."""
    return Change(Kind.STATEMENT, "", "pass")


def instead(code: str) -> Change:
    """The statements of `code` stand there; a line of `...` among them is the marked statement."""
    return Change(Kind.STATEMENT, "", code)


def never() -> Change:
    """The condition of the `if` or `while` is False."""
    return Change(Kind.CONDITION, "", "False")


def always() -> Change:
    """The condition of the `if` or `while` is True."""
    return Change(Kind.CONDITION, "", "True")


def condition(new: str) -> Change:
    """The condition of the `if` or `while` is another: `... and x` is the old one and `x`."""
    return Change(Kind.CONDITION, "", new)


def value(new: str) -> Change:
    """Another value is returned, raised, assigned, called, iterated over or caught."""
    return Change(Kind.VALUE, "", new)


def part(old: str, new: str) -> Change:
    """The expression `old` in the statement is `new`."""
    return Change(Kind.PART, old, new)


def dropped(operand: str) -> Change:
    """The operand of an `and` or `or`, the argument, the item or the filter of a comprehension is not there."""
    return Change(Kind.OPERAND, operand, "")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule taken out.

    Attributes:
        name: what `--break` and `python -m lab.mutants` call it.
        rule: the rule that is gone: its number in docs/rules.md (`A6`, or `schedule 45` where the rule has no other
            name), a colon, and the clause.
        changes: together they take the rule out. The first is made where the name of the mutant stands in the code,
            the second where its name with `/2` stands, and so on.
        killed_by: each of these must fail with the rule gone: pytest node ids, or `seed:SCENARIO:N`.
    """

    name: str
    rule: str
    changes: tuple[Change, ...]
    killed_by: tuple[str, ...]

    @property
    def part(self) -> str:
        """Heading of its rule: the rule's text up to the colon, such as `A6` or `schedule 45`."""
        return self.rule.partition(":")[0]

    @property
    def section(self) -> str:
        """The section of docs/rules.md that has its rule: a letter, or `schedule`."""
        return self.part.rstrip("0123456789 ")

    @property
    def markers(self) -> tuple[str, ...]:
        """The comment that marks the place of each change, as `rule A5/no-check-quorum`."""
        kind = "" if self.part.startswith("schedule") else "rule "
        place = f"{kind}{self.part}/{self.name}"
        return tuple(place if number == 1 else f"{place}/{number}" for number in range(1, len(self.changes) + 1))


def one_change(name: str, rule: str, change: Change, *killed_by: str) -> Mutant:
    """A mutant of one change, as most are."""
    return Mutant(name, rule, (change,), killed_by)
