"""Names use the words of Kafka, Raft, Python and plain English, or a word that docs/glossary.md explains.

The words of the names of modules and classes are compared by their stems: `copies`, `copied` and `copying` are `copy`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"
PLAIN_WORDS = ROOT / "tests" / "plain_words.txt"

_ENDINGS = (("ies", "y"), *((each, "") for each in ("ings", "ing", "ions", "ion", "ers", "er", "ors", "or", "ed")))
_LAST_ENDINGS = ("es", "s", "ly")
_STEM_LETTERS_MIN = 3


def stem(word: str) -> str:
    """The word without its ending, in lower case; equal for most forms of one word."""
    word = word.lower()
    for ending, instead in (*_ENDINGS, *((each, "") for each in _LAST_ENDINGS)):
        if word.endswith(ending) and len(word) - len(ending) + len(instead) >= _STEM_LETTERS_MIN:
            word = word.removesuffix(ending) + instead
            break
    if len(word) > _STEM_LETTERS_MIN and word[-1] == "e":
        word = word[:-1]
    return word[:-1] if len(word) > _STEM_LETTERS_MIN and word[-1] == word[-2] else word


def words_of(name: str) -> list[str]:
    """The words of `snake_case` or `CamelCase`."""
    return re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)


def names() -> list[tuple[str, str]]:
    """Names of modules and of public classes, each with its file."""
    found = []
    for folder in ("src/strandline", "lab"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            if "_pb2" in place:
                continue
            classes = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
            found += [(name, place) for name in (path.stem, *classes) if name.strip("_") and name[0] != "_"]
    return found


def explained() -> set[str]:
    """Stems of the words that the glossary has an entry for."""
    entries = re.findall(r"^\*\*(.+?)\*\*", GLOSSARY.read_text(), re.MULTILINE)
    return {stem(word) for entry in entries for word in re.findall(r"[A-Za-z]+", entry)}


def test_every_word_of_a_name_is_plain_or_explained() -> None:
    known = explained() | set(PLAIN_WORDS.read_text().split())
    new = {f"{word} ({name}, {place})" for name, place in names() for word in words_of(name) if stem(word) not in known}
    assert not new, (
        "Words that no name had before. Take the word of Kafka, Raft or Python if there is one. Else a word that means "
        "here what it means anywhere goes into tests/plain_words.txt, by its stem, and any other word gets a sentence "
        f"in docs/glossary.md: {sorted(new)}"
    )


def test_the_list_of_plain_words_holds_no_word_of_this_code() -> None:
    """A word that the glossary explains as our own is not taken for plain."""
    own = GLOSSARY.read_text().partition("## Words of this code")[2]
    entries = {stem(word) for entry in re.findall(r"^\*\*(.+?)\*\*", own, re.MULTILINE) for word in entry.split(", ")}
    assert not {word.strip(".") for word in entries} & set(PLAIN_WORDS.read_text().split())


def test_forms_of_a_word_have_one_stem() -> None:
    for forms in (
        ("copy", "copies"),
        ("commit", "commits", "committed", "committing"),
        ("rule", "rules"),
        ("Nap", "naps"),
    ):
        assert len({stem(form) for form in forms}) == 1, forms
