"""Objects to values and back: a core's whole state as one nested tuple, that can be hashed, compared and renamed.

Nothing is written by hand for a class: its slots or attributes are its state, so that an attribute that is added to a
core tomorrow is part of the explored states tomorrow. What is not state (a generator, the settings) or only decides
how long something takes is named once, in a `Codec`.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from operator import attrgetter
from types import MethodType
from typing import Any, NamedTuple
from uuid import UUID


class Node(int):
    """A node's id. A type of its own, so that ids can be told from other numbers and swapped: see `Codec.freeze`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"n{int(self)}"

    __str__ = __repr__


Frozen = Any
"""An atom, or a tuple that begins with a `Shape` or with the mark of a container."""

_ATOMS = frozenset({type(None), bool, int, float, str, bytes, UUID})


class _Mark:
    """Stands at the head of a container's value."""

    __slots__ = ("label", "type")

    def __init__(self, cls: type, label: str) -> None:
        self.type = cls
        self.label = label

    def __repr__(self) -> str:
        return self.label

    def __reduce__(self) -> str:
        return "_METHOD" if self.type is MethodType else f"_{self.type.__name__.upper()}"


_TUPLE, _LIST, _DICT, _DEQUE = _Mark(tuple, "t"), _Mark(list, "l"), _Mark(dict, "d"), _Mark(deque, "q")
_METHOD = _Mark(MethodType, "m")
"""A method that is bound to an object of the same value: what an object calls back."""
_MARKS = {list: _LIST, deque: _DEQUE}


class Shape:
    """The attributes of one class. A class without slots has a shape for each set of attributes that was met.

    Attributes:
        kept: those that are state; fixed: those that are not, and what they are; derived: those that follow.
        forms: of those kept, the place of each that has a form of its own, and the form.
        made_by_call: a value without an identity, made by a call.
    """

    __slots__ = ("derived", "fixed", "forms", "get", "kept", "label", "made_by_call", "names", "type")

    def __init__(self, cls: type, names: tuple[str, ...], made_by_call: bool, codec: Codec) -> None:
        self.type = cls
        self.names = names
        self.fixed = codec.fixed_of(cls)
        self.derived = tuple((name, how) for (owner, name), how in codec.derived.items() if issubclass(cls, owner))
        left_out = {name for name, _ in (*self.fixed, *self.derived)}
        self.kept = tuple(name for name in names if name not in left_out)
        places = [(cls, name) for name in self.kept]
        self.forms = {place: codec.normal.get(at) for place, at in enumerate(places) if at in codec.normal}
        self.forms |= {
            place: Unordered(codec.unordered[at]) for place, at in enumerate(places) if at in codec.unordered
        }
        self.made_by_call = made_by_call
        self.get: Callable[[Any], tuple[Any, ...]] = _getter(self.kept)
        self.label = f"{cls.__qualname__}{zlib.crc32(' '.join(names).encode()):x}"

    def __repr__(self) -> str:
        """The same in every process: digests of values are made of it."""
        return self.label


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda value: (getattr(value, names[0]),)) if names else (lambda value: ())


class Unordered(NamedTuple):
    """The form of a tuple whose order says nothing: by the nodes of its items."""

    node_of: Callable[[Any], Any]


class Same:
    """Stands for an object that occurred before in the same value: number `index` in the order of first occurrence."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"={self.index}"


class Fresh(NamedTuple):
    """Mark in `Codec.fixed` of a value that is made anew for each object, since the core writes into it."""

    make: Callable[[], Any]


class Codec:
    """Rules on what to leave out of values, and what to put in its place.

    Attributes:
        fixed: (class, attribute) -> what it is in every state: not part of the value, and set anew by `thaw`.
        normal: (class, attribute) -> the form in which it is kept, where several mean the same.
        unordered: (class, attribute) -> the node of an item, for a tuple whose order says nothing.
        derived: (class, attribute) -> how it follows from the rest of the object, once that is whole.
    """

    def __init__(
        self,
        fixed: Mapping[tuple[type, str], Any],
        normal: Mapping[tuple[type, str], Callable[[Any], Any]] | None = None,
        unordered: Mapping[tuple[type, str], Callable[[Any], Any]] | None = None,
        derived: Mapping[tuple[type, str], Callable[[Any], Any]] | None = None,
    ) -> None:
        self.fixed = dict(fixed)
        self.derived = dict(derived or {})
        self.normal = dict(normal or {})
        self.unordered = dict(unordered or {})
        self.shared: dict[Frozen, Any] = {}
        self.frozen: dict[int, Frozen] = {}
        self._shapes: dict[Any, Shape] = {}
        self._sames: list[Same] = []

    def freeze(self, value: Any, renaming: Mapping[Node, Node] | None = None) -> Frozen:
        """The state of an object graph. With `renaming`, of the same one in a cluster whose nodes are so called.

        Dictionaries by number or name are kept in the order of their keys: what matters in a core is what is in them.

        Raises:
            TypeError: something in it is no state, and `fixed` does not say so.
        """
        return _Freezing(self, renaming).of(value)

    def thaw(self, frozen: Frozen) -> Any:
        """The objects of a value, made anew."""
        thawing = _Decoding(self)
        made = thawing.of(frozen)
        thawing.finish()
        return made

    def share(self, frozen: Frozen, value: Any) -> Any:
        """Use one object wherever this immutable value stands: it is then frozen by a look at its identity."""
        value = self.shared.setdefault(frozen, value)
        self.frozen[id(value)] = frozen
        return value

    def same(self, index: int) -> Same:
        """One object for each index, so that values compare by it."""
        while len(self._sames) <= index:
            self._sames.append(Same(len(self._sames)))
        return self._sames[index]

    def shape_of(self, value: Any) -> Shape:
        """The shape of an object that is no atom and no container.

        Raises:
            TypeError: it has no attributes that could be its state.
        """
        cls = type(value)
        shape = self._shapes.get(cls)
        if shape is None:
            shape = self._immutable(cls)
            if shape is None and hasattr(value, "__dict__"):
                return self._shape(cls, tuple(sorted(vars(value))))
            shape = self._shapes[cls] = shape or self._slotted(cls)
        return shape

    def _shape(self, cls: type, names: tuple[str, ...], *, made_by_call: bool = False) -> Shape:
        shape = self._shapes.get((cls, names))
        if shape is None:
            shape = self._shapes[cls, names] = Shape(cls, names, made_by_call, self)
        return shape

    def _immutable(self, cls: type) -> Shape | None:
        """Values without an identity: they are made by a call, and may stand in a state many times."""
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return self._shape(cls, tuple(cls._fields), made_by_call=True)
        if is_dataclass(cls) and cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            return self._shape(cls, tuple(cls.__dataclass_fields__), made_by_call=True)
        return None

    def _slotted(self, cls: type) -> Shape:
        names = tuple(sorted({name for owner in cls.__mro__ for name in getattr(owner, "__slots__", ())}))
        if not names or cls.__module__ == "builtins":
            raise TypeError(f"a {cls.__name__} is no state: say in `fixed` which attribute it is the value of")
        return self._shape(cls, names)

    def fixed_of(self, cls: type) -> tuple[tuple[str, Any], ...]:
        """The attributes of a class that are not state, and their values."""
        rows = {name: value for owner in cls.__mro__[::-1] for (at, name), value in self.fixed.items() if at is owner}
        return tuple(rows.items())

    # Between processes

    def pack(self, value: Any) -> bytes:
        """Values for another process. Shapes are those of their classes there."""
        out = io.BytesIO()
        _Packer(out).dump(value)
        return out.getvalue()

    def unpack(self, packed: bytes) -> Any:
        """The values that another process packed."""
        return _Unpacker(io.BytesIO(packed), self).load()

    def found(self, key: Any) -> Shape | Same:
        """The shape or the reference that another process means."""
        if isinstance(key, int):
            return self.same(key)
        cls, names, made_by_call = key
        return self._shape(cls, names, made_by_call=made_by_call)


class _Packer(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is Shape:
            return (obj.type, obj.names, obj.made_by_call)
        return obj.index if type(obj) is Same else None


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, codec: Codec) -> None:
        super().__init__(file)
        self._codec = codec

    def persistent_load(self, pid: Any) -> Any:
        return self._codec.found(pid)


class _Freezing:
    """One value being made."""

    __slots__ = ("_blind", "_codec", "_met", "_renaming")

    def __init__(self, codec: Codec, renaming: Mapping[Node, Node] | None) -> None:
        self._codec = codec
        self._renaming = renaming
        self._blind = renaming is not None and len(set(renaming.values())) == 1
        self._met: dict[int, int] = {}

    def of(self, value: Any) -> Frozen:
        cls = type(value)
        if cls in _ATOMS:
            return value
        if cls is Node:
            return value if self._renaming is None else self._renaming[value]
        if cls is tuple:
            return (_TUPLE, *[self.of(item) for item in value]) if value else _NO_TUPLE
        if cls is dict:
            return self._dict(value)
        if cls is list or cls is deque:
            return (_MARKS[cls], *[self.of(item) for item in value])
        if isinstance(value, Enum):
            return value
        if cls is MethodType:
            return (_METHOD, self.of(value.__self__), value.__name__)
        return self._object(value)

    def _dict(self, value: dict[Any, Any]) -> Frozen:
        if not value:
            return _NO_DICT
        items = list(value.items())
        if len(items) > 1 and isinstance(items[0][0], int | str):
            items.sort(key=self._place_of_item)  # before the values: objects are numbered in the order of the result
        return (_DICT, *[self.of(part) for item in items for part in item])

    def _place_of_item(self, item: tuple[Any, Any]) -> Any:
        return self._place(item[0], item[1])

    def _place(self, key: Any, item: Any) -> Any:
        """Rank of an item of this key. Where all nodes are called alike, what is in it decides."""
        return f"{self._sign(key, 1)} {self._sign(item, 1)}" if self._blind else self.of(key)

    def _sign(self, value: Any, depth: int) -> str:
        """Sign of a value: what can be told of it without going far into it."""
        cls = type(value)
        if cls is Node:
            return "n"
        if cls in _ATOMS or isinstance(value, Enum):
            return repr(value)
        if isinstance(value, tuple | list | deque):
            return f"({' '.join([self._sign(item, depth) for item in value])})"
        if cls is dict or not depth:
            return str(len(value)) if cls is dict else ""
        shape = self._codec.shape_of(value)
        return " ".join([self._sign(item, depth - 1) for item in shape.get(value)])

    def _object(self, value: Any) -> Frozen:
        codec = self._codec
        shape = codec.shape_of(value)
        if shape.made_by_call:
            return self._immutable(value, shape)
        index = self._met.get(id(value))
        if index is not None:
            return codec.same(index)
        self._met[id(value)] = len(self._met)
        return self._parts(value, shape)

    def _immutable(self, value: Any, shape: Shape) -> Frozen:
        if self._renaming is not None:
            return self._parts(value, shape)
        known = self._codec.frozen.get(id(value))
        if known is None:
            known = self._parts(value, shape)
            self._codec.share(known, value)
        return known

    def _parts(self, value: Any, shape: Shape) -> Frozen:
        of = self.of
        items = shape.get(value)
        if not shape.forms:
            return (shape, *[item if type(item) in _ATOMS else of(item) for item in items])
        formed = list(items)
        for place, form in shape.forms.items():
            formed[place] = self._formed(formed[place], form)
        return (shape, *[item if type(item) in _ATOMS else of(item) for item in formed])

    def _formed(self, item: Any, form: Any) -> Any:
        if type(form) is not Unordered:
            return form(item)
        if not item or len(item) == 1:
            return item
        node_of = form.node_of
        return tuple(sorted(item, key=lambda one: self._place(node_of(one), one)))


_NO_TUPLE: Frozen = (_TUPLE,)
_NO_DICT: Frozen = (_DICT,)


class _Decoding:
    """One value being turned into objects."""

    __slots__ = ("_codec", "_made", "_unfinished")

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._made: list[Any] = []
        self._unfinished: list[tuple[Any, Shape]] = []

    def finish(self) -> None:
        """Derive what follows from the rest."""
        for made, shape in self._unfinished:
            for name, how in shape.derived:
                setattr(made, name, how(made))

    def of(self, frozen: Frozen) -> Any:
        cls = type(frozen)
        if cls is not tuple:
            return self._made[frozen.index] if cls is Same else frozen
        head = frozen[0]
        if type(head) is Shape:
            return self._value(head, frozen) if head.made_by_call else self._object(head, frozen)
        of = self.of
        if head is _TUPLE:
            return tuple([of(item) for item in frozen[1:]])
        if head is _DICT:
            return {of(frozen[i]): of(frozen[i + 1]) for i in range(1, len(frozen), 2)}
        if head is _METHOD:
            return getattr(of(frozen[1]), frozen[2])
        return head.type([of(item) for item in frozen[1:]])

    def _value(self, shape: Shape, frozen: tuple[Any, ...]) -> Any:
        known = self._codec.shared.get(frozen)
        if known is None:
            of = self.of
            values = dict(zip(shape.kept, [of(item) for item in frozen[1:]], strict=True))
            values.update(shape.fixed)
            known = self._codec.share(frozen, shape.type(**values))
        return known

    def _object(self, shape: Shape, frozen: tuple[Any, ...]) -> Any:
        of = self.of
        made: Any = object.__new__(shape.type)
        self._made.append(made)
        for name, item in zip(shape.kept, frozen[1:], strict=True):
            kind = type(item)
            setattr(made, name, of(item) if kind is tuple or kind is Same else item)
        for name, value in shape.fixed:
            setattr(made, name, value.make() if type(value) is Fresh else value)
        if shape.derived:
            self._unfinished.append((made, shape))
        return made
