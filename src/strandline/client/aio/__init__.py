"""The asynchronous client on the caller's loop, without threads: `Producer`, `Consumer`, `Admin` and `process`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.client.aio.admin import Admin
    from strandline.client.aio.consumer import Consumer
    from strandline.client.aio.processing import process
    from strandline.client.aio.producer import Producer

__all__ = ["Admin", "Consumer", "Producer", "process"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "processing" if name == "process" else name.lower()
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    """What is here, loaded or not."""
    return sorted({*globals(), *__all__})
