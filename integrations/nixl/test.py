#!/usr/bin/env python3
"""
Tests of the plug-in with an unmodified wheel of NIXL and real processes.

    test.py PLUGIN [NAME...]

runs in the interpreter that has the wheel. With TESTS_WHOLE=1 the tests of leaks take an hour. The exit status is 0 if all have passed.
"""

import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import test_abi
from sides import Far, Side, nixl, pair
from test_abi import Declarations, Refusals  # noqa: F401, tests that unittest finds here
from test_reports import Reports  # noqa: F401

PLUGIN = ""
WHOLE = bool(os.environ.get("TESTS_WHOLE"))
MIB = 1 << 20


class Stderr:
    """Collects what is written to descriptor 2, by libraries too."""

    def __enter__(self):
        self.file = tempfile.TemporaryFile()
        self.kept = os.dup(2)
        os.dup2(self.file.fileno(), 2)
        return self

    def __exit__(self, *_):
        os.dup2(self.kept, 2)
        os.close(self.kept)
        self.file.seek(0)
        self.text = self.file.read().decode()
        self.file.close()


class TwoAgents(unittest.TestCase):
    """Two agents with progress threads; the subclass has none."""

    THREAD = True
    PARAMETERS = {}

    @classmethod
    def setUpClass(cls):
        cls.near = Side("near", 16 * MIB, thread=cls.THREAD, parameters=cls.PARAMETERS)
        cls.far = Far("far", 16 * MIB, 7, thread=cls.THREAD, parameters=cls.PARAMETERS)
        cls.name = pair(cls.near, cls.far)
        cls.there = cls.far.where()

    @classmethod
    def tearDownClass(cls):
        cls.far.end()
        del cls.near

    def move(self, kind, pieces, note=b""):
        self.assertEqual(self.near.move(kind, pieces, self.name, self.there, note), "DONE")

    def test_reads_and_writes_move_the_bytes_of_every_length(self):
        for length in (1, 63, 4096, 65537, 8 * MIB):
            data = random.randbytes(length)
            self.near.fill(100, data)
            self.move("WRITE", [(100, 333, length)])
            self.assertEqual(self.far.bytes(333, length), data)
            self.move("READ", [(8 * MIB, 333, length)])
            self.assertEqual(self.near.bytes(8 * MIB, length), data)

    def test_a_list_of_many_scattered_pieces_moves_all_of_them(self):
        count, length = 3000, 1024
        here, there = random.sample(range(count), count), random.sample(range(count), count)
        data = random.randbytes(count * length)
        self.near.fill(0, data)
        self.move("WRITE", [(a * length, b * length, length) for a, b in zip(here, there)])
        got = self.far.bytes(0, count * length)
        for a, b in zip(here, there):
            self.assertEqual(got[b * length : (b + 1) * length], data[a * length : (a + 1) * length])
        self.near.fill(8 * MIB, bytes(count * length))
        self.move("READ", [(8 * MIB + a * length, b * length, length) for a, b in zip(here, there)])
        self.assertEqual(self.near.bytes(8 * MIB, count * length), data)

    def test_a_prepared_list_is_posted_again_with_other_bytes(self):
        self.near.prepare("again", "WRITE", [(0, 0, 4096)], self.name, self.there)
        for fill in range(50):
            self.near.fill(0, bytes([fill]) * 4096)
            self.assertEqual(self.near.run("again")[0], "DONE")
            if fill % 10 == 0:
                self.assertEqual(self.far.bytes(0, 4096), bytes([fill]) * 4096)
        self.near.release("again")

    def test_notifications_of_every_length_arrive_in_order(self):
        notes = [b"", b"x", random.randbytes(300_000), b"after a long one", random.randbytes(5 * MIB), b"last"]
        self.far.begin("notes", len(notes))
        for note in notes:
            self.near.send(self.name, note)
        until = time.monotonic() + 20
        while not self.far.pipe.poll(0) and time.monotonic() < until:
            self.near.poll()
        self.assertEqual(self.far.result(), {"near": notes})

    def test_a_notification_follows_the_bytes_of_its_write(self):
        for fill in range(20):
            self.near.fill(0, bytes([fill]) * 100_000)
            self.move("WRITE", [(0, 0, 100_000)], b"written %d" % fill)
            self.assertEqual(self.far.notes(1), {"near": [b"written %d" % fill]})
            self.assertEqual(self.far.bytes(0, 100_000), bytes([fill]) * 100_000)
        self.move("READ", [(0, 0, 1000)], b"read")
        self.assertEqual(self.far.notes(1), {"near": [b"read"]})

    def test_the_other_side_answers_and_reads_back(self):
        self.far.send("near", b"hello")
        self.assertEqual(self.near.notes(1), {"far": [b"hello"]})
        self.near.fill(0, b"mine")
        self.far.begin("move", "READ", [(9, 0, 4)], "near", self.near.where())
        while not self.far.pipe.poll(0):
            self.near.poll()
        self.assertEqual(self.far.result(), "DONE")
        self.assertEqual(self.far.bytes(9, 4), b"mine")

    def test_a_released_transfer_leaves_its_memory_alone(self):
        self.near.prepare("long", "READ", [(0, 0, 8 * MIB)], self.name, self.there)
        if self.near.post("long") == "PROC":
            self.near.release("long")
        before = self.near.bytes(0, 8 * MIB)
        self.far.fill(0, bytes(8 * MIB))
        self.near.poll()
        self.assertEqual(self.near.bytes(0, 8 * MIB), before)


class TwoAgentsWithoutThreads(TwoAgents):
    THREAD = False


class TwoAgentsOverTcp(TwoAgents):
    PARAMETERS = {"providers": "tcp", "secret": "of this job", "interfaces": "lo"}

    def test_the_path_is_tcp_and_a_wrong_secret_is_refused(self):
        stranger = Far("stranger", parameters={"providers": "tcp", "secret": "another", "interfaces": "lo"})
        name = self.near.add(stranger.metadata())
        state = self.near.move("READ", [(0, 0, 100)], name, stranger.where())
        self.assertIn(state, ("nixlNotAllowedError", "nixlRemoteDisconnectError"))
        stranger.kill()


class TwoAgentsOverTcpWithoutThreads(TwoAgents):
    PARAMETERS = {"providers": "tcp", "interfaces": "lo"}
    THREAD = False


class Ends(unittest.TestCase):
    """Peers that go away, and what comes back."""

    def ends_by_disconnect(self, side, key):
        state, seconds = side.run(key)
        self.assertEqual(state, "nixlRemoteDisconnectError")
        self.assertLess(seconds, 2)

    def test_a_dead_peer_ends_its_transfers_and_others_go_on(self):
        for parameters in ({}, {"providers": "tcp", "interfaces": "lo"}):
            near = Side("near", parameters=parameters)
            dying, other = Far("dying", fill=1, parameters=parameters), Far("other", fill=2, parameters=parameters)
            pair(near, dying)
            pair(near, other)
            for peer, side in (("dying", dying), ("other", other)):
                near.prepare(peer, "READ", [(0, 0, MIB)], peer, side.where(), b"done")
                self.assertEqual(near.run(peer)[0], "DONE")
            dying.kill()
            self.ends_by_disconnect(near, "dying")
            self.assertEqual(near.run("other")[0], "DONE")
            self.assertEqual(near.bytes(0, 10), bytes([2] * 10))
            # Its successor has the same name. NIXL keeps the old connection data until the agent is removed.
            near.remove("dying")
            again = Far("dying", fill=3, parameters=parameters)
            pair(near, again)
            self.assertEqual(near.move("READ", [(0, 0, MIB)], "dying", again.where()), "DONE")
            self.assertEqual(near.bytes(0, 10), bytes([3] * 10))
            near.release("dying")
            again.end()
            other.end()

    def test_a_peer_that_dies_before_the_first_transfer_is_a_disconnect(self):
        near, dying = Side("near"), Far("dying")
        pair(near, dying)
        near.prepare("first", "READ", [(0, 0, 1000)], "dying", dying.where())
        dying.kill()
        self.ends_by_disconnect(near, "first")

    def test_a_death_within_a_transfer_is_never_reported_as_done(self):
        for parameters in ({}, {"providers": "tcp", "interfaces": "lo"}):
            near, dying = Side("near", 64 * MIB, parameters=parameters), Far("dying", 64 * MIB, 5, parameters=parameters)
            pair(near, dying)
            near.prepare("long", "READ", [(0, 0, 64 * MIB)], "dying", dying.where())
            threading.Timer(0.005, dying.process.kill).start()
            state, seconds = near.run("long")
            self.assertLess(seconds, 3)
            if state == "DONE":
                self.assertEqual(near.bytes(0, 64 * MIB), bytes([5]) * 64 * MIB)
            else:
                self.assertEqual(state, "nixlRemoteDisconnectError")
            dying.process.join()

    def test_memory_that_was_deregistered_is_refused_and_other_transfers_go_on(self):
        near, far = Side("near"), Far("far")
        pair(near, far)
        where = far.where()
        near.prepare("stale", "READ", [(0, 0, 1000)], "far", where)
        self.assertEqual(near.run("stale")[0], "DONE")
        far.unregister()
        self.assertNotEqual(near.run("stale")[0], "DONE")
        near.send("far", b"still here")
        self.assertEqual(far.notes(1), {"near": [b"still here"]})
        far.end()

    def test_an_agent_that_was_removed_can_be_added_again(self):
        near, far = Side("near"), Far("far", fill=9)
        for _ in range(5):
            pair(near, far)
            near.connect("far")
            self.assertEqual(near.move("READ", [(0, 0, 1000)], "far", far.where()), "DONE")
            near.remove("far")
        far.end()

    def test_connects_and_deaths_leave_nothing_behind(self):
        counts = ("10000", "1000") if WHOLE else ("800", "8")
        with tempfile.TemporaryDirectory() as folder:
            host = os.path.join(folder, "host")
            source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tests/host.cpp")
            subprocess.run(["c++", "-std=c++20", "-O1", source, "-o", host], check=True)
            environment = dict(os.environ, NIXL_LOG_LEVEL="FATAL")
            subprocess.run([host, PLUGIN, *counts], check=True, env=environment)


class OneProcess(unittest.TestCase):
    def test_metadata_arrives_by_the_listening_thread_and_in_parts(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        near, far = Side("near", port=0), Far("far", fill=4, port=port)
        near.agent.fetch_remote_metadata("far", "127.0.0.1", port)
        near.agent.send_local_metadata("127.0.0.1", port)
        until = time.monotonic() + 20
        while not (near.knows("far") and far.knows("near")) and time.monotonic() < until:
            near.poll()
        self.assertEqual(near.move("READ", [(0, 0, 1000)], "far", far.where(), b"read"), "DONE")
        self.assertEqual(far.notes(1), {"near": [b"read"]})
        third = Side("third")
        third.add(far.partial_metadata())
        self.assertEqual(third.move("READ", [(0, 0, 1000)], "far", far.where()), "DONE")
        self.assertEqual(third.bytes(0, 3), bytes([4] * 3))
        far.end()

    def test_agents_of_one_process_reach_each_other(self):
        for thread in (True, False):
            sides = [Side(f"agent {i}", fill=i, thread=thread) for i in range(3)]
            for a in sides:
                for b in sides:
                    if a is not b:
                        name = a.add(b.metadata())
                        self.assertEqual(a.move("READ", [(0, 100, 50_000)], name, b.where(), b"from " + a.agent.name.encode()), "DONE")
            for side in sides:
                self.assertEqual(len(side.notes(2)), 2)

    def test_agents_that_are_created_at_the_same_moment_all_work(self):
        made, barrier = [], threading.Barrier(6)

        def make(number):
            barrier.wait()
            made.append(Side(f"agent {number}"))

        threads = [threading.Thread(target=make, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        self.assertEqual(len(made), 6)
        self.assertEqual(made[0].add(made[5].metadata()), made[5].agent.name)
        self.assertEqual(made[0].move("WRITE", [(0, 0, 100)], made[5].agent.name, made[5].where()), "DONE")

    def test_two_agents_that_connect_at_the_same_moment_both_work(self):
        for thread in (True, False):
            one, two = Far("one", thread=thread), Far("two", thread=thread)
            pair(one, two)
            places = one.where(), two.where()
            one.begin("move", "READ", [(0, 0, MIB)], "two", places[1], b"a")
            two.begin("move", "READ", [(0, 0, MIB)], "one", places[0], b"b")
            self.assertEqual((one.result(), two.result()), ("DONE", "DONE"))
            one.end()
            two.end()

    def test_a_process_that_exits_with_busy_agents_ends_in_silence(self):
        program = (
            "import ctypes; from sides import Side, pair\n"
            "near, far = Side('near'), Side('far'); pair(near, far)\n"
            "for i in range(200): near.send('far', b'x' * 5000)\n"
            "ctypes.CDLL(None).exit(0)"
        )
        for _ in range(10 if WHOLE else 2):
            place = os.path.dirname(os.path.abspath(__file__))
            ended = subprocess.run([sys.executable, "-c", program], cwd=place, capture_output=True, text=True)
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_an_agent_copies_within_its_own_memory(self):
        side = Side("alone")
        side.fill(0, b"text")
        self.assertEqual(side.move("WRITE", [(0, 1000, 4)], "alone", side.where(), b"copied"), "DONE")
        self.assertEqual(side.bytes(1000, 4), b"text")
        side.send("alone", b"note")
        self.assertEqual(side.notes(2), {"alone": [b"copied", b"note"]})

    def test_other_kinds_of_memory_are_refused_in_words(self):
        side = Side("host")
        with Stderr() as said:
            with self.assertRaises(Exception):
                side.agent.register_memory([(side.base, 4096, 0, "")], "VRAM", backends=["TIELINE"])
        self.assertTrue("host memory (DRAM) only" in said.text or "VRAM" in said.text, said.text)

    def test_parameters_are_listed_and_wrong_ones_refused_in_words(self):
        agent = nixl().nixl_agent("lists", nixl().nixl_agent_config(backends=[]))
        self.assertIn("providers", agent.get_plugin_params("TIELINE"))
        self.assertEqual([str(kind).split(".")[-1] for kind in agent.get_plugin_mem_types("TIELINE")], ["DRAM_SEG"])
        for wrong in ({"provider": "tcp"}, {"providers": "required:nothing"}):
            with Stderr() as said:
                with self.assertRaises(Exception):
                    Side("wrong", parameters=wrong)
            self.assertIn("nixl TIELINE error", said.text)

    def test_a_forked_child_is_refused_in_words_and_can_exit(self):
        side = Side("parent")
        with Stderr() as said:
            child = os.fork()
            if child == 0:
                try:
                    side.send("parent", b"x")
                except Exception:
                    os._exit(3)
                os._exit(4)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 3)
        self.assertIn("forked", said.text)
        side.send("parent", b"y")
        self.assertEqual(side.notes(1), {"parent": [b"y"]})


def main():
    global PLUGIN
    words = sys.argv[1:]
    PLUGIN = test_abi.PLUGIN = os.path.abspath(words.pop(0))
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(PLUGIN, os.path.join(folder, "libplugin_TIELINE.so"))
        os.environ["NIXL_PLUGIN_DIR"] = folder
        unittest.main(argv=["test.py", *words], verbosity=2)


if __name__ == "__main__":
    main()
