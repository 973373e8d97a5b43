"""No module imports itself by way of others, imports for type checking included. import-linter holds the layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from itertools import count

import grimp

LEFT = {
    # Folder -> modules of its one circle, at most. It may only shrink.
    "strandline.replica": 4,
}


def circles(imports: Mapping[str, Set[str]]) -> Iterator[set[str]]:
    """The strongly connected components of more than one module (Tarjan)."""
    numbers = count()
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> Iterator[set[str]]:
        index[module] = low[module] = next(numbers)
        stack.append(module)
        for other in sorted(imports[module]):
            if other not in index:
                yield from visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            component = set(stack[at:])
            del stack[at:]
            if len(component) > 1:
                yield component

    for module in sorted(imports):
        if module not in index:
            yield from visit(module)


def test_circles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a", "d"}}
    assert sorted(map(sorted, circles(imports))) == [["a", "b", "c"], ["d", "e"]]


def test_no_import_goes_in_a_circle() -> None:
    graph = grimp.build_graph("strandline", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    found = [sorted(circle) for circle in circles(imports)]
    new = [
        circle
        for circle in found
        if not any(
            all(module.startswith(f"{folder}.") for module in circle) and len(circle) <= most
            for folder, most in LEFT.items()
        )
    ]
    assert not new, (
        "one of them must not know the other: name what it needs of it (a Protocol, a callback, a third file)"
    )
