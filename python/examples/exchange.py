"""Two processes: one reads an array from the memory of the other, and writes back its square."""

import array
import multiprocessing
import sys

import tieline

READY = 1
LENGTH = 100_000


def owner(pipe):
    with tieline.Context() as context, context.worker() as worker:
        numbers = array.array("d", range(LENGTH))
        region = context.register(numbers)
        ended = []
        worker.on_message(READY, lambda message: ended.append(message.header))
        pipe.send((worker.address(), region.key()))  # from now on, messages may arrive
        if not worker.wait_until(lambda: ended, timeout=60):
            sys.exit("the other process did not say that it is ready")
        assert all(numbers[n] == n * n for n in range(LENGTH))
        print(f"{ended[0]} numbers came back, squared")
        worker.close_region(region, timeout=60)  # the peer may still access it for a moment


def visitor(pipe):
    address, key = pipe.recv()
    with tieline.Context() as context, context.worker() as worker:
        endpoint = worker.connect(address)
        theirs = endpoint.import_key(key)
        numbers = theirs.get(array.array("d", bytes(8 * LENGTH)))
        theirs.put(array.array("d", (number * number for number in numbers)))
        endpoint.send(READY, header=len(numbers))
        print(f"over {endpoint.path()}")


def main():
    # A forked child cannot use its parent's contexts: each process opens its own.
    start = multiprocessing.get_context("spawn")
    here, there = start.Pipe()
    processes = [start.Process(target=owner, args=(here,)), start.Process(target=visitor, args=(there,))]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))


if __name__ == "__main__":
    main()
