"""Messages, put and get between processes, over the transports that Tieline finds.

    import tieline

    with tieline.Context() as context, context.worker() as worker:
        me = worker.connect(worker.address())       # the peer's address, over a channel that only the job can read; here the own address
        memory = context.alloc(4096)
        key = me.import_key(memory.key())
        key.put(b"moved", offset=100)
        assert bytes(memory.view()[100:105]) == b"moved"

A buffer is any contiguous object with the buffer protocol (bytes, bytearray, memoryview, array, numpy). Put, get and `take_into` use the buffer in
place: it belongs to the operation until the operation has ended. `send` is finished with its buffer when the call returns. Only one thread at a time may use
a worker and its endpoints and keys; a second thread gets `Busy`. Every call lets other threads run while it is in the library. The first exception of a
handler is raised by the outermost call that ran handlers. Failures of the library are `Error`: what happened, why, and what to do.
"""

import ctypes
import functools
import sys
import time
import weakref
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

from . import _c
from ._c import lib

__all__ = [
    "Again",
    "Busy",
    "Context",
    "Endpoint",
    "Error",
    "Expired",
    "Job",
    "Key",
    "Message",
    "Region",
    "Request",
    "TimedOut",
    "Worker",
    "READ",
    "WRITE",
    "ATOMIC",
    "ALL",
]

#: Rights of peers on memory.
READ, WRITE, ATOMIC, ALL = 1, 2, 4, 7

_OK, _PENDING = 0, 1
#: Python's signal handlers run only between calls of the library, so most waits are divided into calls of at most this number of seconds.
_SLICE = 0.1
#: The time in seconds that a wait polls before it sleeps, and the length of each sleep.
_SPIN, _NAP = 100e-6, 0.01
_AGAIN, _INVALID, _TOO_LARGE, _TIMED_OUT, _BUSY, _EXPIRED = -1, -3, -11, -12, -18, -100
_REPORTS = {"table": 0, "why": 1, "json": 2}


class Error(Exception):
    """A failure: `what` happened, `why`, and how to `fix` it. `status` is a number of tieline_provider.h or tieline.h."""

    def __init__(self, status, what="", why="", fix="", setting=None):
        super().__init__("; ".join(part for part in (f"{what}: {why}" if why else what, fix) if part))
        self.status, self.what, self.why, self.fix, self.setting = status, what, why, fix, setting


class Again(Error):
    """The call posted nothing, because it has no room now: make progress, and repeat the call."""


class Busy(Error):
    """The call was refused and may be repeated later: it was made in a handler, during another thread's call, or while a peer still accesses the memory."""


class TimedOut(Error):
    """The time limit of this wait has passed; the awaited operation continues."""


class Expired(Error):
    """Something has ended because the time that the settings allow for it has passed, for example for an operation."""


_KINDS = {_AGAIN: Again, _BUSY: Busy, _TIMED_OUT: TimedOut, _EXPIRED: Expired}


def _text(words):
    return words.decode("utf-8", "replace") if words else ""


def _failed(status):
    failure = _c.Failure(size=ctypes.sizeof(_c.Failure))
    lib.tieline_last_error(byref(failure))
    words = [_text(part) for part in (failure.what, failure.why, failure.fix)]
    setting = _text(failure.setting) or None
    return _KINDS.get(status, Error)(status, *words, setting)


def _check(status):
    if status < 0:
        raise _failed(status)
    return status


def _opened(function, *arguments):
    handle = c_void_p()
    _check(function(*arguments, byref(handle)))
    return handle.value


def _bytes_of(function, *arguments):
    """Returns output of the library whose size is not known beforehand."""
    room = 1024
    while True:
        buffer, length = ctypes.create_string_buffer(room), c_size_t(room)
        status = function(*arguments, buffer, byref(length))
        if status != _TOO_LARGE:
            _check(status)
            return buffer.raw[: length.value]
        room = length.value + 1


def _nanoseconds(timeout):
    return -1 if timeout is None else max(0, min(int(timeout * 1e9), 2**63 - 1))


class _Exported:
    """The memory of a Python object, kept in place until it is released."""

    def __init__(self, data, writable=False):
        self.view = _c.Buffer()
        # Raises BufferError with its own text for an object that is not contiguous, or read-only.
        _c.get_buffer(data, byref(self.view), 1 if writable else 0)
        self.is_held = True

    @property
    def address(self):
        return self.view.buf

    def __len__(self):
        return self.view.len

    def release(self):
        if self.is_held:
            self.is_held = False
            _c.release_buffer(byref(self.view))


def _word(number, bits=64):
    """Checks the range of a number: ctypes would silently truncate a larger number."""
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{number} does not fit in {bits} bits")
    return number


#: Functions that failed to end an object because its worker was in another thread's call. Later calls of any worker's `progress`, among others, retry them.
_left = []


def _end_what_was_left():
    for _ in range(len(_left)):
        end = _left.pop()
        if end() == _BUSY:
            _left.insert(0, end)


class _Handle:
    """A handle of the library, closed at most once. `what` names the object for errors."""

    def __init__(self, value, end, what):
        self.value, self.end, self.what = value, end, what

    @property
    def opened(self):
        """The handle for a call. Raises an error if it is closed."""
        if not self.value:
            raise Error(_INVALID, f"a call of {self.what}", "it is closed", "open another one, or close this one later")
        return self.value

    def close(self):
        if not self.value:
            return _OK
        status = self.end(self.value)
        if status != _BUSY:
            self.value = None
        return status

    def __del__(self):
        # The garbage collector may run in any thread, at any time.
        if self.close() == _BUSY:
            _left.append(functools.partial(self.end, self.value))


class Context:
    """The object in which a program opens workers and regions. `settings` are variables (`TIELINE_*`) that override the environment and the files."""

    def __init__(self, settings=None, progress_thread=False):
        given = [(name.encode(), str(value).encode()) for name, value in (settings or {}).items()]
        records = (_c.Setting * len(given))(*(_c.Setting(*pair) for pair in given))
        params = _c.ContextParams(
            ctypes.sizeof(_c.ContextParams), records, len(given), 1 if progress_thread else 0
        )
        opened = _opened(lib.tieline_context_open, byref(params))
        self._handle = _Handle(opened, lib.tieline_context_close, "a context")
        self._workers = weakref.WeakSet()

    def worker(self):
        """Opens a worker: a progress engine with its handlers and endpoints."""
        return Worker(self)

    def alloc(self, length, rights=ALL):
        """Allocates zeroed memory, which peers on this host can usually map and thus access fastest."""
        return Region(_opened(lib.tieline_context_alloc, self._handle.opened, _word(length), rights))

    def register(self, data, rights=ALL):
        """Registers a writable buffer for access by peers, in place. The registration lasts until the region is closed."""
        exported = _Exported(data, writable=True)
        try:
            arguments = (self._handle.opened, exported.address, len(exported), rights)
            return Region(_opened(lib.tieline_context_register, *arguments), exported)
        except BaseException:
            exported.release()
            raise

    def report(self, which="table"):
        """Reports the modules found and used, as "table", "why" or "json"."""
        return _bytes_of(lib.tieline_context_report, self._handle.opened, _REPORTS[which]).decode()

    def close(self):
        """Releases the context. Objects that were opened in it stay valid; while a worker is open, the context stays open too."""
        if any(worker._handle.value for worker in self._workers):
            # Operations of these workers need it to register buffers: their references keep it open.
            self._handle = _Handle(None, None, self._handle.what)
        _check(self._handle.close())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Region:
    """Memory that peers access by its key."""

    def __init__(self, handle, exported=None):
        self._owner = _Owner(handle, exported)
        self._handle = self._owner.handle
        memory, length = c_void_p(), c_size_t()
        _check(lib.tieline_region_memory(handle, byref(memory), byref(length)))
        # A separate subclass has an attribute for the owner, which must outlive the memory.
        kind = type("Memory", (ctypes.c_ubyte * length.value,), {})
        self._memory = kind.from_address(memory.value) if length.value else kind()
        self._memory.owner = self._owner

    def __len__(self):
        return len(self._memory)

    def view(self):
        """Returns the memory for reading and writing. The region cannot be closed while views of it exist."""
        if not self._handle.value:
            raise ValueError("this region is closed")
        return memoryview(self._memory).cast("B")

    def key(self):
        """The key by which a peer accesses the region, as bytes."""
        return _bytes_of(lib.tieline_region_key, self._handle.opened)

    def close(self):
        """Closes the region: afterwards neither peers nor the library access its memory. Raises `Busy` while an operation or a peer may access it."""
        if not self._handle.value:
            return
        self._end(lib.tieline_region_close)

    def _end(self, end, *timeout):
        if sys.getrefcount(self._memory) > 2:
            raise BufferError("views of this region's memory exist; release them before it is closed")
        _check(end(self._handle.value, *timeout))
        self._handle.value = None
        if self._owner.exported is not None:
            self._owner.exported.release()


class _Owner:
    """The owner of a region's handle, shared by the region, its memory and all views. Dropping the last reference ends the region."""

    def __init__(self, handle, exported):
        self.handle, self.exported = _Handle(handle, lib.tieline_region_drop, "a region"), exported

    def __del__(self):
        if not self.handle.value or self.exported is None:
            return
        if lib.tieline_region_close(self.handle.value) < 0:
            # A peer may still access the buffer, so it is never released.
            _unclosed.append((self.handle, self.exported))
        else:
            self.handle.value = None
            self.exported.release()


_unclosed = []


class Message:
    """A message, valid during its handler."""

    def __init__(self, worker, record):
        self._worker, self._record = worker, record

    def _arrived(self):
        if self._record is None:
            raise ValueError("a message is there only while its handler runs")
        return self._record

    @property
    def header(self):
        """The header that the sender has passed."""
        return self._arrived().contents.header

    @property
    def peer(self):
        """The sender's number in this worker."""
        peer = c_uint32()
        _check(lib.tieline_message_peer(self._arrived(), byref(peer)))
        return peer.value

    def __len__(self):
        """The length of the message, including that of a rendezvous message."""
        return self._arrived().contents.len

    @property
    def is_announced(self):
        """Whether this is a rendezvous message: its bytes are still at the sender, and the message is refused unless the handler calls `take_into`."""
        return bool(self._arrived().contents.is_announced)

    @property
    def payload(self):
        """A copy of the message's bytes; empty for a rendezvous message."""
        record = self._arrived().contents
        return ctypes.string_at(record.payload, record.len) if record.payload else b""

    def take_into(self, buffer):
        """Receives a rendezvous message into the beginning of a writable buffer. The returned `Request` ends when the bytes are in the buffer."""
        worker, announced = self._worker, c_void_p()
        lent = _Lent(worker, buffer, writable=True)
        record = self._arrived()
        length = min(record.contents.len, len(lent.exported))
        number = c_uint64()
        status = lib.tieline_message_announcement(record, byref(announced))
        if status >= 0:
            arguments = (announced.value, lent.region, 0, length, None, byref(number))
            status = lib.tieline_announcement_take(*arguments)
        if status < 0:
            error = _failed(status)
            if announced.value:
                lib.tieline_announcement_refuse(announced.value)
            if not lent.close():
                worker._lent.append(lent)
            raise error
        request = Request(worker, number.value, lent)
        if status == _OK:
            request._ended()
        return request


class Worker:
    """A progress engine. A worker makes progress and runs handlers only inside its own calls."""

    def __init__(self, context):
        self._context_handle = context._handle
        opened = _opened(lib.tieline_worker_open, context._handle.opened)
        self._handle = _Handle(opened, lib.tieline_worker_drop, "a worker")
        self._handlers = {}
        self._raised = None
        self._inside = 0
        self._lent = []  # of operations whose request was dropped
        self._belongings = weakref.WeakSet()
        context._workers.add(self)

    def address(self):
        """The address to which peers connect, as bytes."""
        return _bytes_of(lib.tieline_worker_address, self._handle.opened)

    def connect(self, address):
        """Opens an endpoint to the worker with that address. Its first operation establishes the connection."""
        return Endpoint(self, _opened(lib.tieline_worker_connect, self._handle.opened, address, len(address)))

    def on_message(self, id, handler):
        """Calls `handler(message)` for each message with this id. With `None`, the worker discards such messages."""

        def call(_, record):
            message = Message(self, record)
            self._guarded(handler, message)
            message._record = None

        function = _c.MESSAGE_FN(call) if handler else _c.MESSAGE_FN()
        _check(lib.tieline_worker_on_message(self._handle.opened, _word(id, 16), function, None))
        # The previous handler may be running, so it is kept as long as the worker.
        self._handlers.setdefault(id, []).append(function)

    def _guarded(self, function, *arguments):
        """Runs a function of the caller. An exception must not propagate through the library."""
        self._inside += 1
        try:
            return function(*arguments)
        except BaseException as error:  # `_drive` raises it
            if self._raised is None:
                self._raised = error
            return None
        finally:
            self._inside -= 1

    def _drive(self, status):
        """Raises the first exception of a handler, after a call that may have run handlers. Inside a handler it raises nothing."""
        raised, self._raised = (self._raised, None) if not self._inside else (None, self._raised)
        if raised is not None:
            raise raised
        return status

    def progress(self):
        """Makes progress and runs handlers; returns the number of events."""
        self._let_go()
        return _check(self._drive(lib.tieline_worker_progress(self._handle.opened)))

    def wait_until(self, condition, timeout=None):
        """Makes progress until `condition()` is true. Returns False if the condition is still false after `timeout` seconds. In a handler, a wait raises `Busy`."""
        until = None if timeout is None else time.monotonic() + timeout
        moved_at = time.monotonic()
        while not condition():
            if self.progress():
                moved_at = time.monotonic()
                continue
            now = time.monotonic()
            if until is not None and now >= until:
                return bool(condition())
            if now - moved_at >= _SPIN or self._inside:
                # A peer's put into shared memory does not wake the worker, so sleeps are short.
                nap = _NAP if until is None else min(_NAP, until - now)
                status = lib.tieline_worker_wait(self._handle.opened, _nanoseconds(nap))
                if self._drive(status) != _TIMED_OUT:
                    _check(status)
        return True

    def close_region(self, region, timeout=None):
        """Closes a region as `Region.close` does, and makes progress until no peer and no operation accesses the region, for at most `timeout` seconds."""

        def end(handle, limit):
            return self._drive(lib.tieline_worker_close_region(self._handle.opened, handle, limit))

        if region._handle.value:
            region._end(end, _nanoseconds(timeout))

    def close(self, timeout=10.0):
        """Delivers everything that was posted within `timeout` seconds, or raises an error that lists the losses. The worker ends in any case except `Busy`.

        With losses, the call takes up to a second more (`TIELINE_CLOSE_TIMEOUT`)."""
        if not self._handle.value:
            return
        status = lib.tieline_worker_close(self._handle.value, _nanoseconds(timeout))
        error = _failed(status) if status < 0 else None
        if status != _BUSY:
            self._handle.value = None
            for one in list(self._belongings):
                one.close()
            self._let_go()
            # The last reference to a closed context ends it.
            self._context_handle = _Handle(None, None, self._context_handle.what)
        self._drive(status)
        if error is not None:
            raise error

    def _let_go(self):
        """Releases the buffers of ended operations whose request was dropped."""
        _end_what_was_left()
        self._lent = [lent for lent in self._lent if not lent.close()]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
        else:
            self._handle.close()


class _Lent:
    """A buffer of the caller that is registered as the local side of one operation."""

    def __init__(self, worker, data, writable):
        self.exported = _Exported(data, writable)
        try:
            arguments = (worker._context_handle.opened, self.exported.address, len(self.exported))
            self.region = _opened(lib.tieline_context_lend, *arguments)
        except BaseException:
            self.exported.release()
            raise

    def close(self):
        """Tries to release the buffer; returns whether the library has finished with it."""
        if self.region is None:
            return True
        if lib.tieline_region_close(self.region) < 0:
            return False
        self.region = None
        self.exported.release()
        return True

    def __del__(self):
        if getattr(self, "region", None) is not None and not self.close():
            _unclosed.append((self.region, self.exported))


class Request:
    """A posted operation. If the request is dropped, the operation continues, and a later flush of the endpoint reports its failure."""

    def __init__(self, worker, number, lent=None):
        self._worker, self._number, self._lent = worker, number, lent

    def _ended(self):
        self._number = 0
        lent, self._lent = self._lent, None
        if lent is not None and not lent.close():
            self._worker._lent.append(lent)

    def done(self):
        """Returns whether the operation has ended; raises the operation's failure. The call makes no progress."""
        if not self._number:
            return True
        status = lib.tieline_worker_test(self._worker._handle.opened, self._number, None)
        if status == _PENDING:
            return False
        if status != _BUSY:
            self._ended()
        _check(status)
        return True

    def wait(self, timeout=None):
        """Makes progress until the operation has ended. Raises `TimedOut` after `timeout` seconds: the operation then continues.

        `Expired` means that the operation itself has ended because its own time was up."""
        if not self._number:
            return
        handle = self._worker._handle.opened
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if until is None else min(_SLICE, until - time.monotonic())
            status = lib.tieline_worker_finish(handle, self._number, _nanoseconds(left), None)
            is_up = until is not None and time.monotonic() >= until
            if status != _TIMED_OUT or is_up or self._worker._raised is not None:
                break
        error = _failed(status) if status < 0 else None
        if status not in (_TIMED_OUT, _BUSY):
            self._ended()
        self._worker._drive(status)
        if error is not None:
            raise error

    def __del__(self):
        if self._number and self._worker._handle.value:
            forget = functools.partial(
                lib.tieline_worker_forget, self._worker._handle.value, self._number
            )
            if forget() == _BUSY:
                _left.append(forget)
            if self._lent is not None:
                self._worker._lent.append(self._lent)


class Job:
    """The processes that one launch has started (`tieline run`, mpirun, srun). Without a launcher, a process is rank 0 of 1."""

    def __init__(self):
        self._handle = _Handle(_opened(lib.tieline_job_open, None), lib.tieline_job_close, "a job")
        place = _c.JobPlace(size=ctypes.sizeof(_c.JobPlace))
        _check(lib.tieline_job_place(self._handle.opened, byref(place)))
        self.rank, self.size = place.rank, place.ranks
        self.local_rank, self.local_size = place.local_rank, place.local_ranks

    def publish(self, key, data):
        """Publishes bytes, to be looked up by this process's rank and `key`."""
        _check(lib.tieline_job_publish(self._handle.opened, _word(key, 32), bytes(data), len(data)))

    def lookup(self, rank, key):
        """Returns what `rank` has published as `key`, and waits for it if necessary."""
        return _bytes_of(lib.tieline_job_lookup, self._handle.opened, _word(rank), _word(key, 32))

    def barrier(self, worker=None):
        """Returns when every process has called it. If `worker` is given, the call makes progress on it meanwhile."""
        inner = worker._handle.opened if worker else None
        status = lib.tieline_job_barrier(self._handle.opened, inner)
        _check(worker._drive(status) if worker else status)

    def close(self):
        """Leaves the job."""
        _check(self._handle.close())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Posting:
    """Base class of objects that post operations."""

    def _post(self, lent, function, *arguments):
        """Posts, and makes progress and retries while there is no room. In a handler, the call raises `Again` instead."""
        worker = self._worker
        number = c_uint64()
        try:
            while True:
                status = function(self._handle.opened, *arguments, None, byref(number))
                if status != _AGAIN or worker._inside:
                    break
                worker.progress()
            _check(status)
        except BaseException:
            if lent is not None and not lent.close():
                worker._lent.append(lent)
            raise
        request = Request(worker, number.value, lent)
        if status == _OK:
            request._ended()
        return request


class Endpoint(_Posting):
    """A connection to one peer."""

    def __init__(self, worker, handle):
        self._worker = worker
        self._handle = _Handle(handle, lib.tieline_endpoint_drop, "an endpoint")
        worker._belongings.add(self)

    def send(self, id, header=0, payload=b""):
        """Sends a header and bytes, which may be reused when the call returns. `done` means that the transport has accepted the message."""
        id, header = _word(id, 16), _word(header)
        exported = _Exported(payload)
        try:
            return self._post(None, lib.tieline_send, id, header, exported.address, len(exported))
        finally:
            exported.release()

    def import_key(self, key):
        """Imports the bytes of a peer's `Region.key()`, for use on this endpoint."""
        return Key(self, _opened(lib.tieline_endpoint_import_key, self._handle.opened, key, len(key)))

    def flush(self, timeout=None):
        """Waits until earlier puts and gets on this endpoint are complete, and the transport has accepted earlier messages.

        Raises the first failure of dropped requests."""
        self._post(None, lib.tieline_endpoint_flush).wait(timeout)

    def path(self):
        """Describes the lanes to the peer."""
        return _bytes_of(lib.tieline_endpoint_path, self._handle.opened).decode()

    def close(self):
        """Releases the endpoint. Queued operations are still sent; other operations end as canceled, or complete if the connection remains."""
        self._handle.close()


class Key(_Posting):
    """A peer's memory, accessed through an endpoint."""

    def __init__(self, endpoint, handle):
        self._worker = endpoint._worker
        self._handle = _Handle(handle, lib.tieline_key_drop, "a key")
        self._worker._belongings.add(self)

    def begin_put(self, data, offset=0):
        """Writes the bytes of `data` to the peer's memory. The bytes must not change until the request has ended. After success, they are visible at the peer."""
        offset, lent = _word(offset), _Lent(self._worker, data, writable=False)
        length = len(lent.exported)
        return self._post(lent, lib.tieline_put, offset, lent.region, 0, length)

    def begin_get(self, buffer, offset=0):
        """Fills a writable buffer from the peer's memory. The contents of the buffer are valid when the request has ended without an error."""
        offset, lent = _word(offset), _Lent(self._worker, buffer, writable=True)
        length = len(lent.exported)
        return self._post(lent, lib.tieline_get, offset, lent.region, 0, length)

    def put(self, data, offset=0, timeout=None):
        """Calls `begin_put`, and waits for the completion."""
        self.begin_put(data, offset).wait(timeout)

    def get(self, buffer, offset=0, timeout=None):
        """Calls `begin_get`, and waits for the completion; returns the buffer."""
        self.begin_get(buffer, offset).wait(timeout)
        return buffer

    def close(self):
        """Releases the key."""
        self._handle.close()
