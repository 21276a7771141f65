"""Ctrl-C in each wait of the module: `interrupted.py` prints the name of each wait and the seconds until the exception.

Run as rank 0 of 2; rank 1 (the argument `other`) joins the job, and then neither publishes nor takes part in a barrier.
"""

import os
import signal
import socket
import sys
import threading
import time

import tieline

TCP = {"TIELINE_PROVIDERS": "tcp,tcp-connect", "TIELINE_CONNECT_TIMEOUT": "30s", "TIELINE_QUEUE_BYTES": "64k"}
sent = []


def interrupt():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)


def measured(name, wait):
    timer = threading.Timer(0.1, interrupt)
    try:
        timer.start()
        wait()
    except KeyboardInterrupt:
        print(name, round(time.monotonic() - sent[-1], 3), flush=True)
    else:
        print(name, "ended without an interruption", flush=True)
    timer.join()


def full(endpoint):
    while True:
        endpoint.send(1, 0, bytes(4096))


def main():
    # Python keeps a signal ignored if it was ignored at its start, as in the background of a script.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tieline.Context(TCP) as context:
        worker, silent = context.worker(), context.worker()
        me, to = worker.connect(worker.address()), worker.connect(silent.address())
        region, key = context.alloc(64), None
        measured("wait", lambda: worker.wait())
        measured("wait_until", lambda: worker.wait_until(lambda: False))
        measured("messages", lambda: worker.messages(1).get())
        measured("request", lambda: to.send(1, delivered=True).wait())
        measured("flush", lambda: to.flush())
        measured("worker_flush", lambda: worker.flush())
        measured("send", lambda: full(to))
        measured("connect_by_name", lambda: worker.connect_by_name(silent.name()))
        held = context.alloc(1 << 20)
        key = to.import_key(held.key())
        local = context.transient(bytearray(1 << 20))
        request = key.begin_put(local)
        measured("close_region", lambda: worker.close_region(local))
        del request, region, me
        measured("close", lambda: worker.close(30))
        silent._handle.close()
    job = tieline.Job()
    measured("lookup", lambda: job.lookup(1, 5))
    measured("barrier", lambda: job.barrier())
    with tieline.Context() as context, context.worker() as worker:
        measured("barrier_with_worker", lambda: job.barrier(worker))
    print("end", flush=True)
    os._exit(0)  # the calls of the job end when its time is up


def other():
    job = tieline.Job()
    there = socket.socket(socket.AF_UNIX)
    there.connect(sys.argv[2])
    there.recv(1)
    del job
    os._exit(0)


if __name__ == "__main__":
    other() if sys.argv[1:2] == ["other"] else main()
