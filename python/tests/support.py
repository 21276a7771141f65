"""Workers and processes that several test files use."""

import multiprocessing
import sys
import unittest

import tieline

SPAWN = multiprocessing.get_context("spawn")
LONG = 60  # seconds: a limit that only a hanging test reaches


class Loopback(unittest.TestCase):
    """A worker with an endpoint to itself."""

    settings = None
    opens = "worker"

    def setUp(self):
        self.context = tieline.Context(self.settings)
        self.worker = getattr(self.context, self.opens)()
        self.me = self.worker.connect(self.worker.address())

    def tearDown(self):
        self.regions = []
        self.worker.close()
        self.context.close()

    def key_of(self, region):
        self.regions = [*getattr(self, "regions", []), region]
        return self.me.import_key(region.key())

    def arrived(self, id, **options):
        """The next message with this id, in place of a handler."""
        if id not in getattr(self, "iterators", {}):
            self.iterators = {**getattr(self, "iterators", {}), id: self.worker.messages(id, **options)}
        return self.iterators[id].get(timeout=LONG)


def exceptions(error):
    """The exceptions that were raised together: of a group, or before Python 3.11 the contexts of the first."""
    if hasattr(error, "exceptions"):
        return list(error.exceptions)
    found = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__context__ if sys.version_info < (3, 11) else None
    return found


def started(test, function, *arguments):
    """Starts a process that runs `function(pipe, *arguments)`; returns it with the other end of the pipe."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=function, args=(there, *arguments))
    process.start()
    there.close()

    def end():
        here.close()
        process.join(LONG)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()

    test.addCleanup(end)
    return process, here
