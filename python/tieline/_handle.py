"""Handles of the library, and output of unknown length."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_void_p
from typing import Any, Callable, Optional

from ._c import left, lib
from ._errors import BUSY, INVALID, OK, TOO_LARGE, Error, check, failed


def opened(function: Callable, *arguments: Any) -> int:
    """Calls a function whose last argument receives a handle."""
    handle = c_void_p()
    check(function(*arguments, byref(handle)))
    return handle.value or 0


def output(function: Callable, *arguments: Any) -> bytes:
    """Returns output of the library whose size is not known beforehand."""
    room = 1024
    while True:
        buffer, length = ctypes.create_string_buffer(room), c_size_t(room)
        status = function(*arguments, buffer, byref(length))
        if status != TOO_LARGE:
            check(status)
            return buffer.raw[: length.value]
        room = max(length.value + 1, 2 * room)


def nanoseconds(timeout: Optional[float]) -> int:
    """Returns a time limit for the library; None means no limit."""
    return -1 if timeout is None else max(0, min(int(timeout * 1e9), 2**63 - 1))


def end_left() -> None:
    """Ends objects whose worker was in another thread's call. Calls of any worker's `progress`, among others, do this."""
    for _ in range(len(left)):
        name, *arguments = left.pop()
        if getattr(lib, name)(*arguments) == BUSY:
            left.insert(0, (name, *arguments))


class Handle:
    """A handle of the library, closed at most once. `what` names the object for errors."""

    __slots__ = ("value", "end", "what", "__weakref__")

    def __init__(self, value: Optional[int], end: str, what: str) -> None:
        self.value, self.end, self.what = value, end, what

    @property
    def opened(self) -> int:
        """The handle for a call. Raises an error if it is closed."""
        if not self.value:
            raise Error(INVALID, f"a call of {self.what}", "it is closed", "open another one, or close this one later")
        return self.value

    def failed(self, status: int) -> Error:
        """Makes the error of a call with this handle."""
        if not self.value:
            try:
                self.opened
            except Error as error:
                return error
        return failed(status)

    def close(self) -> int:
        if not self.value:
            return OK
        status = getattr(lib, self.end)(self.value)
        if status != BUSY:
            self.value = None
        return status

    def __del__(self) -> None:
        # The garbage collector may run in any thread, at any time.
        if self.close() == BUSY:
            left.append((self.end, self.value))


