"""The asynchronous client: `Producer`, `Consumer` and `Admin` as coroutines on the caller's loop, without threads."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.client.aio.admin import Admin
    from strandline.client.aio.consumer import Consumer
    from strandline.client.aio.producer import Producer

__all__ = ["Admin", "Consumer", "Producer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{name.lower()}"), name)


def __dir__() -> list[str]:
    """What is here, loaded or not."""
    return sorted({*globals(), *__all__})
