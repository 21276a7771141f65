"""Agents for test.py and bench.py: a side is an agent with one buffer, in this process or in another one."""

import ctypes
import importlib.util
import mmap
import multiprocessing
import os
import sys
import tempfile
import time
import types

os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")


def nixl():
    """Imports NIXL's Python interface, under the name that the installed wheel gives it."""
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        # Older wheels import torch, of which they use one name in annotations and type checks.
        sys.modules["torch"] = types.ModuleType("torch")
        sys.modules["torch"].Tensor = type("Tensor", (), {})
    for name in ("nixl._api", "nixl_cu12._api", "nixl_cu13._api"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError("no wheel of NIXL is installed")


class Side:
    """An agent, its buffer, and its open transfers. Every method takes and returns values that can be pickled."""

    def __init__(self, name, size=1 << 20, fill=0, thread=True, backend="TIELINE", parameters=None, port=None, sync=False):
        api = nixl()
        listener = {} if port is None else {"enable_listen_thread": True, "listen_port": port}
        if sync:  # several threads will use the agent
            listener["sync_mode"] = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
        self.agent = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=thread, backends=[], **listener))
        self.agent.create_backend(backend, parameters or {})
        self.backend, self.size, self.transfers, self.heard = backend, size, {}, {}
        self.memory = mmap.mmap(-1, size)
        self.memory.write(bytes([fill]) * size)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.registered = self.agent.register_memory([(self.base, size, 0, "")], "DRAM", backends=[backend])

    def metadata(self):
        return self.agent.get_agent_metadata()

    def where(self):
        return self.base

    def add(self, metadata):
        name = self.agent.add_remote_agent(metadata)
        return name if isinstance(name, str) else name.decode()

    def remove(self, name):
        self.agent.remove_remote_agent(name)

    def partial_metadata(self):
        return self.agent.get_partial_agent_metadata(self.registered, True, [self.backend])

    def knows(self, name):
        return self.agent.check_remote_metadata(name)

    def connect(self, name):
        self.agent.make_connection(name)

    def fill(self, offset, data):
        self.memory[offset : offset + len(data)] = data

    def bytes(self, offset, length):
        return self.memory[offset : offset + length]

    def prepare(self, key, kind, pieces, peer, there, note=b""):
        """Prepares a transfer of pieces (local offset, remote offset, length) with the buffer at address `there` of a peer."""
        local = self.agent.get_xfer_descs([(self.base + at, length, 0) for at, _, length in pieces], "DRAM")
        remote = self.agent.get_xfer_descs([(there + at, length, 0) for _, at, length in pieces], "DRAM")
        self.transfers[key] = self.agent.initialize_xfer(kind, local, remote, peer, note, backends=[self.backend])

    def post(self, key):
        return self.agent.transfer(self.transfers[key])

    def check(self, key):
        return self.agent.check_xfer_state(self.transfers[key])

    def run(self, key, limit=20):
        """Posts a transfer and waits for its end: DONE, ERR or the name of the exception, and the seconds until then."""
        begun = time.monotonic()
        try:
            state = self.post(key)
            while state == "PROC":
                state = self.check(key)
                if time.monotonic() - begun > limit:
                    state = "LATE"
        except Exception as failed:
            state = type(failed).__name__
        return state, time.monotonic() - begun

    def release(self, key):
        self.agent.release_xfer_handle(self.transfers.pop(key))

    def move(self, kind, pieces, peer, there, note=b""):
        """Prepares, runs and releases one transfer."""
        self.prepare("move", kind, pieces, peer, there, note)
        state, _ = self.run("move")
        self.release("move")
        return state

    def send(self, peer, note):
        self.agent.send_notif(peer, note)

    def poll(self):
        for peer, notes in self.agent.get_new_notifs(backends=[self.backend]).items():
            peer = peer if isinstance(peer, str) else peer.decode()
            self.heard.setdefault(peer, []).extend(notes)

    def notes(self, count=0, limit=20):
        """Waits until `count` notifications have arrived, and returns all by their senders."""
        until = time.monotonic() + limit
        self.poll()
        while sum(map(len, self.heard.values())) < count and time.monotonic() < until:
            self.poll()
        heard, self.heard = self.heard, {}
        return heard

    def echo(self, peer, count):
        """Answers `count` notifications of a peer, one by one."""
        while count > 0:
            self.poll()
            for note in self.heard.pop(peer, []):
                self.agent.send_notif(peer, note)
                count -= 1

    def register(self, length):
        self.registered = self.agent.register_memory([(self.base, length, 0, "")], "DRAM", backends=[self.backend])

    def unregister(self):
        self.agent.deregister_memory(self.registered, backends=[self.backend])


def serve(pipe, arguments, keywords):
    """Runs a side in this process for the calls that arrive; in between it polls, so that it needs no progress thread."""
    try:
        side = Side(*arguments, **keywords)
        pipe.send((True, os.getpid()))
    except Exception as failed:
        pipe.send((False, type(failed).__name__))
        return
    while True:
        while not pipe.poll(0 if not keywords.get("thread", True) else None):
            side.poll()
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        if name == "end":
            del side
            pipe.send((True, None))
            return
        try:
            pipe.send((True, getattr(side, name)(*arguments)))
        except Exception as failed:
            pipe.send((False, type(failed).__name__))


class Far:
    """A side in a process of its own; its methods are those of Side."""

    def __init__(self, *arguments, network=None, **keywords):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(other, arguments, keywords), daemon=True)
        with tempfile.NamedTemporaryFile("w", delete=False) as wrapper:
            inside = f"ip netns exec {network} " if network else ""
            wrapper.write(f'#!/bin/sh\nexec {inside}{sys.executable} "$@"\n')
        try:
            os.chmod(wrapper.name, 0o700)
            spawn.set_executable(wrapper.name)
            self.process.start()
            other.close()
            self.pid = self.result()
        finally:
            os.remove(wrapper.name)

    def result(self):
        worked, value = self.pipe.recv()
        if not worked:
            raise RuntimeError(value)
        return value

    def begin(self, name, *arguments):
        self.pipe.send((name, arguments))

    def __getattr__(self, name):
        def call(*arguments):
            self.begin(name, *arguments)
            return self.result()

        return call

    def kill(self):
        self.process.kill()
        self.process.join()

    def end(self):
        if self.process.is_alive():
            self.begin("end")
            self.result()
            self.process.join(10)


def pair(first, second):
    """Exchanges the metadata of two sides."""
    second.add(first.metadata())
    return first.add(second.metadata())
