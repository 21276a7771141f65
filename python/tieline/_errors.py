"""Failures of the library, and exceptions of handlers."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref
from typing import Any, NoReturn, Optional

from . import _c
from ._c import lib

OK, PENDING, ROUSED = 0, 1, 2
AGAIN, UNSUPPORTED, INVALID, PEER_FAILED, TOO_LARGE = -1, -2, -3, -7, -11
TIMED_OUT, CLOSED, BUSY, CANCELED, EXPIRED = -12, -13, -18, -19, -100


class Error(Exception):
    """A failure: `what` happened, `why`, and how to `fix` it.

    `status` and `kind` are numbers of `tieline_provider.h` and `tieline.h`; `setting` is the name of the setting that caused the failure, or None.
    `index` is that of the entry of a list that failed first, or None.
    """

    def __init__(
        self, status: int, what: str = "", why: str = "", fix: str = "", setting: Optional[str] = None, kind: int = 0
    ) -> None:
        self.index: Optional[int] = None
        super().__init__("; ".join(part for part in (f"{what}: {why}" if why else what, fix) if part))
        self.status, self.kind = status, kind
        self.what, self.why, self.fix, self.setting = what, why, fix, setting

    def __reduce__(self) -> Any:
        return type(self), (self.status, self.what, self.why, self.fix, self.setting, self.kind), {"index": self.index}


class Again(Error):
    """The call posted nothing, because it has no room now: make progress, and repeat the call."""


class Busy(Error):
    """The call was refused and may be repeated later: it was made in a handler, during another thread's call, or while a peer still accesses the memory."""


class TimedOut(Error):
    """The time limit of this wait has passed; the awaited operation continues."""


class Expired(Error):
    """An operation, an endpoint or a lookup has ended because the time that the settings allow for it has passed."""


class PeerFailed(Error):
    """The peer's process has died, or its host cannot be reached any more."""


class Closed(Error):
    """The object, its worker or its peer was closed in good order."""


class Canceled(Error):
    """The operation was canceled, or the receiver refused the message or dropped its acknowledgement."""


_CLASSES = {
    AGAIN: Again,
    BUSY: Busy,
    TIMED_OUT: TimedOut,
    EXPIRED: Expired,
    PEER_FAILED: PeerFailed,
    CLOSED: Closed,
    CANCELED: Canceled,
}


def make_error(fields: tuple) -> Error:
    """Makes the error of (status, kind, what, why, fix, setting[, index])."""
    status, kind, what, why, fix, setting, *index = fields
    error = _CLASSES.get(status, Error)(status, what, why, fix, setting, kind)
    error.index = index[0] if index and index[0] >= 0 else None
    return error


def _text(words: Optional[bytes]) -> str:
    return words.decode("utf-8", "replace") if words else ""


def read_error(record: _c.Failure) -> Error:
    """Makes the error of a `tieline_error` record."""
    words = (_text(record.what), _text(record.why), _text(record.fix), _text(record.setting) or None)
    return make_error((record.status, record.kind, *words, record.index))


def failed(status: int) -> Error:
    """Makes the error of this thread's last failed call, which returned `status`."""
    record = _c.Failure(size=ctypes.sizeof(_c.Failure))
    lib.tieline_last_error(byref(record))
    error = read_error(record)
    if error.status == status:
        return error
    # The garbage collector has ended an object in between, and that call failed too.
    return make_error((status, 0, _text(lib.tieline_status_text(status)), "", "", None))


def check(status: int) -> int:
    """Raises the failure of a call, or returns its result."""
    if status < 0:
        raise failed(status)
    return status


def raise_all(errors: list) -> NoReturn:
    """Raises one exception, or several as a group. Before Python 3.11 the first is raised, with the others as its context."""
    first = next((e for e in errors if not isinstance(e, Exception)), errors[0])
    others = [error for error in errors if error is not first]
    if not others:
        raise first
    if sys.version_info >= (3, 11):
        if isinstance(first, Exception):
            raise ExceptionGroup(f"{len(errors)} exceptions of handlers", errors)
        raise first from BaseExceptionGroup("exceptions of other handlers", others)
    last = first
    for error in others:
        while last.__context__ is not None and last.__context__ is not error:
            last = last.__context__
        last.__context__ = error
    raise first
