"""Workers with a progress thread."""

from __future__ import annotations

import asyncio
import atexit
import functools
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._errors import BUSY, INVALID, Error
from ._handle import Handle
from ._loop import DrivenDriver, Driver
from ._message import DrivenMessages, Message
from ._worker import Worker

if TYPE_CHECKING:
    from ._context import Context

_DRIVEN = 1  # TIELINE_WORKER_DRIVEN
#: The open workers: their threads end before the interpreter does.
_open: weakref.WeakSet = weakref.WeakSet()


class _DrivenHandle(Handle):
    """The handle of a driven worker. It is closed when no thread is in a call that waits, because such a call uses the worker."""

    __slots__ = ("engine",)

    def __init__(self, handle: Handle, engine: Any) -> None:
        super().__init__(handle.value, handle.end, handle.what)
        handle.value, self.engine = None, engine

    def close(self) -> int:
        if self.value:
            if self.engine.inside:
                return BUSY
            self.end_waits()
        return super().close()

    def end_waits(self) -> None:
        while self.engine.end():
            time.sleep(0.001)


class DrivenWorker(Worker):
    """A worker with a progress thread. All threads may use it and its objects at the same time.

    Handlers run one at a time, on the progress thread or on a thread that waits, without the worker's lock. In a handler, calls that wait raise
    `Busy`. An exception of a handler is raised by the next wait of any thread, or by `close`. Threads may share a request: one of them waits in the
    library, and the others wait for that thread. An iterator of `messages` may serve several threads, each of which gets other messages.

    In an event loop, the worker needs no turns: `await`, `async with` and `async for` work as with an ordinary worker, and other threads may use the
    worker meanwhile. There is no descriptor: `fileno` and `arm` raise `Error`.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context, _DRIVEN)
        self._handle: _DrivenHandle = _DrivenHandle(self._handle, self._engine)
        self._waits = {}
        _open.add(self)

    def _register(self, name: str, thunk: int, handler: Optional[Callable], *id: int) -> None:
        super()._register(name, thunk, None if handler is None else functools.partial(self._handle_event, handler), *id)

    def messages(self, id: int, acknowledge_later: bool = False) -> DrivenMessages:
        """Returns an iterator over the messages with this id, for `for` and for `async for`, in place of a handler. Threads may share it."""
        return DrivenMessages(self, id, acknowledge_later)

    def _handle_event(self, handler: Callable, *arguments: Any) -> None:
        driver = None
        try:
            handler(*arguments)
        except BaseException as error:
            self._raised.append(error)
            driver = self._driver
            if driver is not None:
                driver.schedule()
        finally:
            driver = driver or self._driver
            if driver is not None:
                driver.wake()  # type: ignore[attr-defined]

    def _as_task(self, handler: Callable, message: Message) -> None:
        driver = self._driver
        if driver is None:
            why = "no event loop uses the worker"
            raise Error(INVALID, "a handler that is a coroutine function", why, "attach the worker to a loop: async with worker")
        driver._call(self._start_task, handler, message.keep())

    def _task_ended(self, task: Any) -> None:
        super()._task_ended(task)
        if self._raised and self._driver is not None:
            self._driver.schedule()

    def close(self, timeout: float = 10.0) -> None:
        """Closes the worker as `Worker.close` does. Waits of other threads end with `Closed`, and an operation that is posted meanwhile may be lost."""
        if self._handle.value and not self._inside:
            self._handle.end_waits()
        super().close(timeout)

    async def aclose(self, timeout: float = 10.0) -> None:
        """Closes the worker as `Worker.aclose` does. Waits of other threads end with `Closed`."""
        await self._settled(time.monotonic() + timeout)
        while self._handle.value and self._engine.end():
            await asyncio.sleep(0.001)
        await super().aclose(timeout)

    def _close_belongings(self) -> None:
        """Leaves endpoints and keys to their last references: another thread may be in a call of one of them."""

    def _new_driver(self, loop: asyncio.AbstractEventLoop) -> Driver:
        return DrivenDriver(self, loop)

    def _defers(self) -> bool:
        driver = self._driver
        return driver is not None and driver.thread == threading.get_ident() and super()._defers()


@atexit.register
def _end_all() -> None:
    """Ends the progress threads: a handler cannot run while the interpreter ends."""
    for worker in list(_open):
        worker._end()
        worker._handle.close()
