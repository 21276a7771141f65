"""Tests with several processes: peers that die or leave, consumers that do not progress, and Ctrl-C."""

import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import tieline
from support import LONG, started

TESTS = pathlib.Path(__file__).resolve().parent


def peer(pipe):
    """Sends one message, and then does what the pipe says."""
    with tieline.Context() as context, context.worker() as worker:
        messages = worker.messages(2)  # the other side sends as soon as it has the address
        pipe.send(worker.address())
        endpoint = worker.connect(pipe.recv())
        endpoint.send(1, 7)
        worker.wait_until(lambda: pipe.poll())
        if pipe.recv() == "sleep":
            pipe.send("sleeps")
            pipe.recv()
            got = [messages.get(LONG).header for _ in range(pipe.recv())]
            pipe.send(got == list(range(len(got))))
            worker.wait_until(lambda: pipe.poll())


class Peers(unittest.TestCase):
    def setUp(self):
        self.context = tieline.Context()
        self.worker = self.context.worker()
        self.addCleanup(self.context.close)
        self.addCleanup(self.worker.close)
        self.process, self.pipe = started(self, peer)
        self.to = self.worker.connect(self.pipe.recv())
        self.messages = self.worker.messages(1)
        self.pipe.send(self.worker.address())
        self.first = self.messages.get(LONG)

    def test_killed_peer_is_reported_while_its_message_is_awaited(self):
        failed, ended = [], []
        self.worker.on_peer_failure(lambda peer, error: (failed.append((peer, error)), self.messages.close(error)))
        self.worker.on_endpoint_failure(lambda endpoint, error: ended.append((endpoint, error)))
        self.to.send(2)
        os.kill(self.process.pid, signal.SIGKILL)
        began = time.monotonic()
        with self.assertRaises(tieline.PeerFailed):
            self.messages.get(LONG)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual([peer for peer, _ in failed], [self.first.peer])
        self.assertTrue(self.worker.wait_until(lambda: ended, timeout=LONG))
        self.assertIs(ended[0][0], self.to)
        self.assertIsInstance(self.to.error, tieline.PeerFailed)
        with self.assertRaises(tieline.PeerFailed):
            self.to.send(2)

    def test_peer_that_closes_its_worker_is_reported_as_left(self):
        left, failed = [], []
        self.worker.on_peer_left(lambda peer: left.append(peer))
        self.worker.on_peer_failure(lambda peer, error: failed.append(error))
        self.to.send(2)
        self.pipe.send("leave")
        self.assertTrue(self.worker.wait_until(lambda: left, timeout=LONG))
        self.assertEqual((left, failed), ([self.first.peer], []))
        self.assertTrue(self.worker.wait_until(lambda: self.to.error, timeout=LONG))
        self.assertIsInstance(self.to.error, tieline.Closed)

    def test_send_without_room_sleeps_until_its_time_limit(self):
        self.pipe.send("sleep")
        self.assertEqual(self.pipe.recv(), "sleeps")
        sent, began = 0, time.monotonic()
        used = resource.getrusage(resource.RUSAGE_SELF)
        with self.assertRaises(tieline.TimedOut):
            while True:
                self.to.send(2, sent, bytes(4096), timeout=0.3)
                sent += 1
        self.assertGreaterEqual(time.monotonic() - began, 0.3)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_stime - used.ru_stime
        self.assertLess(used, (time.monotonic() - began) / 2 + 0.2)
        self.assertGreater(sent, 10)
        # Nothing of the last message was sent, and nothing of the earlier ones is lost.
        self.pipe.send("go on")
        self.pipe.send(sent)
        self.assertTrue(self.worker.wait_until(lambda: self.pipe.poll(), timeout=LONG))
        self.assertTrue(self.pipe.recv())
        self.pipe.send("end")


class Interrupted(unittest.TestCase):
    def test_ctrl_c_ends_every_wait_within_a_moment(self):
        program = str(TESTS / "interrupted.py")
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as end, socket.socket() as port:
            end.bind(folder + "/end")
            end.listen()
            port.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{port.getsockname()[1]}"
            base = {**os.environ, "TIELINE_BOOTSTRAP": place, "TIELINE_SIZE": "2"}
            words = [sys.executable, program, "other", folder + "/end"]
            other = subprocess.Popen(words, env={**base, "TIELINE_RANK": "1"})
            try:
                ran = subprocess.run(
                    [sys.executable, program], env={**base, "TIELINE_RANK": "0"}, capture_output=True, text=True, timeout=120
                )
            finally:
                other.kill()
                other.wait()
        self.assertEqual(ran.returncode, 0, ran.stderr)
        *lines, last = ran.stdout.splitlines()
        self.assertEqual((last, len(lines)), ("end", 13), ran.stdout + ran.stderr)
        for line in lines:
            with self.subTest(line):
                # 0.1 s is what the module promises; the rest is for a busy machine.
                self.assertLess(float(line.split()[1]), 0.5)


if __name__ == "__main__":
    unittest.main()
