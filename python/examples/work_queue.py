"""A work queue with back-pressure: each consumer has at most AHEAD unfinished tasks, and no task is lost if a consumer dies."""

import asyncio
import multiprocessing
import os

import tieline

TASKS, CONSUMERS, AHEAD, TASK, END = 200, 3, 4, 1, 2


async def consumer(pipe, number):
    async with tieline.Context() as context, context.worker() as worker:
        tasks = worker.messages(TASK, acknowledge_later=True)
        worker.on_message(END, lambda message: tasks.close())
        pipe.send(worker.address())
        async for task in tasks:
            _ = number == 0 and task.header > TASKS // 4 and os._exit(0)  # a crash: others get the unfinished tasks
            await asyncio.sleep(0.001)  # the work
            task.acknowledge()


async def feed(worker, address, todo, finished):
    endpoint, room = worker.connect(address), asyncio.Semaphore(AHEAD)

    async def run(task):
        try:
            await endpoint.send(TASK, header=task, payload=bytes(1000), delivered=True)
            finished.add(task)
        except tieline.Error:
            todo.append(task)
        room.release()

    while len(finished) < TASKS and endpoint.error is None:
        if not todo or room.locked():
            await asyncio.sleep(0.001)
        else:
            await room.acquire()
            asyncio.ensure_future(run(todo.pop(0)))
    if endpoint.error is None:
        await endpoint.send(END, delivered=True)


async def producer(pipes):
    todo, finished = list(range(TASKS)), set()
    async with tieline.Context() as context, context.worker() as worker:
        await asyncio.gather(*(feed(worker, here.recv(), todo, finished) for here, _ in pipes))
    print(f"{len(finished)} tasks are done, by {CONSUMERS} consumers of which one has died")


def run(pipe, number):
    asyncio.run(consumer(pipe, number))


if __name__ == "__main__":
    pipes = [multiprocessing.Pipe() for _ in range(CONSUMERS)]
    for number, (_, there) in enumerate(pipes):
        multiprocessing.get_context("spawn").Process(target=run, args=(there, number)).start()
    asyncio.run(producer(pipes))
