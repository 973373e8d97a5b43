"""Text from outside, made fit to be shown (rule A29).

Clients choose their ids, groups, principals and records; other programs write files and answer with errors. A terminal
obeys some characters: it clears the screen, turns text around, sets a title, types what it was told. None of them gets
there as it came.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """One line of it: whatever is no sign to be seen, ends of lines too, is written as Python writes it."""
    return text if text.isprintable() else "".join(one if one.isprintable() else _escaped(one) for one in text)


def printable_lines(text: str) -> str:
    """Make a text printable, but keep its line breaks and tabs."""
    return "\n".join("\t".join(printable(cell) for cell in line.split("\t")) for line in text.split("\n"))


def printable_json(text: str) -> str:
    """A document of JSON with signs of every language in it: what is to be escaped is escaped as JSON does it."""
    return (
        text if text.isprintable() else "".join(one if one in "\n" or one.isprintable() else _unit(one) for one in text)
    )


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode()


def _unit(one: str) -> str:
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
