"""Runs commands with a time limit, after which nothing that they started is left."""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Makes this process the parent of processes whose parents have ended, which `end_descendants` needs."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("this process cannot adopt orphans")


def is_below(pid, ancestor):
    while pid > 1 and pid != ancestor:
        try:
            pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            return False
    return pid == ancestor


def end_descendants(patience=0.0):
    """
    Kills the processes that a run has left behind, if they do not end by themselves within the patience.

    They are children of this process, which adopts orphans.
    """
    until = time.monotonic() + patience
    for _ in range(100 + int(patience * 20)):
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        left = [pid for pid in pids if pid != os.getpid() and is_below(pid, os.getpid())]
        if not left:
            return
        for pid in left if time.monotonic() >= until else []:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                return
        time.sleep(0.05)


def run_limited(words, environment, limit, log, cwd=None, patience=0.0):
    """Runs a command; returns its exit status, or None at the limit. Nothing that it started is left after the patience."""
    with open(log, "w") as out:
        child = subprocess.Popen(words, env=environment, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd)
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            status = None
    end_descendants(patience)
    return status
