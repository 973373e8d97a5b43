"""Regular expressions over topic names, in time linear in the name whatever the expression.

A member's expression is a stranger's program that the coordinator runs. Python's `re` backtracks: `(a*)*b` would stop
the node for minutes. This one is a set of states walked at once, each set found once and kept (a lazy automaton), as
in RE2, whose syntax Kafka's clients send: literals, `.`, classes with ranges, `\\d \\w \\s` and their opposites,
groups, `|`, `* + ? {m,n}` (a lazy `?` after them changes nothing here), `^` and `$` at the ends. It has to match the
whole name, as in Kafka. Not known, and refused: flags, look-around, back references, `\\b`, Unicode classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

PATTERN_CHARS_MAX = 1024
STATES_MAX = 2_000
"""Of the expression written out: `a{1000}` is a thousand. The walk costs at most so much for a character."""

PARTS_MAX = 4 * STATES_MAX
"""Of the expression written out, those that match nothing included: `(){1000}` is a thousand."""

WORK_MAX = 500_000
"""States that may be visited when an expression is first held against all topics: about 0.1 s."""

SETS_MAX = 2_000
"""Sets of states that are kept; found anew when they are more."""

REPEAT_MAX = 1_000
DEPTH_MAX = 50
RESULTS_MAX = 100_000

Test = Callable[[str], bool]


class PatternError(ValueError):
    """The expression cannot be used; the text says why."""


class _Char(NamedTuple):
    test: Test


class _Split(NamedTuple):
    ways: tuple[int, ...]


class _End(NamedTuple):
    """`anchor`: '^' passes at the beginning of the name, '$' at its end; '' is the end of the expression."""

    anchor: str
    next: int = -1


def _word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())


_CLASSES: dict[str, Test] = {
    "d": lambda char: "0" <= char <= "9",
    "w": _word,
    "s": lambda char: char in " \t\n\r\f\v",
}
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


def _opposite(test: Test) -> Test:
    return lambda char: not test(char)


def _is(literal: str) -> Test:
    return lambda char: char == literal


def _any(tests: list[Test]) -> Test:
    return lambda char: any(test(char) for test in tests)


def _between(low: str, high: str) -> Test:
    return lambda char: low <= char <= high


# The expression as a tree: ("char", test), ("anchor", which), ("seq", parts), ("or", parts), or
# ("repeat", part, low, high)
_Node = tuple[object, ...]


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        node = self._alternatives()
        if self._at < len(self._text):
            raise PatternError(f"an unexpected {self._text[self._at]!r} at {self._at}")
        return node

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise PatternError("the expression ends too early")
        self._at += 1
        return char

    def _alternatives(self) -> _Node:
        parts = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else ("or", parts)

    def _sequence(self) -> _Node:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return ("seq", parts)

    def _atom(self) -> _Node:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return ("char", self._class())
        if char == ".":
            return ("char", lambda char: char != "\n")
        if char in "^$":
            return ("anchor", char)
        if char in "*+?":
            raise PatternError(f"nothing to repeat before {char!r}")
        if char == "\\":
            return self._escaped()
        return ("char", _is(char))

    def _group(self) -> _Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise PatternError(f"groups more than {DEPTH_MAX} deep")
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._text.startswith("?P<", self._at):
            self._at = self._text.find(">", self._at) + 1
            if not self._at:
                raise PatternError("a group's name without an end")
        elif self._peek() == "?":
            raise PatternError("flags and look-around are not known here")
        node = self._alternatives()
        if self._peek() != ")":
            raise PatternError("a group without an end")
        self._at += 1
        self._depth -= 1
        return node

    def _escaped(self) -> _Node:
        char = self._next()
        if char in "AzZ":
            return ("anchor", "^" if char == "A" else "$")
        return ("char", self._escape(char))

    def _escape(self, char: str) -> Test:
        if char.lower() in _CLASSES:
            test = _CLASSES[char.lower()]
            return test if char.islower() else _opposite(test)
        if char in _CONTROL:
            return _is(_CONTROL[char])
        if char == "Q" or char.isalnum():
            raise PatternError(f"\\{char} is not known here")
        return _is(char)

    def _class(self) -> Test:
        negated = self._peek() == "^"
        self._at += negated
        tests: list[Test] = []
        first = True
        while first or self._peek() != "]":
            first = False
            char = self._next()
            if char == "\\":
                escaped = self._next()
                if escaped.isalnum():
                    tests.append(self._escape(escaped))
                    continue
                char = escaped
            elif char == "[" and self._peek() == ":":
                raise PatternError("[:classes:] are not known here")
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._next()
                if high == "\\":
                    high = self._next()
                if high < char:
                    raise PatternError(f"a range from {char!r} down to {high!r}")
                tests.append(_between(char, high))
            else:
                tests.append(_is(char))
        self._at += 1
        return _opposite(_any(tests)) if negated else _any(tests)

    def _repeated(self, node: _Node) -> _Node:
        char = self._peek()
        if not char or char not in "*+?{":
            return node
        self._at += 1
        if char == "{":
            low, high = self._bounds()
        else:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        if self._peek() == "?":
            self._at += 1
        if self._peek() and self._peek() in "*+?{":
            raise PatternError("a repetition of a repetition; put the first into a group")
        return ("repeat", node, low, high)

    def _bounds(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        first, comma, second = self._text[self._at : max(end, self._at)].partition(",")
        if end < 0 or not (first.isascii() and first.isdigit()) or (second and not second.isdigit()):
            raise PatternError("a { that is no count; write \\{ for the character")
        if len(first) > 4 or len(second) > 4:
            raise PatternError(f"more than {REPEAT_MAX} repetitions")
        self._at = end + 1
        low = int(first)
        high = low if not comma else int(second) if second else None
        if max(low, high or 0) > REPEAT_MAX:
            raise PatternError(f"more than {REPEAT_MAX} repetitions")
        if high is not None and high < low:
            raise PatternError(f"at least {low} and at most {high} repetitions")
        return low, high


class TopicPattern:
    """A compiled expression. Raises PatternError for one that cannot be used.

    Attributes:
        work: states that were visited so far.
    """

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise PatternError(f"longer than {PATTERN_CHARS_MAX} characters")
        self.text = text
        self.work = 0
        self._parts = 0
        self._states: list[_Char | _Split | _End] = []
        tree = _Parser(text).parse()
        end = self._add(_End(""))
        self._first = self._build(tree, end)
        self._sets: dict[frozenset[int], dict[str, frozenset[int]]] = {}
        self._accepting: dict[frozenset[int], bool] = {}
        self._begin = self._closure([self._first], at_begin=True)
        self._known: dict[str, bool] = {}

    # Building: states are made from the end, so that each knows what follows it.

    def _add(self, state: _Char | _Split | _End) -> int:
        if len(self._states) >= STATES_MAX:
            raise PatternError(f"the expression has more than {STATES_MAX} states")
        self._states.append(state)
        return len(self._states) - 1

    def _build(self, node: _Node, following: int) -> int:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise PatternError(f"the expression has more than {PARTS_MAX} parts")
        kind, *rest = node
        match kind, rest:
            case "char", [test]:
                # A character's successor is always the state before it in the list.
                return self._add_char(test, following)  # type: ignore[arg-type]
            case "anchor", [which]:
                return self._add(_End(str(which), following))
            case "seq", [parts]:
                for part in reversed(parts):  # type: ignore[call-overload]
                    following = self._build(part, following)
                return following
            case "or", [parts]:
                return self._add(_Split(tuple(self._build(part, following) for part in parts)))  # type: ignore[attr-defined]
            case "repeat", [part, low, high]:
                return self._build_repeat(part, low, high, following)  # type: ignore[arg-type]
        raise AssertionError(node)

    def _add_char(self, test: Test, following: int) -> int:
        if following != len(self._states) - 1:
            self._add(_Split((following,)))
        return self._add(_Char(test))

    def _build_repeat(self, part: _Node, low: int, high: int | None, following: int) -> int:
        if high is None:
            loop = self._add(_Split(()))
            self._states[loop] = _Split((self._build(part, loop), following))
            following = loop
        else:
            for _ in range(high - low):
                following = self._add(_Split((self._build(part, following), following)))
        for _ in range(low):
            following = self._build(part, following)
        return following

    # Matching

    def _closure(self, states: Iterable[int], *, at_begin: bool = False, at_end: bool = False) -> frozenset[int]:
        """All states that are reached without a character. Anchors stay in the set: whether '$' passes shows later."""
        seen: set[int] = set()
        stack = list(states)
        while stack:
            number = stack.pop()
            if number in seen:
                continue
            seen.add(number)
            state = self._states[number]
            if isinstance(state, _Split):
                stack += state.ways
            elif isinstance(state, _End) and ((state.anchor == "^" and at_begin) or (state.anchor == "$" and at_end)):
                stack.append(state.next)
        self.work += len(seen)
        return frozenset(seen)

    def check(self, names: Iterable[str]) -> None:
        """Hold it against all topics for the first time. Raises PatternError when that costs too much."""
        for name in names:
            self.matches(name)
            if self.work > WORK_MAX:
                raise PatternError("it costs too much to hold it against the topics; make it simpler")

    def matches(self, name: str) -> bool:
        """The whole name is of the pattern."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= RESULTS_MAX:
                self._known.clear()
            known = self._known[name] = self._walk(name)
        return known

    def _walk(self, name: str) -> bool:
        current = self._begin
        for char in name:
            if not current:
                return False
            ways = self._sets.get(current)
            if ways is None:
                if len(self._sets) >= SETS_MAX:
                    self._sets.clear()
                ways = self._sets[current] = {}
            following = ways.get(char)
            if following is None:
                following = ways[char] = self._step(current, char)
            current = following
        if not name:
            return 0 in self._closure(current, at_begin=True, at_end=True)
        accepted = self._accepting.get(current)
        if accepted is None:
            if len(self._accepting) >= SETS_MAX:
                self._accepting.clear()
            accepted = self._accepting[current] = 0 in self._closure(current, at_end=True)
        return accepted

    def _step(self, current: frozenset[int], char: str) -> frozenset[int]:
        self.work += len(current)
        reached = []
        for number in sorted(current):
            state = self._states[number]
            if isinstance(state, _Char) and state.test(char):
                reached.append(number - 1)
        return self._closure(reached)
