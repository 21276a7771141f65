"""Posted operations, and counters of operations."""

from __future__ import annotations

import ctypes
import threading
import time
from ctypes import byref
from typing import TYPE_CHECKING, Any, Callable, Generator, NamedTuple, Optional

from . import _c
from ._c import left, lib
from ._errors import BUSY, CANCELED, INVALID, PENDING, TIMED_OUT, UNSUPPORTED, Busy, Error, check, failed, make_error
from ._handle import Handle, nanoseconds, opened

if TYPE_CHECKING:
    from ._worker import Worker

#: Words above this one track operations that a task awaits.
OWN_WORDS = 1 << 63


class Request:
    """A posted operation: `wait()` for it, `await` it, or ask whether it is `done()`.

    If the request is dropped, the operation continues, and a later flush of the endpoint reports its failure.
    """

    __slots__ = ("_worker", "_number", "_lent", "_result", "_error", "_future", "_post", "_reported", "__weakref__")

    def __init__(self, worker: Worker, number: int, lent: Any = None, result: Any = None) -> None:
        self._worker, self._number, self._lent, self._result = worker, number, lent, result
        self._error: Optional[Error] = None
        self._reported = False
        self._future: Any = None
        #: The call that posts the operation, while an event loop waits for room.
        self._post: Optional[Callable] = None

    def _ended(self, status: int, value: Optional[int], error: Optional[Error]) -> None:
        """Notes the end. The result of an operation that fetches a value is a `c_uint64` until then; `value` is None if the post has filled it."""
        lent, self._lent = self._lent, None
        if lent is not None and not lent.close():
            self._worker._lent.append(lent)
        self._error = error
        if error is not None:
            self._result = None
        elif type(self._result) is ctypes.c_uint64:
            self._result = self._result.value if value is None else value
        # Another thread may look at the number first.
        self._number, self._post = 0, None

    def _outcome(self) -> Any:
        if self._error is not None:
            self._reported = True
            raise self._error
        return self._result

    def done(self) -> bool:
        """Returns whether the operation has ended; raises its failure, unless that was raised before. The call makes no progress."""
        if self._future is None and self._number and self._post is None:
            claim = self._claim(0)
            try:
                # Another thread may wait for the operation, and notes the end.
                if claim is not None and self._number:
                    self._test()
            finally:
                self._disclaim(claim)
        if self._number or self._post is not None:
            return False
        if not self._reported:
            self._outcome()
        return True

    def _test(self) -> None:
        value = ctypes.c_uint64()
        status = lib.tieline_worker_test(self._worker._handle.value, self._number, byref(value))
        if status == BUSY:
            check(status)
        if status != PENDING:
            self._ended(status, value.value, failed(status) if status < 0 else None)

    def _claim(self, timeout: float) -> Any:
        """Makes this thread the only one that requests the end from the library. Returns None if another thread still does so after `timeout` seconds
        (below 0: no limit)."""
        waits, number = self._worker._waits, self._number
        if waits is None:
            return True
        mine = threading.Lock()
        mine.acquire()
        while True:
            other = waits.setdefault(number, mine)
            if other is mine:
                return number, mine
            if not other.acquire(timeout != 0, min(timeout, threading.TIMEOUT_MAX) if timeout > 0 else -1):
                return None
            other.release()

    def _disclaim(self, claim: Any) -> None:
        if claim is not None and claim is not True:
            number, mine = claim
            del self._worker._waits[number]  # type: ignore[union-attr]
            mine.release()

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Makes progress until the operation has ended, and returns its result: the fetched value, the filled buffer, or None.

        Raises `TimedOut` after `timeout` seconds: the operation then continues. `Expired` means that the operation itself has ended because its
        own time was up. Raises the operation's failure.
        """
        worker = self._worker
        if self._future is not None or self._post is not None:
            raise Busy(BUSY, "a wait for an operation", "a task awaits it, or its event loop posts it later", "await it instead")
        if not self._number:
            return self._outcome()
        until = None if timeout is None else time.monotonic() + timeout
        if worker._waits is None or worker._inside:
            return self._finish(until)
        claim = self._claim(-1 if until is None else max(0.0, until - time.monotonic()))
        try:
            if not self._number:
                return self._outcome()
            if claim is not None:
                return self._finish(until)
        finally:
            self._disclaim(claim)
        raise make_error((TIMED_OUT, 1, "a wait for an operation", "the time is up", "wait again, or longer", None))

    def _finish(self, until: Optional[float]) -> Any:
        worker = self._worker
        engine = worker._engine
        while True:
            left_over = None if until is None else until - time.monotonic()
            status = engine.finish(self._number, nanoseconds(left_over))
            if status != TIMED_OUT:
                break
            if worker._raised:
                worker._drive()
            if until is not None and time.monotonic() >= until:
                break
        error = None
        if status < 0:
            error = worker._handle.failed(status)
        if status not in (TIMED_OUT, BUSY):
            self._ended(status, engine.value, error)
            self._reported = True
        worker._drive(error)
        return self._result

    def _followed(self) -> int:
        """The number by which a notification follows the operation."""
        if self._post is not None or self._future is not None:
            raise Busy(BUSY, "a notification", "a task awaits an operation before it, or its event loop posts it later", "notify first, then await")
        if self._error is not None:
            raise self._error
        return self._number

    def cancel(self) -> bool:
        """Cancels the operation. Returns whether it has ended or will end soon, either as `Canceled` or in another way.

        An operation that cannot be canceled, or that a task awaits, continues, and the call returns False.
        """
        if self._post is not None:
            self._ended(CANCELED, 0, make_error((CANCELED, 9, "an operation", "it was canceled before it was posted", "", None)))
            return True
        if not self._number:
            return True
        if self._future is not None:
            return False
        status = lib.tieline_worker_cancel(self._worker._handle.opened, self._number)
        if status == UNSUPPORTED:
            return False
        check(status)
        self._worker._kick()
        return True

    def track(self, user: int) -> None:
        """Arranges that `Worker.take_completed` reports the completion with `user`, a number below 2**63. This request then has no result."""
        if not 0 <= user < OWN_WORDS:
            raise ValueError(f"{user} is not a number below 2**63")
        if not self._number or self._future is not None:
            raise Error(INVALID, "tracking an operation", "it has ended, or a task awaits it", "track a pending operation")
        check(lib.tieline_worker_track(self._worker._handle.opened, self._number, user))
        self._number = 0
        if self._lent is not None:
            self._worker._lent.append(self._lent)
            self._lent = None

    def __await__(self) -> Generator[Any, None, Any]:
        if self._number or self._post is not None:
            yield from self._worker._loop_driver().future_of(self).__await__()
        return self._outcome()

    def __del__(self) -> None:
        # The interpreter may be ending.
        worker = self._worker
        if self._number and self._future is None and worker._handle.value:
            if lib.tieline_worker_forget(worker._handle.value, self._number) == BUSY:
                left.append(("tieline_worker_forget", worker._handle.value, self._number))
        if self._lent is not None:
            worker._lent.append(self._lent)


#: The request of operations that were done when their call returned, and have no result.
DONE = Request(None, 0)  # type: ignore[arg-type]


class Counted(NamedTuple):
    """The values of a counter. The fields with `since_mark` start again at each mark."""

    done: int
    failed: int
    pending: int
    first_failure: int
    first_kind: int
    done_since_mark: int
    failed_since_mark: int


class Completed(NamedTuple):
    """A completed tracked operation: the word that was passed, the fetched value or 0, and the failure or None."""

    user: int
    value: int
    error: Optional[Error]


class Counter:
    """A counter of completed operations of one worker, for operations that are posted with `counter=`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._handle = Handle(opened(lib.tieline_worker_counter, worker._handle.opened), "tieline_counter_drop", "a counter")
        worker._belongings.add(self)

    def read(self) -> Counted:
        """Reads the values. The call makes no progress."""
        record = _c.Counted(size=ctypes.sizeof(_c.Counted))
        self._check(lib.tieline_counter_read(self._handle.value, byref(record)))
        return Counted(*(getattr(record, name) for name in Counted._fields))

    def mark(self) -> None:
        """Sets a mark: the fields with `since_mark` and the first failure cover the operations that end from now on."""
        self._check(lib.tieline_counter_mark(self._handle.value))

    def wait(self, timeout: Optional[float] = None) -> Counted:
        """Makes progress until no counted operation is pending. Raises `TimedOut` after `timeout` seconds."""
        if not self._worker.wait_until(lambda: not self.read().pending, timeout):
            raise make_error((TIMED_OUT, 1, "a wait for counted operations", "the time is up", "wait again, or longer", None))
        return self.read()

    def _check(self, status: int) -> None:
        if status < 0:
            raise self._handle.failed(status)

    def close(self) -> None:
        """Releases the counter. The counted operations continue."""
        self._handle.close()


def how_of(counter: Optional[Counter], track: Optional[int], flags: int = 0, word: int = 0) -> Optional[_c.How]:
    """Makes the parameters that select how a completion is reported; None for a request number."""
    if counter is None and track is None and not flags:
        return None
    if counter is not None and track is not None:
        raise ValueError("a completion is counted or tracked, not both")
    how = _c.How(size=ctypes.sizeof(_c.How), flags=flags, word=word)
    if counter is not None:
        how.tell, how.counter = 2, counter._handle.opened
    elif track is not None:
        if not 0 <= track < OWN_WORDS:
            raise ValueError(f"{track} is not a number below 2**63")
        how.tell, how.user = 1, track
    return how


