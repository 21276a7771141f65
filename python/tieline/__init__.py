"""Messages, put and get between processes, over the transports that Tieline finds.

    import tieline

    with tieline.Context() as context, context.worker() as worker:
        me = worker.connect(worker.address())       # the peer's address, over a channel that only the job can read; here the own address
        memory = context.alloc(4096)
        key = me.import_key(memory.key())
        key.put(b"moved", offset=100)
        assert bytes(memory.view()[100:105]) == b"moved"

In an event loop, `async with context.worker() as worker` attaches the worker to the loop: requests are awaited (`await key.begin_get(buffer)`), and
`async for message in worker.messages(7)` receives. Nothing polls: the loop sleeps on the worker's descriptor.

Calls accept anything with the buffer protocol as bytes, also numpy arrays and CPU tensors, and never `str`. Put, get and `take_into` use
the buffer in place: it belongs to the operation until the operation has ended. Time limits are in seconds, lengths and offsets in bytes.

Only one thread at a time may use a worker and its endpoints and keys; a second thread gets `Busy`. All threads may use a driven worker
(`Context.driven_worker`), which makes progress by itself. Calls let other threads run while they wait. Failures
of the library are `Error`: what happened, why, and what to do. `docs/python.md` has the rules with examples.
"""

from ._context import ALL, ATOMIC, READ, WRITE, Context
from ._driven import DrivenWorker
from ._endpoint import Endpoint, Key, KeyInfo, Limits, PreparedList
from ._errors import Again, Busy, Canceled, Closed, Error, Expired, PeerFailed, TimedOut
from ._job import Job
from ._memory import Part, Pointer, Region
from ._message import Acknowledgement, Message, Messages
from ._request import Completed, Counted, Counter, Request
from ._worker import Counters, Waker, Worker

__version__ = "0.2.0"

__all__ = [
    "Acknowledgement",
    "Again",
    "Busy",
    "Canceled",
    "Closed",
    "Completed",
    "Context",
    "Counted",
    "Counter",
    "Counters",
    "DrivenWorker",
    "Endpoint",
    "Error",
    "Expired",
    "Job",
    "Key",
    "KeyInfo",
    "Limits",
    "Message",
    "Messages",
    "Part",
    "PeerFailed",
    "Pointer",
    "PreparedList",
    "Region",
    "Request",
    "TimedOut",
    "Waker",
    "Worker",
    "READ",
    "WRITE",
    "ATOMIC",
    "ALL",
    "__version__",
]
