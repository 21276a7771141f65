"""Tests of workers in an event loop."""

import asyncio
import contextlib
import time
import unittest

import tieline
from support import LONG, exceptions


@contextlib.asynccontextmanager
async def two_workers(settings=None):
    """Two workers of one event loop, with an endpoint from the first to the second."""
    async with tieline.Context(settings) as context, context.worker() as here, context.worker() as there:
        yield here, there, here.connect(there.address()), context


async def _awaited(request):
    await request


def runs(test):
    """Runs a coroutine as a test, with a limit."""

    def run(self):
        async def limited():
            await asyncio.wait_for(test(self), LONG)

        asyncio.run(limited())

    run.__name__ = test.__name__
    return run


class Loop(unittest.TestCase):
    @runs
    async def test_questions_are_answered_in_order(self):
        async with two_workers() as (here, there, to, _):
            questions = there.messages(1)

            async def serve():
                async for message in questions:
                    await message.reply(2, message.header, message.payload * 2)

            server, answers = asyncio.ensure_future(serve()), here.messages(2)
            for number in range(50):
                await to.send(1, number, b"ab")
                answer = await answers.aget()
                self.assertEqual((answer.header, answer.payload), (number, b"abab"))
        await asyncio.wait_for(server, LONG)  # its iterator has ended with the worker

    @runs
    async def test_operations_are_awaited_with_their_results(self):
        async with two_workers() as (_, there, to, context):
            memory = context.alloc(1 << 20)
            key = await to.begin_key_by_handle(memory.handle())
            await key.begin_put(b"x" * 100_000, 8)
            buffer = bytearray(100_000)
            self.assertIs(await key.begin_get(buffer, 8), buffer)
            self.assertEqual(buffer, b"x" * 100_000)
            self.assertEqual(await key.begin_fetch("add", 0, 5), 0)
            self.assertEqual(await asyncio.gather(*(key.begin_fetch("add", 0, 0) for _ in range(20))), [5] * 20)
            await to.begin_flush()
            with self.assertRaises(tieline.Error):
                await key.begin_put(b"x", 1 << 20)
            message, task = there.messages(3), to.send(3, payload=bytes(300_000))
            self.assertEqual(await (await message.aget()).adata(), bytes(300_000))
            await task
            await task

    @runs
    async def test_endpoint_is_opened_by_name(self):
        async with two_workers() as (here, there, _, _context):
            endpoint = await here.aconnect_by_name(there.name())
            await endpoint.send(9, 3)
            self.assertEqual((await there.messages(9).aget()).header, 3)
            self.assertEqual(here.name_of_peer(endpoint.peer), there.name())

    @runs
    async def test_idle_worker_takes_no_turns(self):
        async with two_workers() as (here, there, to, _):
            await to.send(1)
            await to.begin_flush_messages()
            await asyncio.sleep(0.1)
            turns, turn = [], here._driver._turn
            here._driver.loop.remove_reader(here.fileno())
            here._driver.loop.add_reader(here.fileno(), lambda: (turns.append(1), turn()))
            began = time.process_time()
            await asyncio.sleep(0.3)
            self.assertLess(len(turns), 5)
            self.assertLess(time.process_time() - began, 0.1)

    @runs
    async def test_exceptions_of_handlers_are_reported_and_raised_at_the_end(self):
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        with self.assertRaises(Exception) as caught:
            async with two_workers() as (_, there, to, _context):
                async def handler(message):
                    raise LookupError(message.header)

                there.on_message(1, lambda message: 1 / 0)
                there.on_message(2, handler)
                await to.send(1)
                await to.send(2, 5)
                await to.begin_flush_messages()
                await there.until(lambda: len(reported) == 2)
        self.assertEqual({type(error) for error in exceptions(caught.exception)}, {ZeroDivisionError, LookupError})

    @runs
    async def test_sends_without_room_wait_in_order_and_can_be_canceled(self):
        async with two_workers({"TIELINE_QUEUE_BYTES": "64k"}) as (here, there, to, _):
            there._driver.detach()  # the receiver makes no progress
            requests, number = [], 0
            while sum(request._post is not None for request in requests) < 5:
                requests.append(to.send(1, number, bytearray(4096)))
                number += 1
            self.assertFalse(requests[-1].done())
            self.assertTrue(requests[-2].cancel())
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(requests[-1], 0.05)
            messages = there.messages(1)
            seen = [(await messages.aget()).header for _ in range(number - 1)]
            self.assertEqual(seen, [*range(number - 2), number - 1])
            await requests[-1]
            with self.assertRaises(tieline.Canceled):
                await requests[-2]

    @runs
    async def test_worker_serves_one_event_loop(self):
        async with two_workers() as (here, _there, to, _):
            await to.send(1)

            def other():
                async def use():
                    await here.until(lambda: True)

                with self.assertRaisesRegex(tieline.Busy, "another event loop"):
                    asyncio.run(use())

            await asyncio.get_running_loop().run_in_executor(None, other)

    @runs
    async def test_message_wakes_the_next_task_if_the_first_was_cancelled(self):
        async with two_workers() as (_, there, to, _context):
            messages = there.messages(1)
            first, second = (asyncio.ensure_future(messages.aget()) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.sleep(0)
            await to.send(1, 5)
            self.assertEqual((await second).header, 5)

    @runs
    async def test_completions_of_tasks_and_of_the_program_are_kept_apart(self):
        async with two_workers() as (here, there, to, _context):
            messages = there.messages(1, acknowledge_later=True)
            waiting = asyncio.ensure_future(_awaited(to.send(1, delivered=True)))
            to.send(1, delivered=True).track(7)
            # Both are acknowledged at once, so that the loop takes neither completion before the calls below.
            both = [await messages.aget() for _ in range(2)]
            for message in both:
                message.acknowledge()
            taken = []
            while not taken or not here._own_completed:  # the loop takes no turn meanwhile
                there.progress()
                here.progress()
                taken += here.take_completed()
            self.assertEqual([one.user for one in taken], [7])
            await waiting

    @runs
    async def test_closing_the_worker_ends_what_is_awaited(self):
        async with two_workers() as (here, there, to, _context):
            messages = there.messages(1, acknowledge_later=True)
            waiting = asyncio.ensure_future(_awaited(to.send(1, delivered=True)))
            await asyncio.sleep(0)  # the task awaits the request before the worker is closed
            message = await messages.aget()
            with self.assertRaises(tieline.Error):
                await here.aclose(0.05)
            with self.assertRaises(tieline.Closed):
                await waiting
            del message

    @runs
    async def test_failed_peer_ends_what_is_awaited(self):
        async with tieline.Context({"TIELINE_PROVIDERS": "tcp,tcp-connect", "TIELINE_CONNECT_TIMEOUT": "200ms"}) as context:
            async with context.worker() as here:
                silent = context.worker()
                to = here.connect(silent.address())
                failures = []
                here.on_endpoint_failure(lambda endpoint, error: failures.append((endpoint, error)))
                with self.assertRaises(tieline.Expired):
                    await to.send(1, delivered=True)
                await here.until(lambda: failures)
                self.assertIs(failures[0][0], to)
                self.assertIsInstance(to.error, tieline.Expired)
                silent._handle.close()


if __name__ == "__main__":
    unittest.main()
