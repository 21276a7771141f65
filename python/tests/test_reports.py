"""Tests that replay what users of other Python modules for such transports have reported."""

import array
import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
import unittest

import tieline
from support import LONG, Loopback, started
from test_asyncio import runs, two_workers

try:
    import numpy
except ImportError:
    numpy = None
try:
    import uvloop
except ImportError:
    uvloop = None

TCP = {"TIELINE_PROVIDERS": "tcp,tcp-connect", "TIELINE_TCP_INTERFACES": "lo"}

#: The loop ends while tasks wait, and nothing is closed.
ABANDONED = """
import asyncio, tieline
context = tieline.Context()
worker = context.worker() if DRIVEN else context.driven_worker()
async def main():
    me = worker.connect(worker.address())
    messages = worker.messages(1, acknowledge_later=True)
    tasks = [asyncio.ensure_future(messages.aget()) for _ in range(3)]
    requests = [me.send(1, n, delivered=True) for n in range(5)]
    waiting = asyncio.wait([asyncio.ensure_future(wait(one)) for one in requests], timeout=0.05)
    await waiting
async def wait(request):
    await request
asyncio.run(main())
print("end")
"""


def reader(pipe):
    """Reads the memory of a source, and waits to be killed."""
    with tieline.Context() as context, context.worker() as worker:
        address, key = pipe.recv()
        buffer = bytearray(1 << 20)
        endpoint = worker.connect(address)
        endpoint.send(1)
        endpoint.import_key(key).get(buffer, timeout=LONG)
        pipe.send(bytes(buffer[-4:]))
        pipe.recv()


class Memory(Loopback):
    def test_regions_of_equal_memory_end_one_by_one_and_only_once(self):
        """ai-dynamo/nixl 1792, rapidsai/ucx-py 59: memory that is registered twice, and objects that are closed twice."""
        memory = bytearray(b"equal" * 100)
        one, two = self.context.register(memory), self.context.register(memory)
        key = self.key_of(two)
        one.close()
        one.close()
        self.assertEqual(key.get(bytearray(5), timeout=LONG), b"equal")
        two.close()
        memory.append(0)
        other = self.context.worker()
        endpoint = other.connect(self.worker.address())
        for _ in range(2):
            endpoint.close()
            other.close()

    def test_memory_of_another_length_takes_the_place_of_earlier_memory(self):
        """ai-dynamo/nixl 735: an allocator reuses an address, and the peer has the key of the earlier length."""
        memory = bytearray(b"x" * 100_000)
        earlier = self.context.register(memoryview(memory)[:1000])
        stale = self.me.import_key(earlier.key())
        earlier.close()
        later = self.context.register(memory)
        with self.assertRaises(tieline.Error):
            stale.get(bytearray(1000), timeout=LONG)
        self.assertEqual(self.me.import_key(later.key()).get(bytearray(10), 99_990, LONG), b"x" * 10)
        for offset in (100_000, 99_500, 1 << 40):
            with self.assertRaises(tieline.Error):
                self.me.import_key(later.key()).get(bytearray(1000), offset, LONG)
        self.worker.close_region(later, LONG)

    def test_empty_and_typed_buffers_have_the_length_of_their_bytes(self):
        """rapidsai/ucx-py 49 and 119, dask/distributed 4621: len() is not the number of bytes."""
        memory = self.context.alloc(4096)
        key, messages = self.key_of(memory), self.worker.messages(1)
        typed = [array.array("q", range(5)), memoryview(bytes(16)).cast("d"), memoryview(bytes(24)).cast("q", (1, 3)), b"", memoryview(b"")]
        if numpy is not None:
            typed += [numpy.empty((2, 0)), numpy.zeros(()), numpy.zeros((3, 0, 2), "u2"), numpy.arange(6, dtype="i4").reshape(2, 3)]
        for data in typed:
            length = memoryview(data).nbytes
            self.me.send(1, payload=data)
            self.assertEqual(messages.get(LONG).payload, bytes(data))
            key.put(data, 8, LONG)
            self.assertEqual(bytes(memory.view()[8 : 8 + length]), bytes(data))
            key.get(bytearray(length), 8, LONG)

    def test_many_connections_leave_nothing_behind(self):
        """rapidsai/ucx-py 985 and 694: a connection for each request cost memory and descriptors, until no more was possible."""
        context = tieline.Context(TCP)
        with context.driven_worker() as server:
            address, messages = server.address(), server.messages(1)

            def request(number):
                with context.worker() as worker:
                    endpoint = worker.connect(address)
                    endpoint.send(1, number, delivered=True).wait(LONG)
                self.assertEqual(messages.get(LONG).header, number)

            for number in range(10):
                request(number)
            gc.collect()
            before = len(os.listdir("/proc/self/fd"))
            for number in range(40):
                request(number)
            server.wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 3, timeout=LONG)
            self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + 3)
        context.close()


class Processes(unittest.TestCase):
    def test_readers_that_are_killed_leave_the_source_to_others(self):
        """ai-dynamo/modelexpress 555: after such an end, no later reader's transfer ended."""
        with tieline.Context() as context, context.worker() as worker:
            region = context.register(bytearray(b"data" * (1 << 18)))
            card = (worker.address(), region.key())
            for _ in range(3):
                process, pipe = started(self, reader)
                pipe.send(card)
                self.assertTrue(worker.wait_until(pipe.poll, timeout=LONG))
                self.assertEqual(pipe.recv(), b"data")
                os.kill(process.pid, signal.SIGKILL)
            worker.close_region(region, LONG)

    def test_loop_that_ends_while_tasks_wait_ends_in_silence(self):
        """rapidsai/ucx-py 288 and 467: callbacks for a closed loop, or for cancelled tasks, ended the process."""
        for driven in ("True", "False"):
            words = [sys.executable, "-c", f"DRIVEN = {driven}\n" + ABANDONED]
            ran = subprocess.run(words, capture_output=True, text=True, timeout=LONG)
            self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "end\n", ""))


class Loop(unittest.TestCase):
    @runs
    async def test_both_sides_send_long_messages_before_they_receive(self):
        """rapidsai/ucx-py 140: both sides waited for the end of a long send before they received."""
        async with two_workers() as (here, there, to, _context):
            back = there.connect(here.address())
            ours, theirs = here.messages(1), there.messages(1)
            sends = [to.send(1, payload=b"a" * (1 << 22)), back.send(1, payload=b"b" * (1 << 22))]
            self.assertEqual((await (await ours.aget()).adata())[-1:], b"b")
            self.assertEqual((await (await theirs.aget()).adata())[-1:], b"a")
            for one in sends:
                await one

    @runs
    async def test_cancelled_tasks_leave_operations_and_messages_to_others(self):
        """rapidsai/ucx-py 467: a completion for a cancelled task raised InvalidStateError."""
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with two_workers() as (_here, there, to, _context):
            messages = there.messages(1, acknowledge_later=True)
            for number in range(20):
                first = asyncio.ensure_future(messages.aget())
                await asyncio.sleep(0)
                request = to.send(1, number, delivered=True)

                async def waits():
                    await request

                second = asyncio.ensure_future(waits())
                first.cancel()
                await asyncio.sleep(0)
                second.cancel()
                (await messages.aget()).acknowledge()
                await request
        self.assertEqual(reported, [])

    @unittest.skipIf(uvloop is None, "uvloop is not installed")
    def test_other_event_loops_drive_workers(self):
        """rapidsai/ucx-py 1072: the callback of the descriptor failed under uvloop."""

        async def main(opens):
            async with tieline.Context() as context, getattr(context, opens)() as worker:
                me, messages = worker.connect(worker.address()), worker.messages(1)
                for number in range(100):
                    await me.send(1, number)
                    self.assertEqual((await messages.aget()).header, number)
                sent = me.send(1, payload=bytes(1 << 20))
                self.assertEqual(len(await (await messages.aget()).adata()), 1 << 20)
                await sent
                await asyncio.sleep(0.1)
                began = time.process_time()
                await asyncio.sleep(0.2)
                self.assertLess(time.process_time() - began, 0.1)

        for opens in ("worker", "driven_worker"):
            loop = uvloop.new_event_loop()
            loop.run_until_complete(asyncio.wait_for(main(opens), LONG))
            loop.close()


if __name__ == "__main__":
    unittest.main()
