"""Contexts."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref
from typing import Any, Callable, Optional

from . import _c
from ._buffers import Exported, word
from ._c import lib
from ._driven import DrivenWorker
from ._errors import check
from ._handle import Handle, opened, output
from ._memory import Region
from ._worker import Worker

#: Rights of peers on memory.
READ, WRITE, ATOMIC, ALL = 1, 2, 4, 7
_RELAXED_ORDERING, _COMMITTED_LATER = 8, 16
_PROGRESS_THREAD, _POLLS_OFTEN, _KEYS_WITH_ADDRESSES, _PUBLISH_KEYS = 1, 2, 8, 16
_REPORTS = {"table": 0, "why": 1, "json": 2}


class Context:
    """The object in which a program opens workers and regions: `with Context() as context` or `async with`.

    `settings` are variables (`TIELINE_*`) that override the environment and the files. With `progress_thread`, a thread of the library serves peers'
    accesses to memory while the program computes. `polls_often` promises peers that all workers make progress continuously. `publish_keys` permits
    `Region.publish`. With `keys_with_addresses`, every key reveals the address of its region.
    """

    def __init__(
        self,
        settings: Optional[dict[str, Any]] = None,
        progress_thread: bool = False,
        polls_often: bool = False,
        *,
        publish_keys: bool = False,
        keys_with_addresses: bool = False,
    ) -> None:
        given = [(name.encode(), str(value).encode()) for name, value in (settings or {}).items()]
        records = (_c.Setting * len(given))(*(_c.Setting(*pair) for pair in given))
        flags = (_PROGRESS_THREAD if progress_thread else 0) | (_POLLS_OFTEN if polls_often else 0)
        flags |= (_KEYS_WITH_ADDRESSES if keys_with_addresses else 0) | (_PUBLISH_KEYS if publish_keys else 0)
        params = _c.ContextParams(ctypes.sizeof(_c.ContextParams), records, len(given), flags)
        handle = opened(lib.tieline_context_open, byref(params))
        self._handle = Handle(handle, "tieline_context_close", "a context")
        self._workers: weakref.WeakSet = weakref.WeakSet()

    def worker(self) -> Worker:
        """Opens a worker: a progress engine with its handlers and endpoints."""
        return Worker(self)

    def driven_worker(self) -> DrivenWorker:
        """Opens a worker with a progress thread, which all threads may use at the same time."""
        return DrivenWorker(self)

    def alloc(self, length: int, rights: int = ALL) -> Region:
        """Allocates `length` bytes of zeroed memory, which peers on this host can usually map and thus access fastest."""
        return Region(opened(lib.tieline_context_alloc, self._handle.opened, word(length), rights))

    def register(
        self, data: Any, rights: int = ALL, *, relaxed_ordering: bool = False, committed_later: bool = False
    ) -> Region:
        """Registers a writable, contiguous buffer for access by peers, in place. The registration lasts until the region is closed.

        `relaxed_ordering` promises that no thread polls the memory for the arrival of a put. `committed_later`: the memory is reserved only.
        """
        flags = (_RELAXED_ORDERING if relaxed_ordering else 0) | (_COMMITTED_LATER if committed_later else 0)
        return self._registered(lib.tieline_context_register, data, True, rights | flags)

    def transient(self, data: Any, writable: bool = True) -> Region:
        """Registers a contiguous buffer as the local side of many operations. The region has no key: peers do not access it."""
        return self._registered(lib.tieline_context_lend, data, writable)

    def _registered(self, function: Callable, data: Any, writable: bool, *rights: int) -> Region:
        exported = Exported(data, writable).contiguous()
        try:
            handle = opened(function, self._handle.opened, exported.address, exported.length, *rights)
            return Region(handle, exported)
        except BaseException:
            exported.release()
            raise

    def report(self, which: str = "table") -> str:
        """Reports the modules found and used, as "table", "why" or "json"."""
        return output(lib.tieline_context_report, self._handle.opened, _REPORTS[which]).decode()

    def close(self) -> None:
        """Releases the context. Objects that were opened in it stay valid; while a worker is open, the context stays open too."""
        if any(worker._handle.value for worker in self._workers):
            # Operations of these workers need it to register buffers: their references keep it open.
            self._handle = Handle(None, "", self._handle.what)
        check(self._handle.close())

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    async def __aenter__(self) -> Context:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()
