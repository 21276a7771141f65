"""Tests of the calls that post operations, over a worker that sends to itself."""

import ctypes
import gc
import pickle
import threading
import time
import weakref

import tieline
from support import LONG, Loopback, exceptions


class Messages(Loopback):
    def test_message_carries_header_bytes_and_its_sender_gets_a_reply(self):
        seen = []

        def question(message):
            seen.append((message.header_bytes, message.id, message.peer == message.sender.peer))
            message.reply(2, message.header + 1, bytearray(message.payload))

        self.worker.on_message(1, question)
        answers = self.worker.messages(2)
        self.me.send(1, 41, b"payload", header_bytes=memoryview(b"matrix 7, row 12"))
        answer = answers.get(timeout=LONG)
        self.assertEqual((answer.header, answer.payload), (42, b"payload"))
        self.assertEqual(seen, [(b"matrix 7, row 12", 1, True)])
        self.assertIs(answer.sender, answer.sender)

    def test_messages_of_an_iterator_stay_in_order_and_end_with_it(self):
        messages = self.worker.messages(3)
        for number in range(100):
            self.me.send(3, number, bytes([number]))
        seen = []
        for message in messages:
            seen.append((message.header, message.payload))
            if len(seen) == 100:
                messages.close()
        self.assertEqual(seen, [(number, bytes([number])) for number in range(100)])
        with self.assertRaises(tieline.TimedOut):
            self.worker.messages(4).get(timeout=0.01)

    def test_messages_of_an_iterator_keep_order_and_bytes_of_every_length(self):
        messages, lengths = self.worker.messages(3), (0, 1, 4095, 4096, 4097, 8000, 300_000, 3)
        requests = [self.me.send(3, n, bytes([n]) * length, header_bytes=b"h" * n) for n, length in enumerate(lengths)]
        for number, length in enumerate(lengths):
            message = messages.get(LONG)
            self.assertEqual((message.header, len(message), message.header_bytes), (number, length, b"h" * number))
            self.assertEqual((message.data(LONG), message.peer), (bytes([number]) * length, self.me.peer))
        for request in requests:
            request.wait(LONG)
        self.assertIsNone(messages.get_nowait())

    def test_other_thread_takes_messages_while_the_worker_makes_progress(self):
        messages, taken, over = self.worker.messages(6), [], threading.Event()

        def takes():
            while not over.is_set() or len(messages):
                message = messages.get_nowait()
                if message is not None:
                    taken.append(message.header)

        thread = threading.Thread(target=takes)
        thread.start()
        for number in range(2000):
            self.me.send(6, number, bytes(10 if number % 3 else 5000))
            self.worker.progress()
        self.me.flush_messages(LONG)
        over.set()
        thread.join(LONG)
        self.assertEqual(taken, list(range(2000)))

    def test_closed_iterator_raises_the_error_that_it_was_given(self):
        messages = self.worker.messages(3)
        self.worker.on_message(4, lambda _: messages.close(ConnectionError("the only peer has failed")))
        self.me.send(4)
        with self.assertRaisesRegex(ConnectionError, "the only peer"):
            messages.get(timeout=LONG)

    def test_delivered_message_completes_when_the_receiver_acknowledges(self):
        request = self.me.send(5, payload=b"task", delivered=True)
        message = self.arrived(5, acknowledge_later=True)
        self.assertFalse(request.done())
        message.acknowledge()
        request.wait(LONG)
        with self.assertRaises(tieline.Error):
            message.acknowledge()
        # A handler that takes no acknowledgement acknowledges by its return.
        self.worker.on_message(6, lambda _: None)
        self.me.send(6, header_bytes=b"tag", delivered=True).wait(LONG)

    def test_dropped_acknowledgement_cancels_the_operation_of_the_sender(self):
        request = self.me.send(5, delivered=True)
        message = self.arrived(5, acknowledge_later=True)
        del message
        with self.assertRaises(tieline.Canceled):
            request.wait(LONG)

    def test_buffer_that_is_too_short_is_an_error_and_loses_nothing(self):
        sent = bytes(range(256)) * 4096
        request = self.me.send(7, payload=sent)
        message = self.arrived(7)
        with self.assertRaisesRegex(tieline.Error, "1048576 bytes, and the buffer 1000"):
            message.take_into(bytearray(1000))
        room = bytearray(len(sent) + 5)
        self.assertIs(message.take_into(room).wait(LONG), room)
        self.assertEqual(room, sent + bytes(5))
        request.wait(LONG)

    def test_truncated_receive_takes_the_first_bytes_into_several_places(self):
        sent, first, region = bytes(range(256)) * 1024, bytearray(100), self.context.alloc(1000)
        _ = self.me.send(7, payload=sent)
        message = self.arrived(7)
        message.take_into([first, region[10:20], region[500:600]], truncate=True).wait(LONG)
        memory = bytes(region.view())
        self.assertEqual(first + memory[10:20] + memory[500:600], sent[:210])
        # A short message is received by the same call.
        self.me.send(7, payload=b"short")
        self.arrived(7).take_into([memoryview(first)[:3], region[:100]]).wait(LONG)
        self.assertEqual(bytes(first[:3]) + bytes(region.view()[:2]), b"short")

    def test_message_is_sent_from_parts_of_regions_and_buffers(self):
        region = self.context.alloc(64)
        region.view()[:] = bytes(range(64))
        request = self.me.send(8, 5, [region[10:12], b"-", bytearray(b"abc"), region[:1]], header_bytes=b"h")
        message = self.arrived(8)
        self.assertEqual((message.payload, message.header_bytes), (b"\x0a\x0b-abc\x00", b"h"))
        request.wait(LONG)

    def test_refused_message_fails_at_the_sender(self):
        request = self.me.send(7, payload=bytes(1 << 20))
        self.arrived(7).refuse()
        with self.assertRaises(tieline.Error):
            request.wait(LONG)

    def test_flush_of_messages_waits_for_the_handlers(self):
        seen = []
        self.worker.on_message(1, lambda message: seen.append(message.header))
        for number in range(10):
            self.me.send(1, number)
        self.me.flush_messages(LONG)
        self.assertEqual(seen, list(range(10)))
        self.worker.flush(LONG)


class Memory(Loopback):
    def test_atomics_of_both_widths_return_the_old_values(self):
        memory = self.context.alloc(64)
        key, words = self.key_of(memory), memory.view().cast("Q")
        words[1] = 40
        self.assertEqual(key.fetch("add", 8, 2), 40)
        self.assertEqual(key.fetch("compare_swap", 8, 7, compare=42), 42)
        self.assertEqual(key.fetch("compare_swap", 8, 9, compare=42), 7)
        self.assertEqual(key.begin_fetch("swap", 8, 1).wait(LONG), 7)
        key.atomic("or", 8, 6)
        key.atomic("add", 8, -1)
        self.assertEqual(words[1], 6)
        self.assertEqual(key.fetch("max", 16, 5, width=4), 0)
        self.assertEqual(memory.view().cast("I")[4], 5)
        del words

    def test_put_with_notification_runs_the_handler_after_the_bytes(self):
        memory, seen = self.context.alloc(4096), []
        self.worker.on_notification(lambda peer, word: seen.append((peer, word, bytes(memory.view()[:3]))))
        self.key_of(memory).put(b"new", notify=(1 << 32) - 1)
        self.assertTrue(self.worker.wait_until(lambda: seen, timeout=LONG))
        self.assertEqual(seen, [(self.me.peer, (1 << 32) - 1, b"new")])
        with self.assertRaises(ValueError):
            self.key_of(memory).put(b"x", notify=1 << 32)

    def test_counter_counts_operations_and_its_mark_starts_again(self):
        key, counter = self.key_of(self.context.alloc(1 << 20)), self.worker.counter()
        for _ in range(5):
            key.begin_put(bytes(100_000), counter=counter)
        counted = counter.wait(LONG)
        self.assertEqual((counted.done, counted.failed, counted.pending, counted.done_since_mark), (5, 0, 0, 5))
        counter.mark()
        key.begin_atomic("add", 0, 1, counter=counter)
        self.me.fence()
        self.me.begin_flush(counter=counter)
        counted = counter.wait(LONG)
        self.assertEqual((counted.done, counted.done_since_mark), (7, 2))
        counter.close()
        with self.assertRaisesRegex(tieline.Error, "^a call of a counter: it is closed"):
            counter.read()

    def test_tracked_operations_are_listed_with_their_words(self):
        key = self.key_of(self.context.alloc(64))
        key.begin_put(bytes(64), track=17)
        key.begin_fetch("add", 0, 5, track=18)
        key.begin_fetch("add", 0, 0, track=19)
        ended = []

        def all_are_there():
            ended.extend(self.worker.take_completed())
            return len(ended) == 3

        self.assertTrue(self.worker.wait_until(all_are_there, timeout=LONG))
        self.assertEqual([(one.user, one.value, one.error) for one in ended], [(17, 0, None), (18, 0, None), (19, 5, None)])

    def test_buffers_of_dropped_and_tracked_requests_are_released(self):
        key, data = self.key_of(self.context.alloc(1 << 20)), bytearray(1 << 20)
        key.begin_put(data, track=1)
        self.me.flush(LONG)
        self.assertTrue(self.worker.wait_until(self.worker.take_completed, timeout=LONG))
        self.worker.progress()
        data.append(0)

    def test_parts_of_regions_and_lists_are_local_sides(self):
        memory, local = self.context.alloc(4096), self.context.alloc(64)
        key = self.key_of(memory)
        local.view()[:] = bytes(range(64))
        key.put([local[1:3], b"mid", local], offset=7)
        expected = b"\x01\x02mid" + bytes(range(64))
        self.assertEqual(bytes(memory.view()[7 : 7 + len(expected)]), expected)
        into = bytearray(5)
        self.assertEqual(key.get([into, local[60:62]], offset=7)[0], b"\x01\x02mid")
        self.assertEqual(bytes(local.view()[58:]), b"\x3a\x3b\x00\x01\x3e\x3f")

    def test_list_of_puts_and_gets_is_one_operation(self):
        memory, local = self.context.alloc(8192), self.context.alloc(64)
        key, blocks = self.key_of(memory), [bytearray(b"a" * 10), b"b" * 2000, local[:5]]
        local.view()[:5] = b"local"
        self.me.begin_put_list([(key, 2000 * n, block) for n, block in enumerate(blocks)]).wait(LONG)
        self.assertEqual(bytes(memory.view()[4000:4005]), b"local")
        into = [bytearray(10), bytearray(2000)]
        self.assertEqual(self.me.begin_get_list([(key, 2000 * n, one) for n, one in enumerate(into)]).wait(LONG), into)
        self.assertEqual(into[1], b"b" * 2000)
        with self.assertRaises(tieline.Error) as caught:
            self.me.begin_put_list([(key, 0, b"x"), (key, 8192, b"x")]).wait(LONG)
        self.assertEqual(caught.exception.index, 1)
        self.assertEqual(pickle.loads(pickle.dumps(caught.exception)).index, 1)
        with self.assertRaises(BufferError):
            self.me.begin_put_list([(key, 0, memoryview(b"gaps")[::2])])

    def test_prepared_list_is_posted_many_times(self):
        memory, data = self.context.alloc(4096), bytearray(b"first")
        key = self.key_of(memory)
        puts = self.me.prepare_list([(key, 8, data), (key, 100, data)])
        puts.begin().wait(LONG)
        data[:] = b"other"
        puts.begin().wait(LONG)
        self.assertEqual(bytes(memory.view()[100:105]), b"other")
        gets = self.me.prepare_list([(key, 8, bytearray(5))], gets=True)
        self.assertEqual(gets.begin().wait(LONG), [b"other"])
        puts.close()
        self.worker.progress()
        data.append(0)

    def test_notification_follows_operations_and_fails_with_them(self):
        memory, seen = self.context.alloc(1 << 20), []
        key, counter = self.key_of(memory), self.worker.counter()
        self.worker.on_message(1, lambda message: seen.append((message.payload, bytes(memory.view()[-3:]))))
        request = key.begin_put(bytes((1 << 20) - 3) + b"end")
        self.me.begin_notify(1, 0, bytearray(b"put"), after=[request]).wait(LONG)
        self.assertTrue(self.worker.wait_until(lambda: seen, timeout=LONG))
        key.begin_put(b"new", (1 << 20) - 3, counter=counter)
        self.me.begin_notify(1, 0, b"counted", after_counted=counter).wait(LONG)
        self.me.begin_notify(1, 0, b"all").wait(LONG)
        self.assertTrue(self.worker.wait_until(lambda: len(seen) == 3, timeout=LONG))
        self.assertEqual(seen, [(b"put", b"end"), (b"counted", b"new"), (b"all", b"new")])
        refused = self.me.send(999, payload=bytes(1 << 20))
        with self.assertRaises(tieline.Error):
            self.me.begin_notify(1, 0, b"never", after=[refused]).wait(LONG)
        with self.assertRaises(tieline.Error):
            refused.wait(LONG)
        self.me.flush_messages(LONG)
        self.assertEqual(len(seen), 3)

    def test_transient_region_serves_many_operations_and_has_no_key(self):
        data = bytearray(b"transient")
        key, local = self.key_of(self.context.alloc(64)), self.context.transient(data)
        for offset in (0, 20):
            key.put(local, offset=offset)
        self.assertEqual(bytes(key.get(bytearray(9), offset=20)), b"transient")
        with self.assertRaises(tieline.Error):
            local.key()
        local.close()
        data.append(0)

    def test_key_is_requested_by_its_handle_and_mapped(self):
        memory = self.context.alloc(4096)
        key = self.me.key_by_handle(memory.handle(), timeout=LONG)
        key.put(b"by handle")
        self.assertEqual(bytes(memory.view()[:9]), b"by handle")
        self.assertEqual(key.info().len, 4096)
        self.assertIn("shm", key.path())
        view = key.pointer(timeout=LONG).view()
        view[0:2] = b"BY"
        self.assertEqual(bytes(memory.view()[:4]), b"BY h")

    def test_key_is_requested_by_its_published_number_and_names_its_address(self):
        with tieline.Context(publish_keys=True) as context, context.worker() as worker:
            me, memory, other = worker.connect(worker.address()), context.alloc(4096), context.alloc(64)
            memory.publish(7)
            with self.assertRaises(tieline.Busy):
                other.publish(7)
            key = me.key_by_number(7, LONG)
            key.put(b"by number", 0, LONG)
            self.assertEqual(bytes(memory.view()[:9]), b"by number")
            with self.assertRaises(tieline.Error):
                me.key_by_number(8, LONG)
            memory.unpublish(7)
            other.publish(7)
            self.assertIsNone(key.info().address)
            named = me.import_key(memory.key(with_address=True))
            self.assertEqual(named.info().address, ctypes.addressof(memory._memory))
        with self.assertRaises(tieline.Error):
            self.context.alloc(64).publish(1)

    def test_region_is_a_context_of_its_own_and_its_slices_are_contiguous(self):
        with self.context.alloc(64) as memory:
            self.assertEqual(len(memory[8:24]), 16)
            with self.assertRaises(ValueError):
                memory[::2]
        with self.assertRaises(tieline.Error):
            memory.key()


class Other(Loopback):
    def test_exceptions_of_several_handlers_are_raised_together(self):
        def handler(message):
            raise KeyError(message.header)

        self.worker.on_message(1, handler)
        seen = []
        self.worker.on_message(2, lambda message: seen.append(message))
        for number in range(3):
            self.me.send(1, number)
        with self.assertRaises(Exception) as caught:
            self.me.flush_messages(LONG)
        errors = exceptions(caught.exception)
        # A wait may end after the first exception, so that the others come with a later call.
        while len(errors) < 3:
            with self.assertRaises(Exception) as caught:
                self.worker.wait(LONG)
            errors += exceptions(caught.exception)
        self.assertEqual(sorted(error.args[0] for error in errors), [0, 1, 2])

    def test_failure_of_the_call_comes_with_exceptions_of_handlers(self):
        self.worker.on_message(1, lambda message: 1 / 0)
        request, errors = self.me.send(1, payload=bytes(1 << 20)), []
        while not request.done():
            with self.assertRaises(Exception) as caught:
                request.wait(LONG)
            errors += exceptions(caught.exception)
        self.assertEqual({type(error) is ZeroDivisionError for error in errors}, {True, False})
        self.worker.close()
        with self.assertRaisesRegex(tieline.Error, "^a call of a worker: it is closed"):
            self.worker.wait(0)

    def test_str_is_refused_wherever_bytes_are_passed(self):
        key = self.key_of(self.context.alloc(64))
        calls = (
            lambda: self.worker.connect("address"),
            lambda: self.worker.connect_by_name("name"),
            lambda: self.me.import_key("key"),
            lambda: self.me.send(1, 0, "payload"),
            lambda: self.me.send(1, 0, ["payload"]),
            lambda: self.me.send(1, 0, b"", header_bytes="header"),
            lambda: key.put("data"),
            lambda: key.begin_put(["data"]),
            lambda: key.get("data"),
            lambda: self.context.register("data"),
            lambda: tieline.Job().publish(1, "data"),
        )
        for number, call in enumerate(calls):
            with self.subTest(number), self.assertRaises(TypeError):
                call()

    def test_bytes_are_accepted_as_any_buffer(self):
        memory = self.context.alloc(64)
        address, key = self.worker.address(), memory.key()
        for kind in (bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data)).cast("b")):
            self.worker.connect(kind(address)).import_key(kind(key)).put(b"x")

    def test_errors_survive_pickling_and_name_their_class(self):
        with self.assertRaises(tieline.Error) as caught:
            self.key_of(self.context.alloc(64)).put(bytes(65))
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(again), str(again), again.status), (type(caught.exception), str(caught.exception), -10))

    def test_states_are_reported(self):
        self.assertGreater(self.me.limits().max_message, 0)
        self.assertIsNone(self.me.error)
        self.assertIsInstance(self.worker.status(), dict)
        self.assertEqual(self.worker.counters().malformed, 0)
        self.me.send(999)
        self.me.flush_messages(LONG)
        self.assertEqual(self.worker.counters().unknown_ids, 1)
        self.assertRegex(tieline.__version__, r"^\d+\.\d+\.\d+$")

    def test_worker_without_handlers_ends_with_its_last_reference(self):
        worker = self.context.worker()
        endpoint = worker.connect(self.worker.address())
        endpoint.send(1).wait(LONG)
        handle = weakref.ref(worker._handle)
        gc.disable()
        self.addCleanup(gc.enable)
        del worker, endpoint
        self.assertIsNone(handle())

    def test_waker_ends_a_sleep_of_the_worker(self):
        waker, flag, began = self.worker.waker(), [], time.monotonic()

        def wakes():
            flag.append(1)
            waker.wake()

        thread = threading.Timer(0.05, wakes)
        thread.start()
        self.assertTrue(self.worker.wait_until(lambda: flag, timeout=LONG))
        self.assertLess(time.monotonic() - began, LONG / 2)
        thread.join()
