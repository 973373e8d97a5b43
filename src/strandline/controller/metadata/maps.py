"""Maps of the metadata image, what makes the next ones of them, and what differs between two.

A map never changes: images share each map, and each value, that is the same in them. A delta writes into a copy of its
own. It copies a map once, however many records it applies, and of a value that has parts (the partitions of a topic) it
copies those once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
P = TypeVar("P")
Q = TypeVar("Q")

NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""A map without a key."""


class MapOf(Generic[K, V]):
    """One map of the image, whose values are put whole.

    An attribute of the class `MetadataImage` is this, the same attribute of an image the map itself: images keep their
    maps in `__dict__`, which Python asks first. A map that has no attribute there has a name all the same, and is read
    by `image[map]`.

    Attributes:
        name: of the map in its image.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: Any) -> MapOf[K, V]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> Mapping[K, V]: ...

    def __get__(self, instance: object | None, owner: Any) -> MapOf[K, V] | Mapping[K, V]:
        """The map of an image that has no key in it: other images have theirs in `__dict__`."""
        return self if instance is None else NOTHING

    def delta(self, base: Mapping[K, V]) -> MapDelta[K, V]:
        """What changes it, over `base`."""
        return MapDelta(base)


class DraftedMap(MapOf[K, V], Generic[K, V, D]):
    """A map whose values are changed in drafts: one draft a value and a delta, however often the value changes."""

    def __init__(
        self,
        name: str = "",
        *,
        empty: V,
        draft: Callable[[V], D],
        made: Callable[[V, D], V],
        parts: Callable[[V], Mapping[Any, Any]] = lambda _: NOTHING,
    ) -> None:
        """`empty`: the value of a key that is not there yet. `draft`: the draft of a value. `made`: the next value, of
        the one before and the draft. `parts`: the map that a value is, or holds: a delta tells which of these changed.
        """
        super().__init__(name)
        self.empty = empty
        self.draft = draft
        self.made = made
        self.parts = parts

    @overload
    def __get__(self, instance: None, owner: Any) -> DraftedMap[K, V, D]: ...
    @overload
    def __get__(self, instance: object, owner: Any) -> Mapping[K, V]: ...

    def __get__(self, instance: object | None, owner: Any) -> DraftedMap[K, V, D] | Mapping[K, V]:
        """As of `MapOf`."""
        return self if instance is None else NOTHING

    def delta(self, base: Mapping[K, V]) -> DraftedDelta[K, V, D]:
        """What changes it, over `base`."""
        return DraftedDelta(base, self)


class MapOfMaps(DraftedMap[K, Mapping[P, Q], dict[P, Q]], Generic[K, P, Q]):
    """A map whose values are maps. One that is empty is not in it."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name, empty=NOTHING, draft=dict, made=lambda _, draft: draft, parts=lambda value: value)


class MapDelta(Generic[K, V]):
    """A map that is being changed.

    Attributes:
        base: the map before.
        changed: keys that were put, and are still there, in the order of first change; behind each the parts of its
            value that changed, where values have parts.
        removed: the keys of `base` that were removed, with their values there. One that was put again is in both.
    """

    __slots__ = ("_own", "base", "changed", "removed")

    def __init__(self, base: Mapping[K, V]) -> None:
        self.base = base
        self.changed: dict[K, dict[Any, None]] = {}
        self.removed: dict[K, V] = {}
        self._own: dict[K, V] | None = None

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.changed or self.removed)

    @property
    def now(self) -> Mapping[K, V]:
        """The map by now. Of a value that is in a draft it has what was there before."""
        return self.base if self._own is None else self._own

    def has(self, key: K) -> bool:
        """The key is there by now."""
        return key in self.now

    def put(self, key: K, value: V) -> None:
        """Set a value, in the place of any earlier one."""
        self._writable()[key] = value
        self.changed[key] = {}

    def remove(self, key: K) -> None:
        """Take a key out, if it is there."""
        if key in self.now:
            del self._writable()[key]
        self.changed.pop(key, None)
        if key in self.base:
            self.removed[key] = self.base[key]

    def finished(self) -> Mapping[K, V]:
        """The map after all changes, to which nothing is changed any more."""
        return self.now

    def compare(self, new: Mapping[K, V]) -> None:
        """Tell what differs between `base` and `new`, as if changes had led there."""
        if new is self.base:
            return
        self.removed = {key: value for key, value in self.base.items() if key not in new}
        for key, value in new.items():
            old = self.base.get(key)
            if old is not value and (old is None or old != value):
                self.changed[key] = self._differing_parts(old, value)

    def _differing_parts(self, old: V | None, new: V) -> dict[Any, None]:
        return {}

    def _writable(self) -> dict[K, V]:
        if self._own is None:
            self._own = dict(self.base)
        return self._own


@dataclass(slots=True)
class Draft(Generic[V, D]):
    """A value that is being changed.

    Attributes:
        before: the value before.
        draft: what it is changed in.
        changed: its parts that changed.
    """

    before: V
    draft: D
    changed: dict[Any, None]


def put_part(opened: Draft[V, dict[P, Q]], part: P, value: Q) -> None:
    """Set one part of a value that is a map, or holds one."""
    opened.draft[part] = value
    opened.changed[part] = None


class DraftedDelta(MapDelta[K, V], Generic[K, V, D]):
    """A `DraftedMap` that is being changed."""

    __slots__ = ("_drafts", "_of")

    def __init__(self, base: Mapping[K, V], of: DraftedMap[K, V, D]) -> None:
        super().__init__(base)
        self._of = of
        self._drafts: dict[K, Draft[V, D]] = {}

    def has(self, key: K) -> bool:
        """The key is there by now, or in a draft."""
        return key in self._drafts or key in self.now

    def put(self, key: K, value: V) -> None:
        """Set a value, in the place of any earlier one, and of its draft."""
        self._drafts.pop(key, None)
        super().put(key, value)

    def open(self, key: K) -> Draft[V, D]:
        """A value in its draft, which counts as changed; it may be a new one."""
        opened = self._drafts.get(key)
        return self._opened(key, self.now.get(key, self._of.empty)) if opened is None else opened

    def open_known(self, key: K) -> Draft[V, D] | None:
        """The same of a key that is there; None: it is not."""
        opened = self._drafts.get(key)
        if opened is None:
            before = self.now.get(key)
            opened = None if before is None else self._opened(key, before)
        return opened

    def parts(self: DraftedDelta[K, V, dict[P, Q]], key: K) -> Mapping[P, Q]:
        """The parts of a value by now; none, where it is not there."""
        opened = self._drafts.get(key)
        return self._of.parts(self.now.get(key, self._of.empty)) if opened is None else opened.draft

    def put_part(self: DraftedDelta[K, V, dict[P, Q]], key: K, part: P, value: Q) -> None:
        """Set one part of a value."""
        put_part(self.open(key), part, value)

    def remove_part(self: DraftedDelta[K, V, dict[P, Q]], key: K, part: P) -> bool:
        """Take a part out of a value, and the value with its last part. False: it is not there."""
        opened = self.open(key)
        found = opened.draft.pop(part, None) is not None
        opened.changed[part] = None
        if not opened.draft:
            self.remove(key)
        return found

    def remove(self, key: K) -> None:
        """Take a key out, if it is there, and its draft."""
        self._drafts.pop(key, None)
        super().remove(key)

    def finished(self) -> Mapping[K, V]:
        """The map after all changes: what was drafted is made."""
        if self._drafts:
            own, made = self._writable(), self._of.made
            for key, opened in self._drafts.items():
                own[key] = made(opened.before, opened.draft)
        return self.now

    def _opened(self, key: K, before: V) -> Draft[V, D]:
        opened = self._drafts[key] = Draft(before, self._of.draft(before), self.changed.setdefault(key, {}))
        return opened

    def _differing_parts(self, old: V | None, new: V) -> dict[Any, None]:
        before, after = self._of.parts(self._of.empty if old is None else old), self._of.parts(new)
        differing = {part: None for part, value in after.items() if before.get(part) != value}
        return differing | {part: None for part in before if part not in after}


class MapDeltas:
    """The maps of one image that are being changed: each record of `metadata.table` changes some."""

    def __init__(self, maps: Mapping[str, Mapping[Any, Any]]) -> None:
        self._maps = maps
        self._deltas: dict[str, MapDelta[Any, Any]] = {}

    @overload
    def __getitem__(self, of: DraftedMap[K, V, D]) -> DraftedDelta[K, V, D]: ...
    @overload
    def __getitem__(self, of: MapOf[K, V]) -> MapDelta[K, V]: ...

    def __getitem__(self, of: MapOf[Any, Any]) -> MapDelta[Any, Any]:
        """One of the maps; its delta is made when it is first asked for."""
        delta = self._deltas.get(of.name)
        if delta is None:
            delta = self._deltas[of.name] = of.delta(self._maps.get(of.name, NOTHING))
        return delta
