#!/usr/bin/env python3
"""
Compares the backends TIELINE and UCX of one NIXL installation in alternation.

    bench.py [--rounds 7] [--floor] [--tcp] [--namespaces] [--network FAR] [--no-thread] [--processor]

Each round measures every row with both backends, one after the other. The table has the best, median and worst value of each
backend, and the median of the rounds' ratios. Throughput is in MiB/s, latency in microseconds for one way. --tcp restricts both
backends to TCP. --namespaces does so between two network namespaces, which it makes (as root) and removes. --processor divides by the processor time of the initiating process, which depends less on other load. --floor adds
the system call that copies between processes, called from Python without NIXL. --network starts the far
side in a named network namespace; `ip netns exec NEAR bench.py ...` does it for this side.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time

from sides import Far, Side, pair

KIB, MIB = 1 << 10, 1 << 20
SIZE = 64 * MIB
# The name, the kind, the length of a piece, the pieces of a request, their distance, and the requests of a measurement.
ROWS = [
    ("READ 64 KiB", "READ", 64 * KIB, 1, 64 * KIB, 1000),
    ("WRITE 64 KiB", "WRITE", 64 * KIB, 1, 64 * KIB, 1000),
    ("READ 1 MiB", "READ", MIB, 1, MIB, 150),
    ("WRITE 1 MiB", "WRITE", MIB, 1, MIB, 150),
    ("READ 256 x 16 KiB, adjacent", "READ", 16 * KIB, 256, 16 * KIB, 30),
    ("READ 256 x 16 KiB, apart", "READ", 16 * KIB, 256, 48 * KIB, 30),
    ("WRITE 256 x 16 KiB, apart", "WRITE", 16 * KIB, 256, 48 * KIB, 30),
]
NOTES = "notification, one way"


class Pair:
    """Two agents with one backend."""

    def __init__(self, backend, options):
        parameters = {"providers": "tcp"} if options.tcp and backend == "TIELINE" else {}
        common = {"thread": not options.no_thread, "backend": backend, "parameters": parameters}
        self.far = Far("far", SIZE, 1, network=options.network, **common)
        self.near = Side("near", SIZE, 2, **common)
        self.peer = pair(self.near, self.far)
        there = self.far.where()
        for name, kind, length, count, distance, _ in ROWS:
            pieces = [(i * distance, i * distance, length) for i in range(count)]
            self.near.prepare(name, kind, pieces, self.peer, there)

    def throughput(self, name, length, count, times, clock):
        agent, handle = self.near.agent, self.near.transfers[name]
        transfer, check = agent.transfer, agent.check_xfer_state
        for measured in (times // 10 + 1, times):
            begun = clock()
            for _ in range(measured):
                state = transfer(handle)
                while state == "PROC":
                    state = check(handle)
                if state != "DONE":
                    raise RuntimeError(f"{name}: {state}")
            seconds = clock() - begun
        return times * length * count / seconds / MIB

    def latency(self, times=500):
        self.far.begin("echo", "near", times)
        begun = time.perf_counter()
        for _ in range(times):
            self.near.agent.send_notif(self.peer, b"0123456789abcdef")
            while not self.near.agent.get_new_notifs(backends=[self.near.backend]):
                pass
        seconds = time.perf_counter() - begun
        self.far.result()
        return seconds / times / 2 * 1e6


class Floor:
    """The copies of requests with one piece, by the bare system call between the processes of a pair."""

    def __init__(self, both):
        libc, self.pid = ctypes.CDLL(None), both.far.pid
        self.calls = {"READ": libc.process_vm_readv, "WRITE": libc.process_vm_writev}
        self.places = both.near.base, both.far.where()

    def throughput(self, name, length, count, times, clock):
        near, far = ((ctypes.c_size_t * 2)(place, length) for place in self.places)
        call, pid, one, none = self.calls[name.split()[0]], self.pid, ctypes.c_ulong(1), ctypes.c_ulong(0)
        call.argtypes, call.restype = None, ctypes.c_ssize_t
        for measured in (times // 10 + 1, times):
            begun = clock()
            for _ in range(measured):
                if call(pid, near, one, far, one, none) != length:
                    raise OSError(f"{name}: the system call has failed")
            seconds = clock() - begun
        return times * length / seconds / MIB


def between_namespaces(words):
    """Runs this program in one of two network namespaces that a pair of virtual devices connects; the far side runs in the other one."""
    near, far = (f"tieline-{side}-{os.getpid()}" for side in ("a", "b"))
    devices = ["veth0", "veth0"]

    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    made = []
    try:
        for space in (near, far):
            ip("netns", "add", space)
            made.append(space)
        ip("link", "add", devices[0], "netns", near, "type", "veth", "peer", "name", devices[1], "netns", far)
        for number, (space, device) in enumerate(zip((near, far), devices), 1):
            ip("-n", space, "address", "add", f"10.231.7.{number}/24", "dev", device)
            ip("-n", space, "link", "set", device, "up")
            ip("-n", space, "link", "set", "lo", "up")
        # UCX leaves out a device that is not up yet.
        for space, device in zip((near, far), devices):
            while " state UP " not in subprocess.check_output(["ip", "-n", space, "link", "show", device], text=True):
                time.sleep(0.01)
        words = [word for word in words if word != "--namespaces"]
        # UCX takes the loopback device of a namespace otherwise.
        os.environ["UCX_NET_DEVICES"] = devices[0]
        program = ["ip", "netns", "exec", near, sys.executable, os.path.abspath(__file__), *words, "--tcp", "--network", far]
        return subprocess.run(program).returncode
    finally:
        for space in made:
            ip("netns", "delete", space)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--tcp", action="store_true")
    parser.add_argument("--no-thread", action="store_true")
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--network")
    parser.add_argument("--namespaces", action="store_true")
    options = parser.parse_args()
    if options.namespaces:
        sys.exit(between_namespaces(sys.argv[1:]))
    if options.tcp:
        os.environ["UCX_TLS"] = "tcp,self"
    clock = time.process_time if options.processor else time.perf_counter
    pairs = {backend: Pair(backend, options) for backend in ("UCX", "TIELINE")}
    floor = Floor(pairs["TIELINE"]) if options.floor else None
    measured = {(name, backend): [] for name in [row[0] for row in ROWS] + [NOTES] for backend in [*pairs, "bare"]}
    for _ in range(options.rounds):
        for name, _, length, count, _, times in ROWS:
            for backend, both in pairs.items():
                measured[name, backend].append(both.throughput(name, length, count, times, clock))
            if floor and count == 1:
                measured[name, "bare"].append(floor.throughput(name, length, count, times, clock))
        for backend, both in pairs.items():
            measured[NOTES, backend].append(both.latency())
    print(f"load {os.getloadavg()}, {os.cpu_count()} processors")
    print("| | UCX | TIELINE | TIELINE / UCX | bare / UCX |\n|---|---|---|---|---|")
    for name in [row[0] for row in ROWS] + [NOTES]:
        cells = []
        for backend in pairs:
            values = sorted(measured[name, backend])
            cells.append(f"{values[0]:.0f} {statistics.median(values):.0f} {values[-1]:.0f}")
        ratio = statistics.median(b / a for a, b in zip(measured[name, "UCX"], measured[name, "TIELINE"]))
        bare = [b / a for a, b in zip(measured[name, "UCX"], measured[name, "bare"])]
        print(f"| {name} | {cells[0]} | {cells[1]} | {ratio:.2f} | {f'{statistics.median(bare):.2f}' if bare else '-'} |")
    for both in pairs.values():
        both.far.end()
    sys.stdout.flush()
    # Without this, the wheel's backend UCX ends the process by a signal when the interpreter frees its agents.
    os._exit(0)


if __name__ == "__main__":
    main()
