"""Sends messages back and forth between two processes: `pingpong.py tieline | tieline-put | tieline-asyncio | tieline-driven | ucxx | mpi4py`.

Prints a line for each length: the length in bytes, and the median time of several turns for one way, in microseconds. `mpi4py` runs under mpirun.
numpy arrays are sent and received in place. `compare.py` compares the programs.
"""

import asyncio
import multiprocessing
import os
import statistics
import sys
import time

import numpy

KIB, MIB = 1 << 10, 1 << 20
#: The length of a message, and the number of messages in a turn.
LENGTHS = ((8, 300), (MIB, 20), (64 * MIB, 2))
TURNS = 5
#: A message that is longer is sent and received in place.
COPIED = 64 * KIB


def tell(length, times, count):
    print(length, round(statistics.median(times) / count / 2 * 1e6, 2), flush=True)


def timed(turn, count):
    """Runs a turn several times; returns the seconds of each."""
    times = []
    for _ in range(TURNS):
        begun = time.perf_counter()
        turn(count)
        times.append(time.perf_counter() - begun)
    return times


# ---- Tieline ----


def tieline_messages(pipe, is_first):
    import tieline

    with tieline.Context() as context, context.worker() as worker:
        # A driven worker takes messages at once: the handler is there before the peer has the address.
        messages = worker.messages(1)
        pipe.send(worker.address())
        peer = worker.connect(pipe.recv())
        for length, count in LENGTHS:
            array = numpy.zeros(length, "u1")
            payload = array.tobytes() if length <= COPIED else None

            def turn(count):
                for _ in range(count):
                    if is_first:
                        sent = peer.send(1, 0, payload if payload is not None else [array])
                    message = messages.get()
                    if payload is None:
                        message.take_into(array).wait()
                    if not is_first:
                        sent = peer.send(1, 0, payload if payload is not None else [array])
                    if payload is None:
                        sent.wait()

            times = timed(turn, count)
            if is_first:
                tell(length, times, count)
        pipe.send(None)
        pipe.recv()


def tieline_put(pipe, is_first):
    import tieline

    with tieline.Context() as context, context.worker() as worker:
        pipe.send(worker.address())
        peer, came = worker.connect(pipe.recv()), []
        worker.on_notification(lambda _peer, word: came.append(word))
        for length, count in LENGTHS:
            memory, array = context.alloc(length), numpy.zeros(length, "u1")
            pipe.send(memory.key())
            key = peer.import_key(pipe.recv())

            def turn(count):
                for _ in range(count):
                    if is_first:
                        key.begin_put(array, notify=1).wait()
                    while not came:
                        worker.wait()
                    came.clear()
                    if not is_first:
                        key.begin_put(array, notify=1).wait()

            times = timed(turn, count)
            if is_first:
                tell(length, times, count)
            pipe.send(None)
            pipe.recv()


async def tieline_loop(pipe, is_first, opens):
    import tieline

    async with tieline.Context() as context, getattr(context, opens)() as worker:
        # A driven worker takes messages at once: the handler is there before the peer has the address.
        messages = worker.messages(1)
        pipe.send(worker.address())
        peer = worker.connect(pipe.recv())
        for length, count in LENGTHS:
            array = numpy.zeros(length, "u1")
            what = [array] if length > COPIED else array

            async def receive():
                message = await messages.aget()
                if message.is_announced:
                    await message.take_into(array)
                else:
                    array[:] = numpy.frombuffer(message.payload, "u1")

            times = []
            for _ in range(TURNS):
                begun = time.perf_counter()
                for _ in range(count):
                    if is_first:
                        sent = peer.send(1, 0, what)
                        await receive()
                        await sent
                    else:
                        await receive()
                        await peer.send(1, 0, what)
                times.append(time.perf_counter() - begun)
            if is_first:
                tell(length, times, count)


def tieline_asyncio(pipe, is_first):
    asyncio.run(tieline_loop(pipe, is_first, "worker"))


def tieline_driven(pipe, is_first):
    asyncio.run(tieline_loop(pipe, is_first, "driven_worker"))


# ---- ucxx ----


async def ucxx_loop(pipe, is_first):
    import ucxx

    async def turns(endpoint):
        for length, count in LENGTHS:
            array, times = numpy.zeros(length, "u1"), []
            for _ in range(TURNS):
                begun = time.perf_counter()
                for _ in range(count):
                    if is_first:
                        await endpoint.send(array)
                        await endpoint.recv(array)
                    else:
                        await endpoint.recv(array)
                        await endpoint.send(array)
                times.append(time.perf_counter() - begun)
            if is_first:
                tell(length, times, count)

    if is_first:
        await turns(await ucxx.create_endpoint("127.0.0.1", pipe.recv()))
        return
    done = asyncio.Event()

    async def serve(endpoint):
        await turns(endpoint)
        await asyncio.sleep(0.2)
        done.set()

    listener = ucxx.create_listener(serve, 0)
    pipe.send(listener.port)
    await done.wait()


def ucxx_asyncio(pipe, is_first):
    asyncio.run(ucxx_loop(pipe, is_first))
    sys.stdout.flush()
    os._exit(0)


# ---- mpi4py ----


def mpi4py():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    other = 1 - world.rank
    for length, count in LENGTHS:
        array = numpy.zeros(length, "u1")

        def turn(count):
            for _ in range(count):
                if world.rank == 0:
                    world.Send([array, MPI.BYTE], other)
                    world.Recv([array, MPI.BYTE], other)
                else:
                    world.Recv([array, MPI.BYTE], other)
                    world.Send([array, MPI.BYTE], other)

        world.Barrier()
        times = timed(turn, count)
        if world.rank == 0:
            tell(length, times, count)


PROGRAMS = {
    "tieline": tieline_messages,
    "tieline-put": tieline_put,
    "tieline-asyncio": tieline_asyncio,
    "tieline-driven": tieline_driven,
    "ucxx": ucxx_asyncio,
}


def main():
    if sys.argv[1] == "mpi4py":
        mpi4py()
        return
    spawn = multiprocessing.get_context("spawn")
    pipes = spawn.Pipe()
    processes = [spawn.Process(target=PROGRAMS[sys.argv[1]], args=(pipe, pipe is pipes[0])) for pipe in pipes]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.exitcode != 0:
            for one in processes:
                one.kill()
            sys.exit(f"{sys.argv[1]}: a process ended with {process.exitcode}")


if __name__ == "__main__":
    main()
