"""Workers."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import functools
import inspect
import itertools
import json
import time
import weakref
from ctypes import byref, c_int32, c_size_t, c_void_p
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from . import _c, _native
from ._buffers import bytes_of, word
from ._c import lib
from ._endpoint import Endpoint
from ._errors import BUSY, INVALID, PENDING, ROUSED, TIMED_OUT, Busy, Error, TimedOut, check, failed, make_error, raise_all
from ._handle import Handle, end_left, nanoseconds, opened, output
from ._interrupt import Call, is_main
from ._loop import Driver
from ._memory import Region
from ._message import Message, Messages
from ._request import OWN_WORDS, Completed, Counter, Request

if TYPE_CHECKING:
    from ._context import Context

#: The longest sleep in seconds of a call that waits for room, or for the answer to a name query.
_NAP = 0.001
#: The longest part in seconds of a wait in which Python's signal handlers do not run.
_PART = 0.05


class Counters(NamedTuple):
    """A worker's counters, which start at 0 when the worker is opened. `tieline.h` describes them (`tieline_counters`)."""

    unknown_ids: int
    malformed: int
    emulated: int
    assisted_chunks: int
    connections: int
    failed_connections: int
    wireup_retransmissions: int
    wireup_rejections: int


class Waker:
    """Wakes a sleeping worker, from any thread."""

    def __init__(self, handle: int) -> None:
        self._handle = Handle(handle, "tieline_waker_drop", "a waker")

    def wake(self) -> None:
        """Ends the worker's current sleep, or makes its next sleep end immediately."""
        if lib.tieline_waker_wake(self._handle.opened) < 0:
            raise Error(INVALID, "waking a worker", "the waker is not valid any more", "open a waker of the worker")


class Worker:
    """A progress engine. A worker makes progress and runs handlers only inside its own calls, or in an event loop (`async with`).

    Handlers run in the thread that makes progress. In a handler, a call that waits raises `Busy`. The exceptions of handlers are raised by the
    outermost call that ran them; several come as an `ExceptionGroup` (before Python 3.11, the first has the others as its context).
    """

    #: Requests that a thread waits for, by number, of a worker that several threads use at the same time.
    _waits: Optional[dict] = None

    def __init__(self, context: Context, flags: int = 0) -> None:
        self._context_handle = context._handle
        params = _c.WorkerParams(ctypes.sizeof(_c.WorkerParams), flags)
        handle = opened(lib.tieline_worker_open_with, context._handle.opened, byref(params))
        self._handle = Handle(handle, "tieline_worker_drop", "a worker")
        self._engine = _native.Engine(handle)
        self._raised: list = self._engine.raised
        #: Exceptions of handlers that an event loop has reported, for `aclose`.
        self._unraised: list = []
        self._handlers: dict = {}
        self._lent: collections.deque = collections.deque()  # of operations whose request was dropped
        self._deferred: collections.deque = collections.deque()  # posts that wait for room in an event loop
        self._completed: collections.deque = collections.deque()  # of the application
        self._own_completed: collections.deque = collections.deque()  # of the event loop
        self._own_words = itertools.count(OWN_WORDS)
        self._iterators: list = []
        self._driver: Optional[Driver] = None
        self._endpoints: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
        self._senders: dict = {}
        self._belongings: weakref.WeakSet = weakref.WeakSet()
        context._workers.add(self)

    # ---- Addresses and endpoints ----

    def address(self) -> bytes:
        """Returns the address to which peers connect. Exchange it over a channel that only the job can read."""
        return self._output(lib.tieline_worker_address)

    def name(self) -> bytes:
        """Returns a name of this worker, at most 48 bytes, for channels that cannot carry a whole address. Keep it as secret as the address."""
        return self._output(lib.tieline_worker_name)

    def name_of_peer(self, peer: int) -> bytes:
        """Returns the name of a peer's worker; empty if it is not known."""
        return self._output(lib.tieline_worker_name_of_peer, word(peer, 32))

    def _output(self, function: Callable, *arguments: Any) -> bytes:
        return output(function, self._handle.opened, *arguments)

    def connect(self, address: Any) -> Endpoint:
        """Opens an endpoint to the worker with that address. Its first operation establishes the connection."""
        address = bytes_of(address)
        return Endpoint(self, opened(lib.tieline_worker_connect, self._handle.opened, address, len(address)))

    def connect_by_name(self, name: Any, timeout: Optional[float] = None) -> Endpoint:
        """Opens an endpoint to the worker with that name, and makes progress until the address is known: for `timeout` seconds, and at most
        `TIELINE_CONNECT_TIMEOUT` (then `Expired`)."""
        query = _NameQuery(self, name)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            endpoint = query.test()
            if endpoint is not None:
                return endpoint
            self._nap(until, "a wait for a name")

    async def aconnect_by_name(self, name: Any) -> Endpoint:
        """Opens an endpoint to the worker with that name, for at most `TIELINE_CONNECT_TIMEOUT`."""
        query, driver = _NameQuery(self, name), self._loop_driver()
        while True:
            endpoint = query.test()
            if endpoint is not None:
                return endpoint
            await driver.moved(_NAP)

    def endpoint_to(self, peer: int) -> Endpoint:
        """Returns an endpoint to a peer that has sent something to this worker: the open one, or a new one that the worker keeps."""
        known = self._senders.get(peer)
        if known is not None and known._handle.value and known.error is None:
            return known
        endpoint = self._endpoint(opened(lib.tieline_worker_endpoint_to, self._handle.opened, word(peer, 32)))
        self._senders[peer] = endpoint
        return endpoint

    def _endpoint(self, handle: int) -> Endpoint:
        found = self._endpoints.get(handle)
        return found if found is not None else Endpoint(self, handle)

    # ---- Handlers ----

    def on_message(self, id: int, handler: Optional[Callable[[Message], Any]]) -> None:
        """Calls `handler(message)` for each message with this id, below 0xf000. With `None`, the worker drops such messages.

        A coroutine function runs as a task of the event loop, with a kept message.
        """
        word(id, 16)
        if handler is not None and inspect.iscoroutinefunction(handler):
            handler = functools.partial(self._as_task, handler)
        self._register("tieline_worker_on_message", _native.ON_MESSAGE, handler, id)

    def _as_task(self, handler: Callable, message: Message) -> None:
        self._start_task(handler, message.keep())

    def _start_task(self, handler: Callable, message: Message) -> None:
        task = asyncio.ensure_future(handler(message))
        self._handlers.setdefault("tasks", set()).add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: Any) -> None:
        self._handlers["tasks"].discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._raised.append(task.exception())
            self._kick()

    def on_notification(self, handler: Optional[Callable[[int, int], Any]]) -> None:
        """Calls `handler(peer, word)` for each put with `notify=word`, when its bytes and those of earlier puts are visible."""
        self._register("tieline_worker_on_notification", _native.ON_NOTIFICATION, handler)

    def on_peer_failure(self, handler: Optional[Callable[[int, Error], Any]]) -> None:
        """Calls `handler(peer, error)` once for each peer that has failed: a peer has sent messages to this worker, or has a connection with it."""
        wrapped = None if handler is None else functools.partial(_with_error, handler)
        self._register("tieline_worker_on_peer_failure", _native.ON_PEER_FAILURE, wrapped)

    def on_peer_left(self, handler: Optional[Callable[[int], Any]]) -> None:
        """Calls `handler(peer)` for each peer that has closed its worker in good order."""
        self._register("tieline_worker_on_peer_left", _native.ON_PEER_LEFT, handler)

    def on_endpoint_failure(self, handler: Optional[Callable[[Endpoint, Error], Any]]) -> None:
        """Calls `handler(endpoint, error)` once for each endpoint that has failed. Its operations have ended by then."""
        wrapped = None if handler is None else functools.partial(self._endpoint_failed, handler)
        self._register("tieline_worker_on_endpoint_failure", _native.ON_ENDPOINT_FAILURE, wrapped)

    def _endpoint_failed(self, handler: Callable, handle: int, fields: tuple) -> None:
        handler(self._endpoint(handle), make_error(fields))

    def _register(self, name: str, thunk: int, handler: Optional[Callable], *id: int) -> None:
        function = getattr(lib, name)
        if handler is None:
            check(function(self._handle.opened, *id, None, None))
            return
        binding = _native.Binding(handler, self._engine, self, Message)
        check(function(self._handle.opened, *id, thunk, _native.address(binding)))
        # The previous handler may be running, so it is kept as long as the worker.
        self._handlers.setdefault((name, *id), []).append(binding)

    def _register_queue(self, id: int, queue: Any) -> None:
        check(lib.tieline_worker_on_message(self._handle.opened, word(id, 16), _native.ON_QUEUED, _native.address(queue)))
        # As with other handlers.
        self._handlers.setdefault(("tieline_worker_on_message", id), []).append(queue)

    def messages(self, id: int, acknowledge_later: bool = False) -> Messages:
        """Returns an iterator over the messages with this id, for `for` and for `async for`, in place of a handler."""
        return Messages(self, id, acknowledge_later)

    @property
    def _inside(self) -> int:
        """The number of handlers that are running."""
        return self._engine.inside

    def _drive(self, error: Optional[BaseException] = None) -> None:
        """Raises the exceptions of handlers and the failure of the call, after a call that may have run handlers. Inside a handler, exceptions of
        handlers remain for the outermost call."""
        if self._raised and not self._engine.inside:
            errors = self._take_raised()
            if errors:
                raise_all(errors + [error] if error is not None else errors)
        if error is not None:
            raise error

    def _take_raised(self) -> list:
        """Takes the exceptions of handlers. Another thread may do the same, or add one."""
        errors: list = []
        while True:
            try:
                errors.append(self._raised.pop(0))
            except IndexError:
                return errors

    # ---- Progress and waits ----

    def progress(self) -> int:
        """Makes progress and runs handlers; returns the number of events. The call does not wait."""
        if self._lent or _c.left:
            self._let_go()
        status = self._engine.progress() if self._handle.value else INVALID
        if status < 0 or self._raised:
            self._drive(self._handle.failed(status) if status < 0 else None)
        return status

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Makes progress until a handler has run. Returns False after `timeout` seconds."""
        return self._waited(None, timeout)

    def wait_until(self, condition: Callable[[], Any], timeout: Optional[float] = None) -> bool:
        """Makes progress until `condition()` is true. Returns False if the condition is still false after `timeout` seconds.

        The condition is also evaluated while nothing happens, at least every 10 ms, since a peer's put may change memory without an event. It must
        not call anything that waits. In a handler, a wait raises `Busy`.
        """
        if self._driver is not None or self._lent or _c.left:
            self._let_go()
        return self._waited(condition, timeout)

    def _waited(self, condition: Optional[Callable], timeout: Optional[float]) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            status = self._engine.wait(condition, nanoseconds(timeout)) if self._handle.value else INVALID
            if self._raised or status < 0 and status != TIMED_OUT:
                self._drive(self._handle.failed(status) if status < 0 and status != TIMED_OUT else None)
            if status != ROUSED:
                return status != TIMED_OUT
            # Another thread has raised the exception that ended the wait.
            timeout = None if until is None else until - time.monotonic()

    def _wait_moved(self, handled: int, until: Optional[float]) -> None:
        """Waits until more handlers have run than `handled`. Raises `TimedOut` at the time `until`."""
        limit = -1 if until is None else nanoseconds(until - time.monotonic())
        self._drive_waited(self._engine.wait(handled, limit) if self._handle.value else INVALID)

    def _drive_waited(self, status: int) -> None:
        """Raises the failure of a wait, and the exceptions of handlers."""
        if status < 0 or self._raised:
            raised = status == TIMED_OUT and self._raised
            self._drive(self._handle.failed(status) if status < 0 and not raised else None)

    def _nap(self, until: Optional[float], what: str) -> None:
        """Makes progress, and sleeps for a millisecond if there is nothing to do. Raises `TimedOut` at the time `until`."""
        left = _NAP if until is None else until - time.monotonic()
        if left <= 0:
            raise TimedOut(TIMED_OUT, what, "the time is up", "wait again, or longer")
        self._waited(None, min(_NAP, left))

    def _make_room(self, until: Optional[float]) -> None:
        """Makes progress because a post found no room."""
        if not self.progress():
            self._nap(until, "a post that found no room")

    @property
    def pending(self) -> int:
        """The number of pending operations, including the library's own and the parts of split operations."""
        number = c_size_t()
        check(lib.tieline_worker_pending(self._handle.opened, byref(number)))
        return number.value

    def flush(self, timeout: Optional[float] = None) -> None:
        """Flushes every endpoint that has not failed (`Endpoint.flush`), and waits for these flushes, for at most `timeout` seconds."""
        counter = self.counter()
        try:
            status = lib.tieline_worker_begin_flush(self._handle.opened, counter._handle.opened)
            if status < 0:
                raise self._handle.failed(status)
            counted = counter.wait(timeout)
            if counted.failed:
                fields = (counted.first_failure, counted.first_kind, "a flush of all endpoints", f"{counted.failed} have failed", "", None)
                raise make_error(fields)
        finally:
            counter.close()

    def counter(self) -> Counter:
        """Opens a counter, for operations that are posted with `counter=`."""
        return Counter(self)

    def take_completed(self) -> list[Completed]:
        """Takes the completed tracked operations, a list of `Completed`, in the order of completion. The call makes no progress."""
        status = self._collect() if self._handle.value else INVALID
        if status < 0:
            raise self._handle.failed(status)
        if self._own_completed and self._driver is not None:
            self._driver.schedule()
        ended = []
        while self._completed:
            try:
                user, value, _, fields = self._completed.popleft()
            except IndexError:  # another thread took it
                break
            ended.append(Completed(user, value, make_error(fields) if fields else None))
        return ended

    def _collect(self) -> int:
        """Takes the completions from the library, for the application and for the event loop. Returns their number, or a status below 0."""
        found: list = []
        status = self._engine.completed(found)
        for one in found:
            (self._own_completed if one[0] >= OWN_WORDS else self._completed).append(one)
        return status if status < 0 else len(found)

    def fileno(self) -> int:
        """Returns a descriptor for `select`, `poll` and event loops. It is readable if there may be something to do, provided that `arm` returned True.

        The descriptor belongs to the library: do not read from it or close it.
        """
        number = c_int32()
        check(lib.tieline_worker_fd(self._handle.opened, byref(number)))
        return number.value

    def arm(self) -> bool:
        """Prepares one sleep on the descriptor, after the last progress. Returns False if there is something to do now."""
        return check(lib.tieline_worker_arm(self._handle.opened)) != PENDING

    def waker(self) -> Waker:
        """Opens a waker, by which other threads end a sleep of this worker."""
        return Waker(opened(lib.tieline_worker_waker, self._handle.opened))

    def status(self) -> dict:
        """Returns the worker's state: each endpoint with its queue, connections that are being established, interfaces, and counters."""
        return json.loads(self._output(lib.tieline_worker_status))

    def counters(self) -> Counters:
        """Reads the worker's counters."""
        record = _c.Counters(size=ctypes.sizeof(_c.Counters))
        check(lib.tieline_worker_counters(self._handle.opened, byref(record)))
        return Counters(*(getattr(record, name) for name in Counters._fields))

    # ---- Event loops ----

    def _loop_driver(self) -> Driver:
        """Returns the driver in the running event loop; attaches the worker to the loop if necessary."""
        loop = asyncio.get_running_loop()
        if self._driver is not None and self._driver.loop is not loop:
            if not self._driver.loop.is_closed():
                raise Busy(BUSY, "the use of a worker in an event loop", "another event loop uses it", "open a worker for each loop")
            self._driver.detach()
        if self._driver is None:
            self._handle.opened
            return self._new_driver(loop)
        return self._driver

    def _new_driver(self, loop: asyncio.AbstractEventLoop) -> Driver:
        return Driver(self, loop)

    def _defers(self) -> bool:
        """Whether a post of this thread that finds no room is left to the event loop."""
        driver = self._driver
        if driver is not None and driver.loop.is_closed():
            driver.detach()
        return self._driver is not None

    def _defer(self, posting: Any, call: Callable, lent: Any, result: Any) -> Request:
        request = Request(self, 0, lent, result)
        assert self._driver is not None
        self._driver.defer(posting, call, request)
        return request

    def _kick(self) -> None:
        if self._driver is not None:
            self._driver.kick()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Awaits `condition()`, which is evaluated after each event of the worker. A peer's put alone is no event: use `notify`."""
        driver = self._loop_driver()
        while not await driver.moved(3600, condition):
            pass

    async def __aenter__(self) -> Worker:
        self._loop_driver()
        return self

    async def __aexit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            await self.aclose()
        else:
            self._end()
            self._handle.close()

    async def aclose(self, timeout: float = 10.0) -> None:
        """Closes the worker as `close` does, while the event loop runs. Raises the exceptions of handlers that the loop has reported."""
        until = time.monotonic() + timeout
        await self._settled(until)
        if not self._handle.value:
            return
        self._end()
        loop = asyncio.get_running_loop()
        left = max(0.0, until - time.monotonic())
        result, handle = loop.create_future(), self._handle.value
        # Handlers that run now run in another thread.
        call = Call(_closed, handle, left, wake=lambda: loop.call_soon_threadsafe(_set, result))
        await result
        self._raised.extend(self._unraised)
        self._unraised.clear()
        self._ended(*call.result())

    async def _settled(self, until: float) -> None:
        """Awaits the end of what was posted, until a time."""
        # The driver may belong to an earlier event loop, which is closed.
        driver = None if self._driver is None else self._loop_driver()
        while driver is not None and self._handle.value and (self._deferred or self.pending) and time.monotonic() < until:
            await driver.moved(0.1)

    # ---- The end ----

    def close_region(self, region: Region, timeout: Optional[float] = None) -> None:
        """Closes a region as `Region.close` does, and makes progress until no peer and no operation accesses the region, for at most `timeout` seconds."""

        def end(handle: int, until: Optional[float]) -> int:
            while True:
                left = _PART if until is None else min(_PART, until - time.monotonic())
                status = lib.tieline_worker_close_region(self._handle.opened, handle, nanoseconds(left))
                if self._raised or status != BUSY or self._inside or (until is not None and time.monotonic() >= until):
                    self._drive()
                    return status

        if region._handle.value:
            region._end(end, None if timeout is None else time.monotonic() + timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Delivers everything that was posted within `timeout` seconds, or raises an error that lists the losses. The worker ends in any case except `Busy`.

        With losses, the call takes up to a second more (`TIELINE_CLOSE_TIMEOUT`). Handlers that run meanwhile may run in another thread. Ctrl-C ends
        the wait; the worker then ends in the background.
        """
        handle = self._handle.value
        if not handle:
            return
        if not is_main() or self._inside:
            status, error = _closed(handle, timeout)
        else:
            call = Call(_closed, handle, timeout)
            try:
                status, error = call.result()
            except BaseException:
                self._end()
                self._handle.value = None
                raise
        if status == BUSY:
            self._drive(error)
        self._end()
        self._ended(status, error)

    def _end(self) -> None:
        """Ends the use of the event loop and the iterators."""
        if self._driver is not None:
            self._driver.detach()
        for messages in self._iterators:
            messages._worker_ended()
        self._iterators.clear()

    def _ended(self, status: int, error: Optional[Error]) -> None:
        """Releases what belonged to the worker, after its end."""
        if status != BUSY:
            self._handle.value = None
            self._close_belongings()
            self._senders.clear()
            self._let_go(all=True)
            # The last reference to a closed context ends it.
            self._context_handle = Handle(None, "", self._context_handle.what)
        self._drive(error)

    def _close_belongings(self) -> None:
        for one in list(self._belongings):
            one.close()

    def _release(self, lent: Any) -> None:
        """Releases the local side of an operation, now or when the library has finished with it."""
        if lent is not None and not lent.close():
            self._lent.append(lent)

    def _let_go(self, all: bool = False) -> None:
        """Releases the buffers of ended operations whose request was dropped: some of them at a time."""
        end_left()
        for _ in range(len(self._lent) if all else min(len(self._lent), 8)):
            try:
                lent = self._lent.popleft()
            except IndexError:  # another thread took it
                break
            if not lent.close():
                self._lent.append(lent)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._end()
            self._handle.close()


def _with_error(handler: Callable, peer: int, fields: tuple) -> None:
    handler(peer, make_error(fields))


def _closed(handle: int, timeout: float) -> tuple:
    """Closes a worker; returns the status and the error."""
    status = lib.tieline_worker_close(handle, nanoseconds(timeout))
    return status, failed(status) if status < 0 else None


class _NameQuery:
    """A query for the worker with a name."""

    def __init__(self, worker: Worker, name: Any) -> None:
        self._worker, name = worker, bytes_of(name)
        handle = opened(lib.tieline_worker_ask_name, worker._handle.opened, name, len(name))
        self._handle = Handle(handle, "tieline_name_call_drop", "a name query")

    def test(self) -> Optional[Endpoint]:
        """Advances the query; returns the endpoint when the name is resolved."""
        endpoint = c_void_p()
        if check(lib.tieline_name_call_test(self._handle.opened, byref(endpoint))) == PENDING:
            return None
        self._handle.close()
        return self._worker._endpoint(endpoint.value or 0)


def _set(future: Any) -> None:
    if not future.done():
        future.set_result(None)


