"""A process with an open context, which is in use, starts children: `started.py fork|spawn|forkserver PROVIDERS`.

Each child opens a context of its own and reaches its parent, and the next child.
"""

import multiprocessing
import sys

import tieline

CHILDREN = 4
LENGTH = 5000
READY, DONE = 1, 2
#: Inherited by a forked child.
parents = []


def child(number, settings, parent, here, there):
    address, key = parent
    for context, worker, endpoint in parents:
        try:
            endpoint.send(READY)
        except tieline.Error:
            pass
        else:
            sys.exit("a child sends in its parent's name")
    parents.clear()
    with tieline.Context(settings) as context, context.worker() as worker:
        came = []
        worker.on_message(DONE, lambda message: came.append(message.header))
        memory = bytearray(LENGTH)
        region = context.register(memory)
        here.send((worker.address(), region.key()))
        neighbour, their_key = there.recv()
        for address, key, offset in ((address, key, number * LENGTH), (neighbour, their_key, 0)):
            endpoint = worker.connect(address)
            theirs = endpoint.import_key(key)
            theirs.put(bytes([number + 1]) * LENGTH, offset=offset)
            got = theirs.get(bytearray(LENGTH), offset=offset)
            assert bytes(got) == bytes([number + 1]) * LENGTH
            endpoint.send(DONE, header=number)
            endpoint.flush()
        assert worker.wait_until(lambda: came, timeout=60), "the neighbour has not come"
        assert came == [(number - 1) % CHILDREN]
        assert memory == bytes([came[0] + 1]) * LENGTH
        worker.close_region(region, timeout=60)


def main(method, providers):
    settings = {"TIELINE_PROVIDERS": providers}
    start = multiprocessing.get_context(method)
    with tieline.Context(settings) as context, context.worker() as worker:
        came = []
        worker.on_message(DONE, lambda message: came.append(message.header))
        worker.on_message(READY, lambda message: came.append("ready"))
        me = worker.connect(worker.address())
        me.send(READY)
        assert worker.wait_until(lambda: came, timeout=60)
        came.clear()
        memory = bytearray(CHILDREN * LENGTH)
        region = context.register(memory)
        parents.append((context, worker, me))
        pipes = [start.Pipe() for _ in range(CHILDREN)]
        relayed = [start.Pipe() for _ in range(CHILDREN)]
        children = [
            start.Process(
                target=child,
                args=(n, settings, (worker.address(), region.key()), pipes[n][1], relayed[n][1]),
            )
            for n in range(CHILDREN)
        ]
        for process in children:
            process.start()
        cards = [pipe.recv() for pipe, _ in pipes]
        for n, (pipe, _) in enumerate(relayed):
            pipe.send(cards[(n + 1) % CHILDREN])
        ended = worker.wait_until(lambda: not any(p.is_alive() for p in children), timeout=120)
        assert ended, "the children have not ended"
        assert [process.exitcode for process in children] == [0] * CHILDREN
        assert worker.wait_until(lambda: len(came) == CHILDREN, timeout=60), came
        assert sorted(came) == list(range(CHILDREN))
        for n in range(CHILDREN):
            assert memory[n * LENGTH : (n + 1) * LENGTH] == bytes([n + 1]) * LENGTH
        me.send(READY)
        assert worker.wait_until(lambda: came[-1] == "ready", timeout=60)
        parents.clear()
        worker.close_region(region, timeout=60)
    print(f"{CHILDREN} children of {method} over {providers}")


if __name__ == "__main__":
    main(*sys.argv[1:])
