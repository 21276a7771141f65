"""Tests of driven workers, which all threads use at the same time."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
import unittest
import weakref

import tieline
from support import LONG, Loopback, exceptions
from test_asyncio import runs

PROGRAM = """
import threading, tieline
context = tieline.Context()
worker = context.driven_worker()
me = worker.connect(worker.address())
entered = threading.Event()
def handler(message):
    entered.set()
    me.send(1, message.header + 1)      # there is always a next message
worker.on_message(1, handler)
me.send(1)
entered.wait()
print("end", flush=True)
"""


class Driven(Loopback):
    opens = "driven_worker"

    def test_messages_arrive_while_no_thread_is_in_a_call(self):
        came, threads = threading.Event(), []
        self.worker.on_message(1, lambda message: (threads.append(threading.get_ident()), came.set()))
        self.me.send(1, 7)
        self.assertTrue(came.wait(LONG))
        self.assertNotEqual(threads, [threading.get_ident()])

    def test_all_threads_post_and_wait_at_the_same_time(self):
        memory, messages, errors = self.context.alloc(1 << 20), self.worker.messages(1), []
        key, taken = self.key_of(memory), []

        def uses(number):
            try:
                block = bytes([number + 1]) * 40_000
                for turn in range(20):
                    key.put(block, 40_000 * number, LONG)
                    self.assertEqual(key.get(bytearray(40_000), 40_000 * number, LONG), block)
                    self.assertEqual(key.begin_fetch("add", 1_000_000 + 8 * number, 1).wait(LONG), turn)
                    self.me.send(1, number, delivered=True).wait(LONG)
                    taken.append(messages.get(LONG).header)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=uses, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        self.assertEqual(errors, [])
        self.assertEqual(sorted(taken), sorted([0, 1, 2, 3] * 20))

    def test_threads_share_a_request_and_both_get_its_result(self):
        messages = self.worker.messages(5, acknowledge_later=True)  # the progress thread drops messages that have no handler
        request = self.me.send(5, payload=b"task", delivered=True)
        message, seen = messages.get(LONG), []
        with self.assertRaises(tieline.TimedOut):
            request.wait(0.01)
        threads = [threading.Thread(target=lambda: seen.append(request.wait(LONG))) for _ in range(3)]
        for thread in threads:
            thread.start()
        while not self.worker._waits:
            time.sleep(0.001)
        self.assertFalse(request.done())
        with self.assertRaises(tieline.TimedOut):
            request.wait(0.01)
        message.acknowledge()
        for thread in threads:
            thread.join(LONG)
        self.assertEqual((seen, request.done(), self.worker._waits), ([None] * 3, True, {}))

    def test_waiting_call_in_handler_is_busy_and_other_threads_go_on(self):
        outcome, release, memory = [], threading.Event(), self.context.alloc(64)
        key = self.key_of(memory)

        def handler(message):
            for call in (lambda: self.worker.wait(0), lambda: self.worker.flush(0), lambda: self.me.send(5, delivered=True).wait(0)):
                try:
                    call()
                except tieline.Busy:
                    outcome.append("busy")
            key.begin_put(b"of the handler", 32)
            release.wait(LONG)

        self.worker.on_message(1, handler)
        self.me.send(1)
        while len(outcome) < 3:
            time.sleep(0.001)
        key.put(b"of another thread", 0, LONG)
        self.assertFalse(self.worker._inside)
        release.set()
        self.me.flush_messages(LONG)
        self.assertEqual(bytes(memory.view()[:46]), b"of another thread".ljust(32, b"\0") + b"of the handler")

    def test_exception_on_the_progress_thread_is_raised_by_the_next_wait(self):
        ran = threading.Event()

        def handler(message):
            ran.set()
            raise LookupError(message.header)

        self.worker.on_message(1, handler)
        self.me.send(1, 5)
        self.assertTrue(ran.wait(LONG))
        with self.assertRaises(LookupError):
            self.worker.wait_until(lambda: False, timeout=LONG)
        self.me.send(1, 6)
        self.me.send(1, 7)
        while len(self.worker._raised) < 2:
            time.sleep(0.001)
        with self.assertRaises(Exception) as caught:
            self.worker.close(LONG)
        self.assertEqual({error.args for error in exceptions(caught.exception)}, {(6,), (7,)})

    def test_long_message_and_reply_are_received_by_another_thread(self):
        sent, messages = bytes(range(256)) * 4096, self.worker.messages(7)
        self.worker.on_message(8, lambda message: message.reply(7, message.header, message.keep().payload))
        request = self.me.send(7, payload=sent)
        self.assertEqual(messages.get(LONG).data(LONG), sent)
        request.wait(LONG)
        self.me.send(8, 3, b"question")
        self.assertEqual(messages.get(LONG).payload, b"question")

    def test_buffers_of_dropped_requests_are_released_by_later_posts(self):
        key, data = self.key_of(self.context.alloc(1 << 20)), bytearray(1 << 20)
        key.begin_put(data)
        self.me.flush(LONG)
        key.put(bytes(5000), 0, LONG)
        data.append(0)

    def test_worker_has_no_descriptor_and_ends_with_its_last_reference(self):
        for call in (self.worker.fileno, self.worker.arm):
            with self.assertRaisesRegex(tieline.Error, "driven worker"):
                call()
        before = set(threading.enumerate())
        other = self.context.driven_worker()
        other.messages(1)
        handle = weakref.ref(other._handle)
        del other
        gc.collect()
        self.assertIsNone(handle())
        # A thread of an earlier test may end at any time.
        self.assertEqual(set(threading.enumerate()) - before, set())

    def test_interpreter_ends_although_handlers_run(self):
        ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=LONG)
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "end\n", ""))

    def test_endpoint_is_opened_by_name(self):
        with self.context.driven_worker() as other:
            endpoint, messages = self.worker.connect_by_name(other.name(), LONG), other.messages(9)
            endpoint.send(9, 3)
            self.assertEqual(messages.get(LONG).header, 3)
            self.assertEqual(self.worker.name_of_peer(endpoint.peer), other.name())


class Loop(unittest.TestCase):
    @runs
    async def test_loop_and_other_threads_use_one_worker(self):
        async with tieline.Context() as context, context.driven_worker() as worker:
            me, messages, memory = worker.connect(worker.address()), worker.messages(1), context.alloc(1 << 20)
            key, seen = me.import_key(memory.key()), []
            worker.on_message(2, lambda _: None)

            def uses():
                for number in range(50):
                    me.send(1, number, delivered=True).wait(LONG)
                    seen.append(key.fetch("add", 0, 1, timeout=LONG))

            thread = asyncio.get_running_loop().run_in_executor(None, uses)
            for number in range(50):
                buffer = bytearray(30_000)
                await key.begin_put(bytes([number]) * 30_000, 64)
                self.assertEqual(await key.begin_get(buffer, 64), bytes([number]) * 30_000)
                self.assertEqual((await messages.aget()).header, number)
            await thread
            self.assertEqual(sorted(seen), list(range(50)))
            await asyncio.gather(*(me.send(2, payload=b"x" * 2000, delivered=True) for _ in range(200)))
            await me.begin_flush()

    @runs
    async def test_coroutine_handlers_and_conditions_follow_events(self):
        async with tieline.Context() as context, context.driven_worker() as worker:
            me, seen = worker.connect(worker.address()), []

            async def handler(message):
                await asyncio.sleep(0)
                seen.append((message.payload, threading.get_ident()))

            worker.on_message(1, handler)
            for number in range(20):
                me.send(1, payload=b"task")
                me.send(2)
                worker.on_message(2, lambda _: None)
            await asyncio.wait_for(_until(worker, lambda: len(seen) == 20), LONG)
            self.assertEqual(set(seen), {(b"task", threading.get_ident())})
            flags = []
            worker.on_message(3, lambda _: flags.append(1))
            for number in range(50):
                me.send(3)
                await worker.until(lambda: len(flags) > number)

    @runs
    async def test_exceptions_of_handlers_are_reported_and_raised_at_the_end(self):
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        with self.assertRaises(ZeroDivisionError):
            async with tieline.Context() as context, context.driven_worker() as worker:
                worker.on_message(1, lambda message: 1 / 0)
                await worker.connect(worker.address()).send(1)
                await worker.until(lambda: reported)

    def test_event_at_the_moment_of_attachment_is_not_lost(self):
        async def once(worker, me):
            await asyncio.wait_for(_awaited(me.send(1, delivered=True)), LONG)

        with tieline.Context() as context:
            for _ in range(30):
                with context.driven_worker() as worker:
                    worker.on_message(1, lambda _: None)
                    asyncio.run(once(worker, worker.connect(worker.address())))

    @runs
    async def test_idle_worker_uses_no_processor_time(self):
        async with tieline.Context() as context, context.driven_worker() as worker:
            me = worker.connect(worker.address())
            worker.on_message(1, lambda _: None)
            await me.send(1, delivered=True)
            await asyncio.sleep(0.1)
            began = time.process_time()
            await asyncio.sleep(0.3)
            self.assertLess(time.process_time() - began, 0.1)

    def test_next_loop_takes_over_and_closing_ends_what_is_awaited(self):
        context = tieline.Context()
        worker = context.driven_worker()
        me, messages = worker.connect(worker.address()), worker.messages(1, acknowledge_later=True)
        worker.on_message(2, lambda _: None)

        async def once():
            await me.send(2, delivered=True)

        asyncio.run(once())

        async def closed():
            waiting = asyncio.ensure_future(_awaited(me.send(1, delivered=True)))
            await asyncio.sleep(0)  # the task awaits the request before the worker is closed
            message = await messages.aget()
            with self.assertRaises(tieline.Error):
                await worker.aclose(0.1)
            with self.assertRaises(tieline.Closed):
                await waiting
            return message

        asyncio.run(closed())
        context.close()


async def _until(worker, condition):
    while not condition():
        await asyncio.sleep(0.001)


async def _awaited(request):
    await request


if __name__ == "__main__":
    unittest.main()
