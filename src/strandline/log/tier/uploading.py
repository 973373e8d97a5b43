"""One multipart upload: chunks are handed to the library one by one, and an upload that is given up leaves no parts.

The library aborts an upload whose source fails, and does not where the call is cancelled: S3 would keep its parts, and
charge for them. So whoever gives up lets the source fail, and waits a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from strandline.proto.tasks import shared

_GIVE_UP_S = 2.0
"""So long an abort may take: with the store away it cannot be told, and its own rules have to clear up."""


class _GivenUp(Exception):
    """What the source of an upload fails with that was given up."""


class Upload:
    """One upload, begun at once.

    Invariant: the library asks for a chunk when it has room for it, so one chunk at most waits here.
    """

    def __init__(self, begin: Callable[[AsyncIterator[bytes]], Awaitable[Any]]) -> None:
        """`begin` uploads what the iterator that it is given yields."""
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._given_up = asyncio.Event()
        self._upload: asyncio.Future[Any] = asyncio.ensure_future(begin(self._source()))

    async def _source(self) -> AsyncIterator[bytes]:
        while not self._given_up.is_set():
            chunk = await self._chunks.get()
            if self._given_up.is_set():
                break
            if chunk is None:
                return
            yield chunk
        raise _GivenUp

    async def send(self, chunk: bytes | None) -> None:
        """Returns once the chunk has its place; None: there are no more. Raises what the upload has failed with."""
        handed = asyncio.ensure_future(self._chunks.put(chunk))
        try:
            await asyncio.wait((handed, self._upload), return_when=asyncio.FIRST_COMPLETED)
        finally:
            handed.cancel()
        if self._upload.done():
            self._upload.result()

    async def end(self) -> None:
        """All chunks were sent; returns once the object is there. Raises what the upload has failed with."""
        await self.send(None)
        await shared(self._upload)

    async def give_up(self) -> None:
        """Let there be no object, if that can be told to the store in a moment."""
        self._given_up.set()
        while not self._chunks.empty():
            self._chunks.get_nowait()
        self._chunks.put_nowait(None)
        await asyncio.wait((self._upload,), timeout=_GIVE_UP_S)
        if not self._upload.done():
            self._upload.cancel()
        elif not self._upload.cancelled():
            self._upload.exception()
