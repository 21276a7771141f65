"""
Tests that replay what users have reported of other backends and of NIXL. test.py runs them with TIELINE; by itself

    test_reports.py BACKEND

runs them with any backend of the installed NIXL, each in a process of its own.
"""

import os
import subprocess
import sys
import threading
import time
import unittest

from sides import Far, Side, nixl, pair

BACKEND = "TIELINE"
KIB, MIB = 1 << 10, 1 << 20


def near_and_far(size=MIB, sync=False):
    """Two sides that know each other, the far one filled with 7; and the far one's name and address."""
    near, far = Side("near", size, backend=BACKEND, sync=sync), Far("far", size, 7, backend=BACKEND)
    return near, far, pair(near, far), far.where()


class Reports(unittest.TestCase):
    def ends(self, *sides):
        for side in sides:
            self.addCleanup(side.end)

    def test_registrations_of_equal_memory_end_together_or_one_by_one(self):
        """ai-dynamo/nixl 1792: one list that names a registration twice freed it twice."""
        side = Side("twice", backend=BACKEND)
        agent, piece = side.agent, (side.base, 4096, 0, "")
        for lists in ([[piece, piece]], [[piece], [piece]]):
            for _ in range(2):
                agent.register_memory([piece], "DRAM", backends=[BACKEND])
            for pieces in lists:
                try:
                    agent.deregister_memory(agent.get_reg_descs(pieces, "DRAM"), backends=[BACKEND])
                except Exception as refused:
                    self.assertEqual(type(refused).__name__, "nixlInvalidParamError")
        side.fill(0, b"still")
        self.assertEqual(side.move("WRITE", [(0, 1000, 5)], "twice", side.where()), "DONE")
        self.assertEqual(side.bytes(1000, 5), b"still")

    def test_memory_of_another_length_takes_the_place_of_earlier_memory(self):
        """ai-dynamo/nixl 735: an allocator reuses an address, and the peer has metadata of the earlier length."""
        near, far, name, there = near_and_far()
        self.ends(far)
        self.assertEqual(near.move("READ", [(0, 0, 1000)], name, there), "DONE")
        far.unregister()
        far.register(2000)
        near.remove(name)
        pair(near, far)
        self.assertEqual(near.move("READ", [(0, 1000, 1000)], name, there), "DONE")
        self.assertEqual(near.bytes(0, 1000), bytes([7]) * 1000)
        # What lies beyond the new length is not readable any more.
        with self.assertRaises(Exception):
            near.move("READ", [(0, 1000, 2000)], name, there)

    def test_readers_that_exit_without_a_word_leave_the_source_to_others(self):
        """ai-dynamo/modelexpress 555: after such an exit, no later reader's transfer ended."""
        source = Side("source", fill=9, backend=BACKEND)
        for number in range(3):
            reader = Far(f"reader {number}", backend=BACKEND)
            reader.add(source.metadata())
            self.assertEqual(reader.move("READ", [(0, 0, MIB)], "source", source.where()), "DONE")
            self.assertEqual(reader.bytes(MIB - 1, 1), b"\x09")
            reader.kill()

    def test_threads_of_one_agent_transfer_while_others_come_and_go(self):
        """ai-dynamo/nixl 636, sgl-project/sglang 28897: several threads use one agent, and one adds and removes peers."""
        if not hasattr(nixl(), "nixl_thread_sync_t"):
            self.skipTest("this NIXL has no agents for several threads")
        near, far, name, there = near_and_far(sync=True)
        other = Far("other", backend=BACKEND)
        self.ends(far, other)
        errors, stop, metadata = [], threading.Event(), other.metadata()

        def moves(number):
            try:
                at = number * 64 * KIB
                near.prepare(number, "READ", [(at, at, 64 * KIB)], name, there)
                for _ in range(50):
                    state, _ = near.run(number)
                    assert state == "DONE", state
                near.release(number)
            except BaseException as error:
                errors.append(error)

        def comes_and_goes():
            while not stop.is_set():
                near.remove(near.add(metadata))

        threads = [threading.Thread(target=moves, args=(number,)) for number in range(4)]
        last = threading.Thread(target=comes_and_goes)
        for thread in [*threads, last]:
            thread.start()
        for thread in threads:
            thread.join(60)
        stop.set()
        last.join(60)
        self.assertEqual(errors, [])
        self.assertEqual(near.bytes(0, 256 * KIB), bytes([7]) * 256 * KIB)

    def test_blocks_beyond_the_memory_of_the_peer_are_refused(self):
        """vllm-project/vllm 52234: block numbers out of range were answered with other bytes."""
        near, far, name, there = near_and_far()
        self.ends(far)
        before = near.bytes(0, 1000)
        for offset in (MIB, MIB - 500, 1 << 40):
            with self.assertRaises(Exception):
                near.prepare("beyond", "READ", [(0, offset, 1000)], name, there)
        self.assertEqual(near.bytes(0, 1000), before)

    def test_both_sides_write_long_data_before_they_look_for_any(self):
        """rapidsai/ucx-py 140: both sides waited for the end of a long send before they received."""
        size = 16 * MIB
        one, two = (Far(name, 2 * size, fill, backend=BACKEND) for name, fill in (("one", 1), ("two", 2)))
        self.ends(one, two)
        pair(one, two)
        places = one.where(), two.where()
        one.begin("move", "WRITE", [(0, size, size)], "two", places[1], b"from one")
        two.begin("move", "WRITE", [(0, size, size)], "one", places[0], b"from two")
        self.assertEqual((one.result(), two.result()), ("DONE", "DONE"))
        self.assertEqual((one.bytes(2 * size - 1, 1), two.bytes(size, 1)), (b"\x02", b"\x01"))
        self.assertEqual((one.notes(1), two.notes(1)), ({"two": [b"from two"]}, {"one": [b"from one"]}))

    def test_transfers_of_no_bytes_end(self):
        """rapidsai/ucx-py 49, dask/distributed 4621: empty pieces among others."""
        near, far, name, there = near_and_far()
        self.ends(far)
        self.assertEqual(near.move("READ", [(0, 0, 10), (10, 10, 0), (20, 20, 10)], name, there, b"moved"), "DONE")
        self.assertEqual(near.bytes(0, 30), bytes([7]) * 10 + bytes(10) + bytes([7]) * 10)
        self.assertEqual(far.notes(1), {"near": [b"moved"]})

    def test_peer_is_removed_and_added_while_its_transfer_is_in_flight(self):
        """rapidsai/ucxx 19: the close of a connection in use did not return."""
        near, far, name, there = near_and_far(32 * MIB)
        self.ends(far)
        for _ in range(3):
            near.prepare("long", "READ", [(0, 0, 32 * MIB)], name, there)
            state = near.post("long")
            begun = time.monotonic()
            near.remove(name)
            while state == "PROC":
                try:
                    state = near.check("long")
                except Exception:
                    state = "ERR"
            near.release("long")
            self.assertLess(time.monotonic() - begun, 5)
            near.add(far.metadata())
            self.assertEqual(near.move("READ", [(0, 0, 1000)], name, there), "DONE")

    def test_progress_threads_of_idle_agents_sleep(self):
        """ai-dynamo/dynamo 515: a process with idle agents kept a processor busy."""
        near, far, name, there = near_and_far()
        self.ends(far)
        self.assertEqual(near.move("READ", [(0, 0, MIB)], name, there), "DONE")
        time.sleep(0.2)
        begun = time.process_time()
        time.sleep(0.5)
        self.assertLess(time.process_time() - begun, 0.1)

    def test_memory_is_reused_after_a_transfer_was_released_in_flight(self):
        """ai-dynamo/nixl 2067: a transfer that was released in flight went on to use what was freed."""
        near, far, name, there = near_and_far(16 * MIB)
        self.ends(far)
        for _ in range(5):
            near.prepare("long", "READ", [(0, 0, 16 * MIB)], name, there)
            near.post("long")
            near.release("long")
            near.fill(0, bytes(16 * MIB))
            near.poll()
            self.assertEqual(near.bytes(0, 16 * MIB), bytes(16 * MIB))


def main():
    backend = sys.argv[1]
    if len(sys.argv) > 2:
        globals()["BACKEND"] = backend
        unittest.main(argv=["test_reports.py", *sys.argv[2:]], verbosity=0, exit=False)
        sys.stdout.flush()
        # Without this, the wheel's backend UCX ends the process by a signal when the interpreter frees its agents.
        os._exit(0)
    for name in unittest.TestLoader().getTestCaseNames(Reports):
        words = [sys.executable, __file__, backend, f"Reports.{name}"]
        try:
            ran = subprocess.run(words, capture_output=True, text=True, timeout=60)
            last = ran.stderr.strip().splitlines()[-1:] or [""]
            print(f"{name}: status {ran.returncode}, {last[0]}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"{name}: did not end within 60 s", flush=True)


if __name__ == "__main__":
    main()
