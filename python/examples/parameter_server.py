"""A parameter server with numpy: workers read the parameters from the server's memory, and send gradients as messages."""

import multiprocessing

import numpy as np

import tieline

PARAMETERS, WORKERS, STEPS, RATE = 20_000, 2, 60, 0.5
GRADIENT, DONE = 1, 2


def server(pipes):
    with tieline.Context() as context, context.worker() as worker:
        memory = context.alloc(8 * PARAMETERS)  # peers on this host map it
        parameters = memory.array("f8")
        gradients, left = worker.messages(GRADIENT), []
        worker.on_peer_failure(lambda peer, error: gradients.close(error))
        worker.on_message(DONE, lambda message: (left.append(message.peer), len(left) == WORKERS and gradients.close()))
        for pipe in pipes:
            pipe.send((worker.address(), memory.key()))
        for message in gradients:
            parameters -= RATE / WORKERS * np.frombuffer(message.data(timeout=60))
        goal = np.linspace(-1, 1, PARAMETERS)
        print(f"{STEPS} steps of {WORKERS} workers; the largest error is {abs(parameters - goal).max():.1e}")
        assert np.allclose(parameters, goal, atol=1e-6)
        del parameters  # a region with views cannot be closed
        worker.close_region(memory, timeout=60)


def trainer(pipe):
    address, key = pipe.recv()
    goal = np.linspace(-1, 1, PARAMETERS)
    with tieline.Context() as context, context.worker() as worker:
        endpoint = worker.connect(address)
        theirs = endpoint.import_key(key)
        parameters = np.empty(PARAMETERS)
        for _ in range(STEPS):
            theirs.get(parameters, timeout=60)  # straight into the array
            gradient = parameters - goal
            endpoint.send(GRADIENT, payload=gradient, delivered=True).wait(timeout=60)
        endpoint.send(DONE)


def main():
    start = multiprocessing.get_context("spawn")
    pipes = [start.Pipe() for _ in range(WORKERS)]
    processes = [start.Process(target=server, args=([here for here, _ in pipes],))]
    processes += [start.Process(target=trainer, args=(there,)) for _, there in pipes]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    raise SystemExit(max(abs(process.exitcode) for process in processes))


if __name__ == "__main__":
    main()
