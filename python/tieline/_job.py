"""The processes that one launch has started."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t
from typing import TYPE_CHECKING, Any, Optional

from . import _c
from ._buffers import bytes_of, word
from ._c import lib
from ._errors import BUSY, Busy, check
from ._handle import Handle, nanoseconds, opened, output
from ._interrupt import Call, interruptibly, is_main

if TYPE_CHECKING:
    from ._worker import Worker


class Job:
    """The processes that one launch has started (`tieline run`, mpirun, srun, `TIELINE_BOOTSTRAP`): `rank` of `size`, `local_rank` of `local_size`
    on this host. Without a launcher, a process is rank 0 of 1.

    Ctrl-C ends every wait of a job; the call then ends in the background, and the job should be closed. A wait lasts at most as long as the launcher's
    time limit (`set_deadline`).
    """

    def __init__(self) -> None:
        handle = interruptibly(opened, lib.tieline_job_open, None)
        self._handle = Handle(handle, "tieline_job_close", "a job")
        place = _c.JobPlace(size=ctypes.sizeof(_c.JobPlace))
        check(lib.tieline_job_place(self._handle.opened, byref(place)))
        self.rank: int = place.rank
        self.size: int = place.ranks
        self.local_rank: int = place.local_rank
        self.local_size: int = place.local_ranks

    def set_deadline(self, timeout: float) -> None:
        """Sets the time limit of each exchange, publication and lookup, in seconds."""
        check(lib.tieline_job_set_deadline(self._handle.opened, nanoseconds(timeout)))

    def publish(self, key: int, data: Any) -> None:
        """Publishes bytes, to be looked up by this process's rank and `key`, a number of 32 bits. The call does not wait for other processes."""
        data = bytes_of(data)
        interruptibly(_checked, lib.tieline_job_publish, self._handle.opened, word(key, 32), data, len(data))

    def lookup(self, rank: int, key: int) -> bytes:
        """Returns what `rank` has published as `key`, and waits for it if necessary."""
        return interruptibly(output, lib.tieline_job_lookup, self._handle.opened, word(rank), word(key, 32))

    def exchange(self, data: Any) -> list[bytes]:
        """Sends bytes to every process (an all-gather), and returns the bytes of each rank. Every process must make the same number of calls."""
        data, parts = bytes_of(data), {}

        @_c.TAKE_FN
        def take(_: Any, rank: int, start: Optional[int], length: int) -> None:
            parts[rank] = ctypes.string_at(start or 0, length) if length else b""

        interruptibly(_checked, lib.tieline_job_exchange, self._handle.opened, data, c_size_t(len(data)), take, None)
        return [parts[rank] for rank in range(self.size)]

    def barrier(self, worker: Optional[Worker] = None) -> None:
        """Returns when every process has called it. If `worker` is given, the call makes progress on it meanwhile, and runs its handlers.

        Pass a worker if peers may still access its memory or wait for its replies. A driven worker makes progress in any case.
        """
        handle = self._handle.opened
        if worker is None or worker._waits is not None:
            interruptibly(_checked, lib.tieline_job_barrier, handle, None)
            return
        if not is_main() or worker._inside:
            status = lib.tieline_job_barrier(handle, worker._handle.opened)
            worker._drive(worker._handle.failed(status) if status < 0 else None)
            return
        if worker._driver is not None:
            raise Busy(BUSY, "a barrier with a worker", "an event loop drives the worker", "await asyncio.to_thread(job.barrier)")
        waker = worker.waker()
        # The handlers run in this thread, and the other one only waits.
        call = Call(_checked, lib.tieline_job_barrier, handle, None, wake=waker.wake)
        worker.wait_until(call.is_over)
        call.result()

    def close(self) -> None:
        """Leaves the job."""
        check(self._handle.close())

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _checked(function: Any, *arguments: Any) -> None:
    check(function(*arguments))
