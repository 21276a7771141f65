"""
Rank 1 is killed while the other ranks wait for it.

Rank 1 writes the time to FILE.1 before its end. Each survivor writes a line per operation to FILE.RANK: its name, "error" or "done", and the
seconds that it took. The operations are `receive` from the killed rank, and a long `send` to it: killed_rank.py FILE OPERATION...
"""

import os
import signal
import sys
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCONT, signal.SIG_IGN)
# Every pair has exchanged a message before the kill.
world.Alltoall(bytearray(world.size), bytearray(world.size))
world.Barrier()
if world.rank == 1:
    with open(f"{sys.argv[1]}.1", "w") as out:
        out.write(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)
with open(f"{sys.argv[1]}.{world.rank}", "w", buffering=1) as out:
    operations = {"receive": (world.Recv, bytearray(8)), "send": (world.Send, bytearray(1 << 20))}
    for name in sys.argv[2:]:
        call, buffer = operations[name]
        begun = time.monotonic()
        try:
            call(buffer, 1, 7)
            outcome = "done"
        except MPI.Exception:
            outcome = "error"
        out.write(f"{name} {outcome} {time.monotonic() - begun:.2f}\n")
os._exit(0)
