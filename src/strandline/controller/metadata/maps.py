"""Immutable maps of the metadata image, and the deltas that make their next versions.

A map never changes, so that images share the maps and values that are equal in them. A delta writes to its own copy. It
copies a map once, however many records it applies, and a value with parts (e.g. a topic with its partitions) also once.
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
"""Empty map."""


class MapOf(Generic[K, V]):
    """Declaration of one map of the image. Its values are replaced whole.

    `MetadataImage.topics` is such a declaration, `image.topics` the map itself: an image keeps its maps in `__dict__`,
    where Python looks first. A map that is not an attribute of the class also has a name, and is read by `image[map]`.

    Attributes:
        name: name of the map in its image.
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
        """This declaration (on the class), or the empty map (on an image that has no such map in its `__dict__`)."""
        return self if instance is None else NOTHING

    def delta(self, base: Mapping[K, V]) -> MapDelta[K, V]:
        """Start a delta of this map over its state `base`."""
        return MapDelta(base)


class DraftedMap(MapOf[K, V], Generic[K, V, D]):
    """Declaration of a map whose values are changed through drafts: a delta makes one mutable draft of a value, and
    changes it as often as needed."""

    def __init__(
        self,
        name: str = "",
        *,
        empty: V,
        draft: Callable[[V], D],
        made: Callable[[V, D], V],
        parts: Callable[[V], Mapping[Any, Any]] = lambda _: NOTHING,
    ) -> None:
        """Declare a map.

        Args:
            name: name of the map in its image.
            empty: value of a key that does not exist yet.
            draft: makes a mutable draft of a value.
            made: makes the next value from the previous one and its draft.
            parts: the map that a value is or contains, e.g. a topic's partitions. A delta tells which of these changed.
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
        """This declaration (on the class), or the empty map (on an image that has no such map in its `__dict__`)."""
        return self if instance is None else NOTHING

    def delta(self, base: Mapping[K, V]) -> DraftedDelta[K, V, D]:
        """Start a delta of this map over its state `base`."""
        return DraftedDelta(base, self)


class MapOfMaps(DraftedMap[K, Mapping[P, Q], dict[P, Q]], Generic[K, P, Q]):
    """Declaration of a map whose values are maps. A value that becomes empty is removed."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name, empty=NOTHING, draft=dict, made=lambda _, draft: draft, parts=lambda value: value)


class MapDelta(Generic[K, V]):
    """Changes of one map, while a delta is applied.

    Attributes:
        base: the map before the changes.
        changed: key -> changed parts of its value (empty if values have no parts), for the keys that were set and still
            exist, in the order of their first change.
        removed: key -> value in `base`, for the keys of `base` that were removed. A removed key that was set again is
            in both.
    """

    __slots__ = ("_own", "base", "changed", "removed")

    def __init__(self, base: Mapping[K, V]) -> None:
        self.base = base
        self.changed: dict[K, dict[Any, None]] = {}
        self.removed: dict[K, V] = {}
        self._own: dict[K, V] | None = None

    def __bool__(self) -> bool:
        """True if anything changed."""
        return bool(self.changed or self.removed)

    @property
    def now(self) -> Mapping[K, V]:
        """The map with the changes so far. A value with a draft still has its previous state."""
        return self.base if self._own is None else self._own

    def has(self, key: K) -> bool:
        """True if the key exists after the changes so far."""
        return key in self.now

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        self._writable()[key] = value
        self.changed[key] = {}

    def remove(self, key: K) -> None:
        """Remove a key, if it exists."""
        if key in self.now:
            del self._writable()[key]
        self.changed.pop(key, None)
        if key in self.base:
            self.removed[key] = self.base[key]

    def finished(self) -> Mapping[K, V]:
        """The map after all changes. Call it once, at the end."""
        return self.now

    def compare(self, new: Mapping[K, V]) -> None:
        """Set `changed` and `removed` to the differences between `base` and `new`, as if changes had led to `new`."""
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
    """Mutable draft of one value.

    Attributes:
        before: the value before the changes.
        draft: the object that takes the changes.
        changed: keys of the parts that changed.
    """

    before: V
    draft: D
    changed: dict[Any, None]


def put_part(opened: Draft[V, dict[P, Q]], part: P, value: Q) -> None:
    """Set one part of a value that is a map."""
    opened.draft[part] = value
    opened.changed[part] = None


class DraftedDelta(MapDelta[K, V], Generic[K, V, D]):
    """Changes of a `DraftedMap`, while a delta is applied."""

    __slots__ = ("_drafts", "_of")

    def __init__(self, base: Mapping[K, V], of: DraftedMap[K, V, D]) -> None:
        super().__init__(base)
        self._of = of
        self._drafts: dict[K, Draft[V, D]] = {}

    def has(self, key: K) -> bool:
        """True if the key exists after the changes so far, or has a draft."""
        return key in self._drafts or key in self.now

    def put(self, key: K, value: V) -> None:
        """Set the value of a key. A draft of it is dropped."""
        self._drafts.pop(key, None)
        super().put(key, value)

    def open(self, key: K) -> Draft[V, D]:
        """Draft of the value of `key`, which counts as changed from now on. A key that does not exist is added."""
        opened = self._drafts.get(key)
        return self._opened(key, self.now.get(key, self._of.empty)) if opened is None else opened

    def open_known(self, key: K) -> Draft[V, D] | None:
        """Draft of the value of `key`, which counts as changed from now on; None if the key does not exist."""
        opened = self._drafts.get(key)
        if opened is None:
            before = self.now.get(key)
            opened = None if before is None else self._opened(key, before)
        return opened

    def parts(self: DraftedDelta[K, V, dict[P, Q]], key: K) -> Mapping[P, Q]:
        """Parts of the value of `key` after the changes so far; empty if the key does not exist."""
        opened = self._drafts.get(key)
        return self._of.parts(self.now.get(key, self._of.empty)) if opened is None else opened.draft

    def put_part(self: DraftedDelta[K, V, dict[P, Q]], key: K, part: P, value: Q) -> None:
        """Set one part of the value of `key`."""
        put_part(self.open(key), part, value)

    def remove_part(self: DraftedDelta[K, V, dict[P, Q]], key: K, part: P) -> bool:
        """Remove one part of a value, and the value with its last part. Returns False if the part does not exist."""
        opened = self.open(key)
        found = opened.draft.pop(part, None) is not None
        opened.changed[part] = None
        if not opened.draft:
            self.remove(key)
        return found

    def remove(self, key: K) -> None:
        """Remove a key with its draft, if it exists."""
        self._drafts.pop(key, None)
        super().remove(key)

    def finished(self) -> Mapping[K, V]:
        """The map after all changes, with the values made from the drafts. Call it once, at the end."""
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
    """Changes of all maps of one image. Each record of `metadata.table` changes some of them."""

    def __init__(self, maps: Mapping[str, Mapping[Any, Any]]) -> None:
        self._maps = maps
        self._deltas: dict[str, MapDelta[Any, Any]] = {}

    @overload
    def __getitem__(self, of: DraftedMap[K, V, D]) -> DraftedDelta[K, V, D]: ...
    @overload
    def __getitem__(self, of: MapOf[K, V]) -> MapDelta[K, V]: ...

    def __getitem__(self, of: MapOf[Any, Any]) -> MapDelta[Any, Any]:
        """Changes of one map; created at the first access."""
        delta = self._deltas.get(of.name)
        if delta is None:
            delta = self._deltas[of.name] = of.delta(self._maps.get(of.name, NOTHING))
        return delta
