"""Tests of the module with the real library: `PYTHONPATH=. python3 -m unittest discover tests`."""

import array
import gc
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import unittest
import weakref

import tieline
from support import LONG
from tieline import _c, _context, _endpoint, _errors

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = pathlib.Path(os.environ.get("TIELINE_HEADERS", ROOT.parent / "include"))


class Loopback(unittest.TestCase):
    """A worker with an endpoint to itself."""

    def setUp(self):
        self.context = tieline.Context()
        self.worker = self.context.worker()
        self.me = self.worker.connect(self.worker.address())

    def tearDown(self):
        self.worker.close()
        self.context.close()

    def key_of(self, region):
        return self.me.import_key(region.key())

    def test_a_message_brings_its_header_and_a_copy_of_its_bytes(self):
        arrived = []
        self.worker.on_message(7, lambda message: arrived.append((message.header, message.payload, message)))
        for payload in (b"", b"bytes", bytearray(b"a bytearray"), memoryview(b"a view")):
            self.me.send(7, header=1 << 63, payload=payload)
        self.assertTrue(self.worker.wait_until(lambda: len(arrived) == 4, timeout=60))
        self.assertEqual([header for header, _, _ in arrived], [1 << 63] * 4)
        self.assertEqual([payload for _, payload, _ in arrived], [b"", b"bytes", b"a bytearray", b"a view"])
        with self.assertRaises(ValueError):  # it was valid only while its handler ran
            arrived[0][2].payload

    def test_put_and_get_go_from_and_to_any_buffer_in_place(self):
        memory = self.context.alloc(1 << 20)
        key = self.key_of(memory)
        sent = array.array("d", range(1000))
        key.put(sent, offset=800)
        self.assertEqual(bytes(memory.view()[800:8800]), sent.tobytes())
        back = array.array("d", bytes(8000))
        self.assertIs(key.get(back, offset=800), back)
        self.assertEqual(back, sent)
        half = bytearray(16)
        key.get(memoryview(half)[4:12], offset=800)
        self.assertEqual(half[4:12], sent.tobytes()[:8])
        self.assertEqual(half[:4] + half[12:], bytes(8))

    def test_memory_of_the_programs_own_is_reached_where_it_lies(self):
        numbers = array.array("Q", range(512))
        region = self.context.register(numbers)
        self.key_of(region).put(array.array("Q", [4711]), offset=8 * 100)
        self.assertEqual(numbers[100], 4711)
        with self.assertRaises(BufferError):
            numbers.append(1)  # peers write to it: it must not move
        self.worker.close_region(region, timeout=60)
        numbers.append(1)

    def test_a_buffer_is_the_operations_until_that_has_ended(self):
        memory = self.context.alloc(1 << 20)
        data = bytearray(1 << 20)
        request = self.key_of(memory).begin_put(data)
        request.wait(timeout=60)
        self.assertTrue(request.done())
        data.append(0)  # and is released then
        request = self.key_of(memory).begin_put(data[: 1 << 20])
        del request  # the request is dropped, and nothing is lost
        self.me.flush()
        gc.collect()

    def test_buffer_unusable_in_place_is_refused_before_posting(self):
        key = self.key_of(self.context.alloc(64))
        with self.assertRaises(BufferError):
            key.get(b"read only")
        with self.assertRaises(TypeError):
            key.put(3.5)
        with self.assertRaises(tieline.Error) as caught:
            key.put(bytes(65))
        self.assertEqual(caught.exception.status, -10)
        self.assertIn("65", str(caught.exception))

    def test_rights_are_kept(self):
        memory = self.context.alloc(64, tieline.READ)
        key = self.key_of(memory)
        self.assertEqual(key.get(bytearray(64)), bytes(64))
        with self.assertRaises(tieline.Error) as caught:
            key.put(b"x")
        self.assertEqual(caught.exception.status, -9)
        self.assertTrue(caught.exception.fix)

    def test_handler_exception_is_raised_by_its_call_and_nothing_is_lost(self):
        arrived = []

        def handler(message):
            arrived.append(message.header)
            if message.header == 0:
                raise KeyError("a mistake of the program's")

        self.worker.on_message(3, handler)
        for header in range(3):
            self.me.send(3, header)
        with self.assertRaises(KeyError):
            self.worker.wait_until(lambda: len(arrived) == 3, timeout=60)
        self.assertTrue(self.worker.wait_until(lambda: len(arrived) == 3, timeout=60))
        with self.assertRaises(ZeroDivisionError):
            self.worker.wait_until(lambda: 1 / 0, timeout=60)

    def test_long_message_is_received_into_chosen_memory_or_refused(self):
        sent, room, taken, seen = bytes(range(256)) * 4096, bytearray(1 << 20), [], []

        def handler(message):
            seen.append((len(message), message.is_announced, message.payload))
            if message.header == 1:
                taken.append(message.take_into(room))

        self.worker.on_message(4, handler)
        first = self.me.send(4, 1, sent)
        self.assertTrue(self.worker.wait_until(lambda: taken and taken[0].done(), timeout=60))
        first.wait(timeout=60)
        self.assertEqual(room, sent)
        self.assertEqual(seen, [(1 << 20, True, b"")])
        with self.assertRaises(tieline.Error):
            self.me.send(4, 2, sent).wait(timeout=60)

    def test_a_handler_answers(self):
        heard = []
        self.worker.on_message(1, lambda question: self.me.send(2, question.header * 2))
        self.worker.on_message(2, lambda answer: heard.append(answer.header))
        self.me.send(1, 21)
        self.assertTrue(self.worker.wait_until(lambda: heard, timeout=60))
        self.assertEqual(heard, [42])

    def test_a_worker_goes_on_when_its_context_is_closed(self):
        memory = self.context.alloc(64)
        key = self.key_of(memory)
        self.context.close()
        key.put(b"after")
        self.assertEqual(bytes(memory.view()[:5]), b"after")
        self.assertEqual(bytes(key.get(bytearray(5))), b"after")
        with self.assertRaisesRegex(tieline.Error, "^a call of a context: it is closed; "):
            self.context.alloc(64)

    def test_a_closed_context_ends_with_its_last_worker(self):
        context = tieline.Context()
        first, last = context.worker(), context.worker()
        handle = weakref.ref(context._handle)
        first.close()
        del context
        gc.collect()
        self.assertIsNotNone(handle(), "a worker uses it")
        last.close()  # the worker object stays
        gc.collect()
        self.assertIsNone(handle())

    def test_a_call_of_a_closed_object_names_it(self):
        memory = self.context.alloc(64)
        key, other = self.key_of(memory), self.context.worker()
        memory.close()
        key.close()
        other.close()
        for what, call in {
            "region": memory.key,
            "key": lambda: key.put(b"bytes"),
            "worker": other.progress,
        }.items():
            with self.assertRaisesRegex(tieline.Error, f"^a call of a {what}: it is closed; "):
                call()

    def test_a_put_without_the_right_says_so(self):
        key = self.key_of(self.context.alloc(64, tieline.READ))
        with self.assertRaisesRegex(tieline.Error, "^a put to a remote region: its key does not carry that right; "):
            key.put(b"bytes")

    def test_a_region_is_not_closed_under_a_view(self):
        memory = self.context.alloc(64)
        view = memory.view()
        with self.assertRaises(BufferError):
            memory.close()
        part = view[8:16]
        del view
        with self.assertRaises(BufferError):
            memory.close()
        part[0] = 1
        del part
        memory.close()
        memory.close()  # a second close does nothing
        # A view outlives the variable of its region, and its contents stay.
        view = self.context.alloc(64).view()
        gc.collect()
        view[63] = 5
        self.assertEqual(view[63], 5)

    def test_memory_of_the_programs_own_stays_while_a_view_of_its_region_does(self):
        view = self.context.register(bytearray(1 << 20)).view()
        gc.collect()
        view[5] = 7
        self.assertEqual(view[5], 7)
        region = self.context.register(bytearray(64))
        kept = region.view()
        with self.assertRaises(BufferError):
            region.close()
        with self.assertRaises(BufferError):
            self.worker.close_region(region)
        del kept
        region.close()
        with self.assertRaises(ValueError):
            region.view()

    def test_objects_collected_while_worker_is_busy_are_ended_later(self):
        memory = self.context.alloc(64)
        circle = [self.key_of(memory)]
        handle, handled = circle[0]._handle.value, []
        circle.append(circle)
        del circle

        def handler(_):
            thread = threading.Thread(target=gc.collect)
            thread.start()
            thread.join()
            handled.append(len(_c.left))

        self.worker.on_message(1, handler)
        gc.disable()
        self.addCleanup(gc.enable)
        self.me.send(1)
        self.assertTrue(self.worker.wait_until(lambda: handled, timeout=60))
        self.assertEqual(handled, [1])
        self.worker.progress()
        self.assertEqual((_c.left, _c.lib.tieline_key_drop(handle)), ([], -3))

    def test_numbers_that_the_library_has_no_room_for_are_refused(self):
        key = self.key_of(self.context.alloc(64))
        wrong = (
            lambda: key.put(b"x", offset=1 << 64),
            lambda: key.get(bytearray(1), offset=-1),
            lambda: self.me.send(65536 + 5),
            lambda: self.me.send(5, header=-1),
            lambda: self.worker.on_message(-1, print),
            lambda: self.context.alloc(-1),
        )
        for call in wrong:
            with self.assertRaises(ValueError):
                call()

    def test_second_thread_gets_busy_during_call_and_runs_meanwhile(self):
        told = []

        def other():
            try:
                self.worker.address()
            except tieline.Busy as busy:
                told.append(busy)

        def handler(_):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

        self.worker.on_message(1, handler)
        self.me.send(1)
        self.assertTrue(self.worker.wait_until(lambda: told, timeout=60))
        self.assertIn("another thread", told[0].why)

    def test_waiting_call_in_handler_raises_busy(self):
        told = []

        def handler(_):
            try:
                self.worker.wait_until(lambda: False, timeout=60)
            except tieline.Busy as busy:
                told.append(busy)

        self.worker.on_message(1, handler)
        self.me.send(1)
        self.assertTrue(self.worker.wait_until(lambda: told, timeout=60))

    def test_wait_until_returns_false_after_its_timeout(self):
        began = time.monotonic()
        self.assertFalse(self.worker.wait_until(lambda: False, timeout=0.05))
        self.assertGreaterEqual(time.monotonic() - began, 0.05)
        self.assertTrue(self.worker.wait_until(lambda: True, timeout=0))


class Alone(unittest.TestCase):
    def test_a_process_without_a_launcher_is_a_job_of_one(self):
        with tieline.Job() as job:
            self.assertEqual((job.rank, job.size), (0, 1))
            job.publish(5, b"mine")
            self.assertEqual(job.lookup(0, 5), b"mine")
            job.barrier()

    def test_a_wrong_setting_is_named_with_what_to_do(self):
        with self.assertRaises(tieline.Error) as caught:
            tieline.Context({"TIELINE_SHM_FASTBOX_SIZE": "5k"})
        self.assertEqual(caught.exception.setting, "TIELINE_SHM_FASTBOX_SIZE")
        self.assertTrue(caught.exception.why and caught.exception.fix)

    def test_the_report_says_what_is_used(self):
        with tieline.Context() as context:
            self.assertIn("shm", context.report("why"))
            self.assertTrue(context.report("json").startswith("{"))

    @unittest.skipUnless(HEADERS.exists(), "the C headers are not there")
    def test_the_numbers_and_functions_are_those_of_the_header(self):
        text = (HEADERS / "tieline.h").read_text()
        provider = (HEADERS / "tieline_provider.h").read_text()

        def number(name):
            found = re.search(rf"#define {name} \(?(?:U?INT(?:32|64)_C\()?(-?\w+)", text + provider)
            self.assertIsNotNone(found, name)
            return int(found[1], 0)

        for name in ("READ", "WRITE", "ATOMIC", "ALL"):
            self.assertEqual(getattr(tieline, name), number(f"TIELINE_{name}"))
        for name in ("PENDING", "AGAIN", "UNSUPPORTED", "INVALID", "PEER_FAILED", "TOO_LARGE", "TIMED_OUT"):
            self.assertEqual(getattr(_errors, name), number(f"TIELINE_{name}"))
        for name in ("CLOSED", "BUSY", "CANCELED", "EXPIRED"):
            self.assertEqual(getattr(_errors, name), number(f"TIELINE_{name}"))
        for name, value in _endpoint._ATOMICS.items():
            self.assertEqual(value, number(f"TIELINE_ATOMIC_{name.upper()}"))
        for which, value in _context._REPORTS.items():
            self.assertEqual(value, number(f"TIELINE_REPORT_{which.upper()}"))
        for name, arguments in _c.FUNCTIONS.items():
            found = re.search(rf"\b{name}\(([^;]*?)\)\s*;", text)
            self.assertIsNotNone(found, name)
            self.assertEqual(found[1].count(",") + 1, len(arguments), name)

    def test_timed_out_wait_does_not_end_operation(self):
        # The operation's own limit: one that it does not reach here, and one that it reaches.
        for limit in ("600s", "50ms"):
            settings = {"TIELINE_PROVIDERS": "tcp,tcp-connect", "TIELINE_CONNECT_TIMEOUT": limit}
            with tieline.Context(settings) as context:
                worker, silent = context.worker(), context.worker()
                endpoint = worker.connect(silent.address())
                key = endpoint.import_key(context.alloc(64).key())
                request = key.begin_put(b"bytes")
                if limit == "600s":
                    with self.assertRaises(tieline.TimedOut):
                        request.wait(0.01)
                    self.assertFalse(request.done())
                    self.assertTrue(request.cancel())
                with self.assertRaises(tieline.Canceled if limit == "600s" else tieline.Expired):
                    request.wait(LONG)
                self.assertTrue(request.done())
                key.close()
                endpoint.close()

    def test_a_wait_without_end_can_be_interrupted(self):
        program = """
import os, signal, threading, tieline
# Python keeps a signal ignored if it was ignored at its start, as in the background of a script.
signal.signal(signal.SIGINT, signal.default_int_handler)
with tieline.Context() as context:
    worker = context.worker()
    me = worker.connect(worker.address())
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        worker.wait_until(lambda: False)
    except KeyboardInterrupt:
        print("interrupted")
"""
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
        )
        self.assertIn("interrupted", ran.stdout, ran.stderr)

    def test_examples_end_with_their_results(self):
        results = {
            "exchange": "100000 numbers came back, squared",
            "kv_cache": "256 blocks of 16 sequences, over ",
            "work_queue": "200 tasks are done, by 3 consumers",
            "parameter_server": "60 steps of 2 workers; the largest error is",
        }
        if importlib.util.find_spec("numpy") is None:
            del results["parameter_server"]
        examples = {
            name: subprocess.Popen(
                [sys.executable, str(ROOT / "examples" / f"{name}.py")],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in results
        }
        for name, example in examples.items():
            with self.subTest(name):
                said, errors = example.communicate(timeout=120)
                self.assertEqual(example.returncode, 0, errors)
                self.assertIn(results[name], said)

    def test_children_of_each_start_method_reach_parent_and_siblings(self):
        program = str(ROOT / "tests" / "started.py")
        shm, tcp = "shm,shm-cma", "tcp,tcp-connect"
        ways = [("fork", shm), ("fork", tcp), ("spawn", tcp), ("forkserver", shm)]
        for method, providers in ways:
            with self.subTest(method=method, providers=providers):
                started = [sys.executable, program, method, providers]
                ran = subprocess.run(started, capture_output=True, text=True, timeout=180)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                self.assertIn(f"4 children of {method} over {providers}", ran.stdout)


if __name__ == "__main__":
    unittest.main()
