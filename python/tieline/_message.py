"""Messages, as handlers and iterators receive them."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import threading
import time
from ctypes import byref, c_uint64
from typing import TYPE_CHECKING, Any, Optional

from ._c import lib
from ._errors import AGAIN, CLOSED, OK, TOO_LARGE, Busy, Error, make_error
from ._handle import Handle, nanoseconds
from ._memory import Local
from ._native import Arrived, Queue
from ._request import DONE, Request

if TYPE_CHECKING:
    from ._endpoint import Endpoint
    from ._worker import Worker


class Acknowledgement:
    """The acknowledgement that the sender of a message with `delivered=True` awaits. Dropping it ends the sender's operation as `Canceled`."""

    def __init__(self, worker: Worker, handle: int) -> None:
        self._worker = worker
        self._handle = Handle(handle, "tieline_acknowledgement_drop", "an acknowledgement")

    def give(self) -> None:
        """Acknowledges the message: the sender's operation completes."""
        status = lib.tieline_acknowledgement_give(self._handle.opened)
        if status < 0:
            raise self._handle.failed(status)
        self._handle.value = None
        self._worker._kick()


class Message(Arrived):
    """A message, valid during its handler; after `keep()`, and from `Worker.messages`, without a time limit.

    `header`, `id`, `peer`, `payload`, `header_bytes` and `is_announced` describe it, and `len()` is its length in bytes. A rendezvous message
    (`is_announced`) is longer than the sender's transport carries at once: its bytes are still at the sender, and `payload` is empty. `take_into`
    or `data` receives them. A message that nobody receives is refused, and the sender's operation fails.
    """

    __slots__ = ()

    def keep(self, acknowledge_later: bool = False) -> Message:
        """Keeps the message beyond its handler, and returns it. With `acknowledge_later`, `acknowledgement()` or `acknowledge()` ends the sender's operation."""
        return self._keep(acknowledge_later)

    @property
    def sender(self) -> Endpoint:
        """The endpoint to the sender: the one that the program has opened, or one that the worker opens and keeps."""
        return self._worker.endpoint_to(self.peer)

    def reply(self, id: int, header: int = 0, payload: Any = b"", **options: Any) -> Request:
        """Sends a message back to the sender (`Endpoint.send`)."""
        return self.sender.send(id, header, payload, **options)

    def acknowledgement(self) -> Acknowledgement:
        """Returns the acknowledgement of a message that was sent with `delivered=True`. Without this call, the end of the handler acknowledges."""
        handle = self._take_acknowledgement()
        if handle < 0:
            raise make_error(
                (handle, 0, "an acknowledgement", "the sender awaits none, or it was taken before", "send with delivered=True; keep(True)", None)
            )
        return Acknowledgement(self._worker, handle)

    def acknowledge(self) -> None:
        """Acknowledges a message that was kept for a later acknowledgement."""
        self.acknowledgement().give()

    def take_into(self, buffer: Any, truncate: bool = False) -> Request:
        """Receives the message into the beginning of a writable buffer, a region, or a list of these, without a copy.

        The returned request ends when the bytes are there. A buffer that is shorter than the message raises `Error`, and the message can still be
        received; with `truncate`, only the first bytes are received, as many as there is room for.
        """
        worker, length = self._worker, len(self)
        local = Local(worker._context_handle.opened, buffer, True)
        if local.length < length and not truncate:
            room = local.length
            local.close()
            why = f"the message has {length} bytes, and the buffer {room}"
            raise Error(TOO_LARGE, "receiving a message", why, "pass a longer buffer, or truncate=True")
        if not self.is_announced:
            return self._copy_into(local)
        handle = self._take_announcement()
        number = c_uint64()
        status = handle
        if handle >= 0:
            local.cut(length)
            while True:
                status = lib.tieline_announcement_take_pieces(handle, local.pieces, local.count, None, byref(number))
                if status != AGAIN or worker._inside:
                    break
                worker._make_room(None)
        if status < 0:
            error = worker._handle.failed(status) if handle >= 0 else _not_there(status)
            if handle >= 0:
                lib.tieline_announcement_refuse(handle)
            worker._release(local)
            raise error
        request = Request(worker, number.value, local, buffer)
        if status == OK:
            request._ended(OK, None, None)
        worker._kick()
        return request

    def _copy_into(self, local: Local) -> Request:
        payload, at = self.payload, 0
        for address, length in local.runs():
            part = payload[at : at + length]
            ctypes.memmove(address, part, len(part))
            at += len(part)
        local.close()
        return DONE

    def data(self, timeout: Optional[float] = None) -> Any:
        """Returns the bytes of the message, and waits for those of a rendezvous message, for at most `timeout` seconds. Not in a handler."""
        if not self.is_announced:
            return self.payload
        buffer = bytearray(len(self))
        self.take_into(buffer).wait(timeout)
        return buffer

    async def adata(self) -> Any:
        """Returns the bytes of the message, and awaits those of a rendezvous message."""
        if not self.is_announced:
            return self.payload
        buffer = bytearray(len(self))
        await self.take_into(buffer)
        return buffer

    def refuse(self) -> None:
        """Refuses a rendezvous message: the sender's operation fails."""
        handle = self._take_announcement()
        if handle < 0:
            raise _not_there(handle)
        status = lib.tieline_announcement_refuse(handle)
        if status < 0:
            raise self._worker._handle.failed(status)
        self._worker._kick()


def _not_there(status: int) -> Error:
    return make_error((status, 0, "receiving a message", "it was received or refused before", "receive a message once", None))


class Messages:
    """The messages of one id, in order: an iterator for `for` and for `async for`. Each message is kept.

    With `acknowledge_later`, a message that was sent with `delivered=True` is acknowledged by `Message.acknowledge`, and not on arrival.
    """

    def __init__(self, worker: Worker, id: int, acknowledge_later: bool = False) -> None:
        self._worker, self._id = worker, id
        self._waiters: collections.deque = collections.deque()
        self._ended: Optional[BaseException] = None
        self._open(acknowledge_later)
        worker._iterators.append(self)

    def _open(self, acknowledge_later: bool) -> None:
        worker = self._worker
        self._queue: Any = Queue(worker._engine, worker, Message, self._wake, acknowledge_later)
        worker._register_queue(self._id, self._queue)

    def _watch(self, future: Any) -> None:
        """Adds a future that ends when a message arrives."""
        self._waiters.append(future)
        self._queue.watched = True
        if self._queue:  # a message arrived meanwhile
            self._wake()

    def _wake(self) -> None:
        self._wake_one()
        self._queue.watched = bool(self._waiters)

    def _wake_one(self) -> None:
        driver = self._worker._driver
        is_here = driver is not None and driver.thread == threading.get_ident()
        while self._waiters:
            try:
                future = self._waiters.popleft()
            except IndexError:  # another thread took it
                break
            if future.done():  # its task was cancelled
                continue
            if is_here:
                _set(future)
            elif not future.get_loop().is_closed():  # a handler of a driven worker, or one that runs while the worker is closed
                future.get_loop().call_soon_threadsafe(_set, future)
            if self._ended is None:
                break

    def get(self, timeout: Optional[float] = None) -> Message:
        """Returns the next message, and makes progress until there is one. Raises `TimedOut` after `timeout` seconds, and the error of `close`."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            message = self._queue.get(-1 if until is None else nanoseconds(until - time.monotonic()))
            if message.__class__ is Message:
                return message
            if message is not None:
                self._worker._drive_waited(message)
            elif self._ended is not None:
                raise self._ended

    def get_nowait(self) -> Optional[Message]:
        """Returns the next message that has arrived, or None. The call makes no progress."""
        return self._queue.pop()

    def _end(self) -> None:
        self._queue.end()

    async def aget(self) -> Message:
        """Awaits the next message. Raises the error of `close`."""
        queue = self._queue
        driver = None if queue else self._worker._loop_driver()
        while True:
            message = self.get_nowait()
            if message is not None:
                return message
            if self._ended is not None:
                raise self._ended
            driver = driver or self._worker._loop_driver()
            future = driver.loop.create_future()
            self._watch(future)
            driver.kick()
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled() and queue:
                    self._wake()
                raise

    def close(self, error: Optional[BaseException] = None) -> None:
        """Ends the iterators after the messages that have arrived, or lets them raise `error`, for example in a handler of peer failures.

        Later messages of this id are dropped."""
        if self._ended is None:
            self._ended = error or _End()
            self._end()
            if self._worker._handle.value and error is None:
                try:
                    self._worker.on_message(self._id, None)
                except Busy:
                    pass
            self._wake()

    def _worker_ended(self) -> None:
        if self._ended is None:
            self._ended = _End()
        self._end()
        self._wake()

    def __len__(self) -> int:
        """The number of messages that have arrived and were not taken."""
        return len(self._queue)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Messages:
        return self

    def __next__(self) -> Message:
        try:
            return self.get()
        except _End:
            raise StopIteration from None

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.aget()
        except _End:
            raise StopAsyncIteration from None


class DrivenMessages(Messages):
    """The messages of one id of a driven worker, for several threads."""

    def _open(self, acknowledge_later: bool) -> None:
        self._queue = collections.deque()
        queue, waiters = self._queue, self._waiters

        def arrived(message: Message) -> None:
            queue.append(message._keep(acknowledge_later))
            if waiters:
                self._wake()

        self._worker.on_message(self._id, arrived)

    def _watch(self, future: Any) -> None:
        self._waiters.append(future)
        if self._queue:  # a message arrived meanwhile
            self._wake()

    def _wake(self) -> None:
        self._wake_one()

    def get(self, timeout: Optional[float] = None) -> Message:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            handled = self._worker._engine.handled
            message = self.get_nowait()
            if message is not None:
                return message
            if self._ended is not None:
                raise self._ended
            self._worker._wait_moved(handled, until)

    def get_nowait(self) -> Optional[Message]:
        try:
            return self._queue.popleft() if self._queue else None
        except IndexError:  # another thread took it
            return None

    def _end(self) -> None:
        """Needs no mark: `get` looks at the reason."""


class _End(Error):
    """The end of an iterator that was closed."""

    def __init__(self) -> None:
        super().__init__(CLOSED, "a wait for a message", "the iterator was closed", "open another one")


def _set(future: Any) -> None:
    if not future.done():
        future.set_result(None)


