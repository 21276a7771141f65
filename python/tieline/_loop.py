"""asyncio: the driver of a worker in an event loop. It sleeps on the worker's descriptor, and polls nothing. A driven worker makes progress by itself:
its driver takes completions."""

from __future__ import annotations

import asyncio
import collections
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._c import lib
from ._errors import AGAIN, CLOSED, OK, PENDING, UNSUPPORTED, Again, check, failed, make_error
from ._request import Request

if TYPE_CHECKING:
    from ._worker import Worker

#: The number of progress calls in one turn of the event loop.
_TURNS = 32
#: The maximum number of posts of a worker that wait for room.
_MOST_DEFERRED = 1024
#: The interval in seconds between turns if a module has no descriptor to sleep on.
_NO_DESCRIPTOR = 0.001


class Driver:
    """Makes progress on a worker when its descriptor is readable, and after each post."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self.worker, self.loop, self.thread = worker, loop, threading.get_ident()
        self._awaited: dict = {}
        self._scheduled = False
        self._moved: collections.deque = collections.deque()
        # The thread of a driven worker ends if this is not the worker's driver, and an event may come at once.
        worker._driver = self
        try:
            self._begin()
        except BaseException:
            worker._driver = None
            raise

    def _begin(self) -> None:
        self._fd = self.worker.fileno()
        self.loop.add_reader(self._fd, self._turn)
        self.kick()

    def _stop(self) -> None:
        if not self.loop.is_closed():
            self.loop.remove_reader(self._fd)

    def kick(self) -> None:
        """Arranges a turn: something was posted since the descriptor was armed."""
        self.schedule()

    def schedule(self) -> None:
        """Arranges a turn."""
        if not self._scheduled:
            self._scheduled = True
            self._call(self._kicked)

    def _settle(self, future: Any) -> None:
        """Ends the wait for a future, from any thread."""
        if threading.get_ident() != self.thread:
            self._call(_set, future)
        elif not self.loop.is_closed():
            _set(future)

    def _call(self, function: Callable, *arguments: Any) -> None:
        """Calls a function in the loop, from any thread. A loop that is closed calls nothing any more."""
        is_here = threading.get_ident() == self.thread
        try:
            (self.loop.call_soon if is_here else self.loop.call_soon_threadsafe)(function, *arguments)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def _kicked(self) -> None:
        self._scheduled = False
        self._turn()

    def _turn(self) -> None:
        worker = self.worker
        if worker._driver is not self or not worker._handle.value:
            return
        moved = False
        for _ in range(_TURNS):
            events = worker._engine.progress()
            if events < 0:
                self._fail(worker._handle.failed(events))
                return
            if self._take_completed() or self._post_deferred():
                moved = True
            elif not events:
                break
            moved = moved or events > 0
        else:
            self.kick()
        if worker._raised:
            self._report()
        if worker._lent:
            worker._let_go()
        if moved:
            self._wake_moved()
        if not self._scheduled:
            self._arm()

    def _arm(self) -> None:
        status = lib.tieline_worker_arm(self.worker._handle.value)
        if status == PENDING:
            self.kick()
        elif status == UNSUPPORTED:
            self._scheduled = True
            self.loop.call_later(_NO_DESCRIPTOR, self._kicked)
        elif status < 0:
            self._fail(self.worker._handle.failed(status))
        elif self.worker._deferred:
            # The peer's progress makes room, which no descriptor reports.
            self._scheduled = True
            self.loop.call_later(_NO_DESCRIPTOR, self._kicked)

    def _report(self) -> None:
        """Passes exceptions of handlers to the loop's exception handler at once; `aclose` raises them as well."""
        for error in self.worker._take_raised():
            if not isinstance(error, Exception):
                raise error
            self.worker._unraised.append(error)
            context = {"message": "a handler of a tieline worker raised an exception", "exception": error}
            self.loop.call_exception_handler(context)

    def _fail(self, error: Exception) -> None:
        """Ends everything that is awaited: the worker is unusable."""
        awaited, self._awaited = self._awaited, {}
        self.detach()
        for future, _ in awaited.values():
            if not future.done():
                future.set_exception(error)
        for messages in self.worker._iterators:
            messages.close(error)
        self.loop.call_exception_handler({"message": "a tieline worker has failed", "exception": error})

    def future_of(self, request: Request) -> Any:
        """Returns the future of a request that a task awaits."""
        if request._future is None:
            request._future = self.loop.create_future()
            if request._post is None:
                self._track(request)
            self.schedule()
        return _waited(request._future)

    def _track(self, request: Request) -> None:
        word = next(self.worker._own_words)
        self._awaited[word] = (request._future, request)
        try:
            check(lib.tieline_worker_track(self.worker._handle.opened, request._number, word))
        except BaseException:
            del self._awaited[word]
            request._future = None
            raise

    def _take_completed(self) -> int:
        worker = self.worker
        taken = worker._collect()
        for _ in range(len(worker._own_completed)):
            word, value, status, fields = worker._own_completed.popleft()
            awaited = self._awaited.pop(word, None)
            if awaited is None:  # of an earlier event loop
                continue
            future, request = awaited
            request._future = None
            request._ended(status, value, make_error(fields) if fields else None)
            if request._number:  # another step of the same request
                request._future = future
                self._track(request)
            else:
                self._settle(future)
        return max(0, taken)

    def defer(self, endpoint: Any, call: Any, request: Request) -> None:
        """Posts later, behind what already waits for room."""
        if len(self.worker._deferred) >= _MOST_DEFERRED:
            why, fix = f"{_MOST_DEFERRED} operations of this worker wait for room", "await earlier requests first"
            raise make_error((AGAIN, 1, "a post in an event loop", why, fix, None))
        request._post = call
        self.worker._deferred.append((endpoint, request))
        self.schedule()

    def _post_deferred(self) -> int:
        """Posts what waits for room, in order on each endpoint; returns the number of posts."""
        waiting = self.worker._deferred
        full: set = set()
        posted = 0
        for _ in range(len(waiting)):
            endpoint, request = waiting.popleft()
            call = request._post
            if call is None:  # canceled
                self._resolve(request)
                continue
            number = AGAIN if endpoint in full else call()
            if number == AGAIN:
                full.add(endpoint)
                waiting.append((endpoint, request))
                continue
            posted += 1
            request._post = None
            if number > 0:
                request._number = number
                if request._future is not None:
                    self._track(request)
                continue
            error = endpoint._handle.failed(number) if number < 0 else None
            request._ended(number if number < 0 else OK, None, error)
            self._resolve(request)
        return posted

    def _resolve(self, request: Request) -> None:
        future, request._future = request._future, None
        if future is not None:
            self._settle(future)

    async def moved(self, timeout: float, condition: Optional[Callable] = None) -> bool:
        """Waits until there was an event, for at most `timeout` seconds. With a condition, returns True at once if it holds."""
        future = self.loop.create_future()
        # A handler of a driven worker may run in another thread after the condition was evaluated.
        self._moved.append(future)
        if condition is not None and condition():
            future.cancel()
            return True
        self.schedule()
        timer = self.loop.call_later(timeout, _set, future)
        try:
            await future
        finally:
            timer.cancel()
        return False

    def _wake_moved(self) -> None:
        while self._moved:
            _set(self._moved.popleft())

    def detach(self) -> None:
        """Ends the use of the event loop, and everything that is awaited."""
        if self.worker._driver is self:
            self.worker._driver = None
            self._stop()
            if self.worker._handle.value:
                self._take_completed()
            while self.worker._deferred:
                _, request = self.worker._deferred.popleft()
                request._ended(AGAIN, None, Again(AGAIN, "a post in an event loop", "the worker was closed before there was room"))
                self._resolve(request)
            awaited, self._awaited = self._awaited, {}
            for future, request in awaited.values():
                request._future = None
                why = "the worker or the event loop was closed before the end of the operation"
                request._ended(CLOSED, None, make_error((CLOSED, 8, "an operation that a task awaits", why, "close them later", None)))
                self._settle(future)
            self._call(self._wake_moved)


class DrivenDriver(Driver):
    """Takes the completions of a driven worker in an event loop. A thread of its own sleeps until there are some."""

    def _begin(self) -> None:
        self._turned = threading.Semaphore(0)
        arguments = (self.worker._engine, weakref.ref(self))
        threading.Thread(target=_watch, args=arguments, name="tieline-loop", daemon=True).start()

    def _stop(self) -> None:
        self._turned.release()

    def __del__(self) -> None:
        self._turned.release()

    def kick(self) -> None:
        """Needs no turn: the worker makes progress by itself."""
        if self.worker._lent:
            self.worker._let_go()

    def wake(self) -> None:
        """A handler has run, in any thread."""
        if self._moved:
            self._call(self._wake_moved)

    def _turn(self) -> None:
        worker = self.worker
        if worker._driver is not self or not worker._handle.value:
            return
        while self._take_completed() + self._post_deferred():
            pass
        if worker._raised:
            self._report()
        if worker._lent:
            worker._let_go()
        self._wake_moved()
        if worker._deferred and not self._scheduled:
            # The peer's progress makes room, which no event reports.
            self._scheduled = True
            self.loop.call_later(_NO_DESCRIPTOR, self._kicked)

    def _watched(self) -> None:
        try:
            self._turn()
        finally:
            self._turned.release()


def _watch(engine: Any, place: weakref.ref) -> None:
    """Arranges a turn of the driver after each event, until the worker or the driver has ended."""
    while True:
        status = engine.event()
        driver: Optional[DrivenDriver] = place()
        if driver is None or driver.worker._driver is not driver:
            return
        if status < 0:
            if driver.worker._handle.value and status != CLOSED:
                driver._call(driver._fail, failed(status))
            return
        turned = driver._turned
        driver._call(driver._watched)
        if driver.loop.is_closed():
            return
        del driver
        turned.acquire()


async def _waited(future: Any) -> None:
    # Several tasks may await one request, and the end of one of them must not end the others.
    await asyncio.shield(future)


def _set(future: Any) -> None:
    if not future.done():
        future.set_result(None)
