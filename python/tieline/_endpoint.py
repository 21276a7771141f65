"""Endpoints and keys: the calls that post operations."""

from __future__ import annotations

import ctypes
import functools
import time
from ctypes import byref, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Iterable, NamedTuple, Optional

from . import _c, _native
from ._buffers import bytes_of, word
from ._c import lib
from ._errors import AGAIN, OK, PENDING, Error, read_error
from ._handle import Handle, opened, output
from ._memory import Local, Part, Pointer, Region
from ._request import DONE, Counter, Request, how_of

if TYPE_CHECKING:
    from ._worker import Worker

_LOCAL, _NOTIFY = 1, 2  # TIELINE_HOW_*
_DELIVERED = 1  # TIELINE_SEND_*
_ATOMICS = {"add": 0, "and": 1, "or": 2, "xor": 3, "swap": 4, "compare_swap": 5, "min": 6, "max": 7}


class Limits(NamedTuple):
    """The limits of an endpoint, in bytes except for `max_pending`, which is a number of operations."""

    max_message: int
    max_short: int
    max_gathered: int
    max_pending: int
    max_queued_bytes: int


class KeyInfo(NamedTuple):
    """The properties of a key; lengths are in bytes. `reaches_passive_target`: puts and gets complete while the peer computes.

    `address` is that of the region in its owner's memory, if the key contains it (`Region.key(with_address=True)`), else None.
    """

    len: int
    reaches_passive_target: bool
    is_settling: bool
    max_put: int
    max_get: int
    max_pieces: int
    address: Optional[int] = None


class _Posting:
    """Base class of objects that post operations."""

    _worker: Worker
    _handle: Handle

    def _post(self, call: Callable, lent: Any = None, result: Any = None, timeout: Optional[float] = None) -> Request:
        """Posts with `call`, which returns a request number, 0 or a status. While there is no room, waits for it, at most `timeout` seconds.

        In a handler, the call raises `Again` instead. In an event loop, the request posts later.
        """
        worker = self._worker
        if worker._deferred and worker._defers():
            return worker._defer(self, call, lent, result)
        try:
            number = call()
            if number == AGAIN and not worker._inside:
                if worker._defers():
                    return worker._defer(self, call, lent, result)
                until = None if timeout is None else time.monotonic() + timeout
                while number == AGAIN:
                    worker._make_room(until)
                    number = call()
            if number < 0:
                raise self._handle.failed(number)
        except BaseException:
            worker._release(lent)
            raise
        if number == 0 and lent is None and result is None:
            request = DONE
        else:
            request = Request(worker, number, lent, result)
            if number == 0:
                request._ended(OK, None, None)
        if worker._driver is not None:
            worker._driver.kick()
        elif worker._lent and worker._waits is not None:
            worker._let_go()
        return request

    def _call(self, function: Callable, *arguments: Any, how: Optional[_c.How] = None) -> Callable:
        """Returns a function for `_post`, which calls the library."""

        def call() -> int:
            number = c_uint64()
            status = function(self._handle.value, *arguments, byref(how) if how is not None else None, byref(number))
            return number.value if status == PENDING else status

        return call

    def _checked(self, status: int) -> int:
        if status < 0:
            raise self._handle.failed(status)
        return status


class Endpoint(_Posting):
    """A connection to one peer."""

    def __init__(self, worker: Worker, handle: int) -> None:
        self._worker = worker
        self._handle = Handle(handle, "tieline_endpoint_drop", "an endpoint")
        worker._belongings.add(self)
        worker._endpoints[handle] = self

    def send(
        self,
        id: int,
        header: int = 0,
        payload: Any = b"",
        *,
        header_bytes: Any = None,
        delivered: bool = False,
        timeout: Optional[float] = None,
    ) -> Request:
        """Sends a message: `id` (below 0xf000) selects the handler at the peer, which receives `header`, up to 32 `header_bytes` and the bytes of `payload`.

        The payload may be reused when the call returns. It is anything with the buffer protocol, a numpy array or a CPU tensor. It may also be a
        region, a part of one, or a list of all these: then its memory, like that of arrays with gaps, belongs to the operation until the request
        has ended. The request ends when the transport has accepted the message, or the peer has received a rendezvous message;
        with `delivered`, when the peer has acknowledged it. If there is no room, the call makes progress and waits for it, for at most `timeout`
        seconds, and raises `TimedOut` if nothing was sent. In an event loop it never waits: the request does.
        """
        worker = self._worker
        if header_bytes is None and not delivered:
            try:
                number = _native.send(self._handle.value, id, header, payload) if not worker._deferred else AGAIN
            except (TypeError, BufferError, ValueError):
                return self._send_pieces(id, header, payload, b"", 0, timeout)
            if number == 0:
                if worker._driver is not None:
                    worker._driver.kick()
                return DONE
            if number > 0:
                if worker._driver is not None:
                    worker._driver.kick()
                return Request(worker, number)
            if number != AGAIN:
                raise self._handle.failed(number)
            arguments: tuple = (id, header, _kept(worker, payload))
        else:
            options = (b"" if header_bytes is None else header_bytes, _DELIVERED if delivered else 0)
            if isinstance(payload, (Region, Part, list, tuple)):
                return self._send_pieces(id, header, payload, *options, timeout)
            arguments = (id, header, _kept(worker, payload), *options)
        call = functools.partial(_native.send, self._handle.opened, *arguments)
        try:
            return self._post(call, timeout=timeout)
        except (TypeError, BufferError):
            return self._send_pieces(id, header, payload, header_bytes or b"", _DELIVERED if delivered else 0, timeout)

    def _send_pieces(self, id: int, header: int, payload: Any, header_bytes: Any, flags: int, timeout: Optional[float]) -> Request:
        id, header, carried = word(id, 16), word(header), bytes_of(header_bytes)
        local = Local(self._worker._context_handle.opened, payload, False)
        options = _c.SendOptions(ctypes.sizeof(_c.SendOptions), carried, len(carried), flags, 0)
        arguments = (id, header, local.pieces, local.count, byref(options))
        return self._post(self._call(lib.tieline_send_pieces_with, *arguments), local, None, timeout)

    def begin_put_list(
        self, puts: Iterable[tuple[Key, int, Any]], *, counter: Optional[Counter] = None, track: Optional[int] = None
    ) -> Request:
        """Posts many puts, (key, offset, data), with one call and one completion. Each `data` is contiguous. There is no order between them.

        If some fail, the request fails, and `index` of its error is that of the first one that did.
        """
        array, local, _ = self._descriptors(puts, False)
        return self._post(self._call(lib.tieline_put_list, array, len(array), how=how_of(counter, track)), local)

    def begin_get_list(
        self, gets: Iterable[tuple[Key, int, Any]], *, counter: Optional[Counter] = None, track: Optional[int] = None
    ) -> Request:
        """Posts many gets, (key, offset, buffer), with one call and one completion. The result is the list of buffers (`begin_put_list`)."""
        array, local, buffers = self._descriptors(gets, True)
        return self._post(self._call(lib.tieline_get_list, array, len(array), how=how_of(counter, track)), local, buffers)

    def prepare_list(self, entries: Iterable[tuple[Key, int, Any]], *, gets: bool = False) -> PreparedList:
        """Checks and keeps a list of puts, or of gets, which is then posted many times (`PreparedList.begin`)."""
        array, local, buffers = self._descriptors(entries, gets)
        try:
            handle = opened(lib.tieline_list_prepare, self._handle.opened, 2 if gets else 1, array, len(array))
        except BaseException:
            self._worker._release(local)
            raise
        return PreparedList(self, handle, local, buffers if gets else None)

    def _descriptors(self, entries: Iterable[tuple[Key, int, Any]], writable: bool) -> tuple:
        entries = list(entries)
        buffers = [data for _, _, data in entries]
        local = Local(self._worker._context_handle.opened, buffers, writable)
        if local.count != len(entries):
            local.close()
            raise BufferError("the buffers of a list are contiguous: use begin_put or begin_get for the others")
        records: Any = (
            (piece.region, piece.offset, None, piece.len, key._handle.opened, word(offset))
            for piece, (key, offset, _) in zip(local.pieces, entries)
        )
        return (_c.Descriptor * len(entries))(*records), local, buffers

    def begin_notify(
        self,
        id: int,
        header: int = 0,
        payload: Any = b"",
        *,
        after: Optional[Iterable[Request]] = None,
        after_counted: Optional[Counter] = None,
    ) -> Request:
        """Sends a message when other operations are complete at the peer: `after`, those of a counter, or all that were posted on this endpoint.

        If one of them fails or is canceled, the message is never sent, and this request fails with that error. The message has at most
        `limits().max_message` bytes. The call holds back no other operation. A request whose result was taken, or that a task awaits, cannot be
        followed.
        """
        payload, followed = bytes_of(payload), _c.Followed(size=ctypes.sizeof(_c.Followed))
        numbers: Any = None
        if after is not None:
            numbers = [request._followed() for request in after]
            numbers = (c_uint64 * len(numbers))(*numbers)
            followed.requests, followed.request_count = ctypes.addressof(numbers), len(numbers)
        if after_counted is not None:
            followed.counter = after_counted._handle.opened
        arguments = (byref(followed), word(id, 16), word(header), payload, len(payload))
        call = self._call(lib.tieline_notify, *arguments)
        call.keeps = numbers  # type: ignore[attr-defined]
        return self._post(call)

    def import_key(self, key: Any) -> Key:
        """Imports the bytes of a peer's `Region.key()`, for use on this endpoint."""
        key = bytes_of(key)
        return Key(self, opened(lib.tieline_endpoint_import_key, self._handle.opened, key, len(key)))

    def begin_key_by_handle(self, handle: int) -> Request:
        """Requests the key of a peer's `Region.handle()`. The result of the request is the imported `Key`."""
        return self._begin_key(lib.tieline_endpoint_key_by_handle, handle)

    def key_by_handle(self, handle: int, timeout: Optional[float] = None) -> Key:
        """Requests the key of a peer's `Region.handle()`, and waits for it, for at most `timeout` seconds."""
        return self.begin_key_by_handle(handle).wait(timeout)

    def begin_key_by_number(self, number: int) -> Request:
        """Requests the key that the peer has published under a number (`Region.publish`). The result of the request is the imported `Key`."""
        return self._begin_key(lib.tieline_endpoint_key_by_number, number)

    def key_by_number(self, number: int, timeout: Optional[float] = None) -> Key:
        """Requests the key that the peer has published under a number, and waits for it, for at most `timeout` seconds."""
        return self.begin_key_by_number(number).wait(timeout)

    def _begin_key(self, function: Callable, number: int) -> Request:
        request = _KeyRequest(self, function, word(number))
        request.begin()
        return request

    def begin_flush(self, counter: Optional[Counter] = None, track: Optional[int] = None) -> Request:
        """Begins a flush: it completes when earlier puts, gets and atomics are complete at the peer, and the transport has accepted earlier messages."""
        return self._post(self._call(lib.tieline_endpoint_flush, how=how_of(counter, track)))

    def flush(self, timeout: Optional[float] = None) -> None:
        """Waits for a flush (`begin_flush`). Raises the first failure of dropped requests."""
        self.begin_flush().wait(timeout)

    def begin_flush_messages(self, counter: Optional[Counter] = None, track: Optional[int] = None) -> Request:
        """Begins a flush of messages: it completes when the peer's handlers have run for every earlier message."""
        return self._post(self._call(lib.tieline_endpoint_flush_messages, how=how_of(counter, track)))

    def flush_messages(self, timeout: Optional[float] = None) -> None:
        """Waits until the peer's handlers have run for every earlier message."""
        self.begin_flush_messages().wait(timeout)

    def fence(self) -> None:
        """Orders earlier puts, gets and atomics on this endpoint ahead of later ones. The call does not wait."""
        self._checked(lib.tieline_endpoint_fence(self._handle.opened))

    @property
    def peer(self) -> int:
        """The peer's number in this worker, the same as in messages and notifications from it."""
        number = c_uint32()
        self._checked(lib.tieline_endpoint_peer(self._handle.opened, byref(number)))
        return number.value

    @property
    def error(self) -> Optional[Error]:
        """The reason why the endpoint has ended; None if it has not."""
        record = _c.Failure(size=ctypes.sizeof(_c.Failure))
        status = lib.tieline_endpoint_error(self._handle.opened, byref(record))
        return None if status == OK else read_error(record)

    def limits(self) -> Limits:
        """Reports the limits of the endpoint. The call opens the connection for messages."""
        record = _c.Limits(size=ctypes.sizeof(_c.Limits))
        self._checked(lib.tieline_endpoint_limits(self._handle.opened, byref(record)))
        return Limits(*(getattr(record, name) for name in Limits._fields))

    def path(self) -> str:
        """Describes the lanes to the peer."""
        return output(lib.tieline_endpoint_path, self._handle.opened).decode()

    def begin_close(self, cancel: bool = False) -> Request:
        """Begins to close the endpoint: later operations are refused. The request ends when earlier ones have ended; with `cancel`, they are canceled."""
        return self._post(self._call(lib.tieline_endpoint_close, 1 if cancel else 0))

    def close(self) -> None:
        """Releases the endpoint. Queued messages are still sent; other operations end as canceled, or complete if the connection remains."""
        if self._handle.value:
            self._worker._endpoints.pop(self._handle.value, None)
        self._handle.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class PreparedList(_Posting):
    """A list of puts or gets that was checked once. Its buffers belong to it until it is closed and its operations have ended."""

    def __init__(self, endpoint: Endpoint, handle: int, local: Local, result: Any) -> None:
        self._worker, self._result = endpoint._worker, result
        self._local: Optional[Local] = local
        self._handle = Handle(handle, "tieline_list_drop", "a prepared list")
        self._worker._belongings.add(self)

    def begin(self, *, counter: Optional[Counter] = None, track: Optional[int] = None) -> Request:
        """Posts the list: an operation of its own, also while an earlier one is pending. The result of a list of gets is the list of buffers."""
        return self._post(self._call(lib.tieline_list_post, how=how_of(counter, track)), None, self._result)

    def close(self) -> None:
        """Releases the list. Pending operations continue."""
        self._handle.close()
        if self._local is not None:
            self._worker._release(self._local)
            self._local = None


def _kept(worker: Worker, payload: Any) -> Any:
    """A payload that is posted later: an event loop may run other code before, so it gets a copy."""
    return payload if worker._driver is None or isinstance(payload, bytes) else bytes_of(payload)


class _KeyRequest(Request):
    """A request for a key by its handle or its number."""

    __slots__ = ("_endpoint", "_function", "_by")

    def __init__(self, endpoint: Endpoint, function: Callable, by: int) -> None:
        super().__init__(endpoint._worker, 0)
        self._endpoint, self._function, self._by = endpoint, function, by

    def begin(self) -> None:
        key, number, endpoint = c_void_p(), c_uint64(), self._endpoint
        while True:
            status = self._function(endpoint._handle.opened, self._by, None, byref(key), byref(number))
            if status != AGAIN or self._worker._inside:
                break
            self._worker._make_room(None)
        endpoint._checked(status)
        if status == OK:
            self._result = Key(endpoint, key.value or 0)
        self._number = number.value if status == PENDING else 0
        self._worker._kick()

    def _ended(self, status: int, value: Optional[int], error: Optional[Error]) -> None:
        if error is None:
            try:
                self.begin()
                return
            except Error as failure:
                status, error = failure.status, failure
        super()._ended(status, value, error)


class Key(_Posting):
    """A peer's memory, accessed through an endpoint. Offsets and lengths are in bytes.

    The local side of put and get is anything with the buffer protocol, a numpy array (also one with gaps), a CPU tensor, a `Region` or a part of
    one, or a list of these. It is accessed in place, and belongs to the operation until the request has ended.
    """

    def __init__(self, endpoint: Endpoint, handle: int) -> None:
        self._worker = endpoint._worker
        self._endpoint = endpoint
        self._handle = Handle(handle, "tieline_key_drop", "a key")
        self._worker._belongings.add(self)

    def begin_put(
        self,
        data: Any,
        offset: int = 0,
        *,
        notify: Optional[int] = None,
        local: bool = False,
        counter: Optional[Counter] = None,
        track: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Request:
        """Writes the bytes of `data` to the peer's memory. When the request has ended without an error, they are visible at the peer.

        With `notify`, a number of 32 bits, the peer's notification handler then runs. With `local`, the request ends when the bytes of `data` may be
        reused. `counter` or `track` (a number below 2**63, for `Worker.take_completed`) report the completion instead of the request.
        """
        how = None
        if notify is not None or local or counter is not None or track is not None:
            flags = (_LOCAL if local else 0) | (_NOTIFY if notify is not None else 0)
            how = how_of(counter, track, flags, word(notify or 0, 32))
        return self._transfer(True, data, offset, how, None, timeout)

    def begin_get(
        self,
        buffer: Any,
        offset: int = 0,
        *,
        counter: Optional[Counter] = None,
        track: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Request:
        """Fills a writable buffer from the peer's memory. Its contents are valid when the request has ended without an error; it is the result."""
        return self._transfer(False, buffer, offset, how_of(counter, track), buffer, timeout)

    def _transfer(self, writes: bool, data: Any, offset: int, how: Optional[_c.How], result: Any, timeout: Optional[float]) -> Request:
        worker = self._worker
        if how is None and not worker._deferred:
            try:
                posted = _native.transfer(writes, self._handle.value, offset, worker._context_handle.value, data)
            except (TypeError, BufferError, ValueError):
                word(offset)
                posted = AGAIN
            if posted == 0:
                if worker._driver is not None:
                    worker._driver.kick()
                return DONE if result is None else Request(worker, 0, None, result)
            number, lent = posted if isinstance(posted, tuple) else (posted, None)
            if number >= 0:
                request = Request(worker, number, lent, result)
                if number == 0:
                    request._ended(OK, None, None)
                if worker._driver is not None:
                    worker._driver.kick()
                elif worker._lent and worker._waits is not None:
                    worker._let_go()
                return request
            if number != AGAIN:
                raise self._handle.failed(number)
        local = Local(worker._context_handle.opened, data, not writes)
        function = lib.tieline_put_pieces if writes else lib.tieline_get_pieces
        return self._post(self._call(function, word(offset), local.pieces, local.count, how=how), local, result, timeout)

    def put(self, data: Any, offset: int = 0, timeout: Optional[float] = None, *, notify: Optional[int] = None) -> None:
        """Calls `begin_put`, and waits for the completion, for at most `timeout` seconds."""
        request = self._transfer(True, data, offset, None, None, None) if notify is None else self.begin_put(data, offset, notify=notify)
        if request is not DONE:
            request.wait(timeout)

    def get(self, buffer: Any, offset: int = 0, timeout: Optional[float] = None) -> Any:
        """Calls `begin_get`, and waits for the completion, for at most `timeout` seconds; returns the buffer."""
        request = self._transfer(False, buffer, offset, None, None, None)
        if request is not DONE:
            request.wait(timeout)
        return buffer

    def begin_atomic(
        self, op: str, offset: int, operand: int, *, width: int = 8, counter: Optional[Counter] = None, track: Optional[int] = None
    ) -> Request:
        """Applies an atomic to the word of `width` bytes (4 or 8) at `offset`: "add", "and", "or", "xor", "swap", "min" or "max", unsigned."""
        bits = 8 * width
        arguments = (_ATOMICS[op], width, word(offset), operand & ((1 << bits) - 1))
        return self._post(self._call(lib.tieline_atomic, *arguments, how=how_of(counter, track)))

    def begin_fetch(
        self, op: str, offset: int, operand: int, compare: int = 0, *, width: int = 8, track: Optional[int] = None
    ) -> Request:
        """Applies an atomic, as `begin_atomic` or "compare_swap", which stores `operand` if the word equals `compare`. The result is the old value."""
        mask = (1 << 8 * width) - 1
        how, value = how_of(None, track), c_uint64()
        arguments = (_ATOMICS[op], width, word(offset), operand & mask, compare & mask, byref(value))
        return self._post(self._call(lib.tieline_fetch, *arguments, how=how), result=value)

    def atomic(self, op: str, offset: int, operand: int, *, width: int = 8, timeout: Optional[float] = None) -> None:
        """Applies an atomic (`begin_atomic`), and waits until it is complete."""
        self.begin_atomic(op, offset, operand, width=width).wait(timeout)

    def fetch(
        self, op: str, offset: int, operand: int, compare: int = 0, *, width: int = 8, timeout: Optional[float] = None
    ) -> int:
        """Applies an atomic (`begin_fetch`), waits until it is complete, and returns the old value."""
        return self.begin_fetch(op, offset, operand, compare, width=width).wait(timeout)

    def info(self) -> KeyInfo:
        """Reports the properties of the key."""
        record = _c.KeyInfo(size=ctypes.sizeof(_c.KeyInfo))
        self._checked(lib.tieline_key_info(self._handle.opened, byref(record)))
        sized = (record.max_put, record.max_get, record.max_pieces, record.address if record.has_address else None)
        return KeyInfo(record.len, bool(record.reaches_passive_target), bool(record.is_settling), *sized)

    def path(self) -> str:
        """Describes the current path of puts and gets, for example `shm/ring`."""
        return output(lib.tieline_key_path, self._handle.opened).decode()

    def pointer(self, timeout: Optional[float] = None) -> Pointer:
        """Maps the memory into this process for loads and stores. Works for peers on this host, if their provider supports it."""
        pointer, memory, length = c_void_p(), c_void_p(), ctypes.c_size_t()
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            status = lib.tieline_key_pointer(self._handle.opened, byref(pointer), byref(memory), byref(length))
            if status != AGAIN or self._worker._inside:
                break
            self._worker._make_room(until)
        self._checked(status)
        return Pointer(pointer.value or 0, memory.value or 0, length.value)

    def close(self) -> None:
        """Releases the key."""
        self._handle.close()


