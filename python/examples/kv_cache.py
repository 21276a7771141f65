"""A fetch of a KV cache with asyncio: a decoding process asks for a sequence, and gets its blocks from the memory of the other."""

import array
import asyncio
import multiprocessing

import tieline

BLOCK, BLOCKS, SEQUENCES = 64 * 1024, 256, 16
WHERE, BLOCKS_ARE, DONE = 1, 2, 3


async def prefill(pipe):
    async with tieline.Context() as context, context.worker() as worker:
        cache = context.alloc(BLOCK * BLOCKS)
        memory = cache.view()
        for block in range(BLOCKS):
            memory[block * BLOCK : (block + 1) * BLOCK] = bytes([block]) * BLOCK
        del memory
        questions, done = worker.messages(WHERE), []
        worker.on_message(DONE, lambda message: (done.append(1), questions.close()))
        pipe.send((worker.address(), cache.key()))
        async for question in questions:
            mine = array.array("I", range(question.header, BLOCKS, SEQUENCES))  # the block table of that sequence
            await question.reply(BLOCKS_ARE, question.header, mine)


async def fetch(worker, endpoint, theirs, tables, cache, sequence):
    await endpoint.send(WHERE, header=sequence)
    table = array.array("I", (await tables.aget()).payload)
    gets = [(theirs, block * BLOCK, cache[n * BLOCK : (n + 1) * BLOCK]) for n, block in enumerate(table)]
    await endpoint.begin_get_list(gets)  # one operation for all blocks
    memory = cache.view()
    assert all(memory[n * BLOCK] == block for n, block in enumerate(table))
    return len(table)


async def decode(pipe):
    address, key = pipe.recv()
    async with tieline.Context() as context, context.worker() as worker:
        endpoint = worker.connect(address)
        theirs, tables = endpoint.import_key(key), worker.messages(BLOCKS_ARE)
        cache = context.alloc(BLOCK * BLOCKS)
        counts = [await fetch(worker, endpoint, theirs, tables, cache, sequence) for sequence in range(SEQUENCES)]
        print(f"{sum(counts)} blocks of {len(counts)} sequences, over {theirs.path()}")
        await endpoint.send(DONE, delivered=True)


def run(side, pipe):
    asyncio.run(side(pipe))


if __name__ == "__main__":
    here, there = multiprocessing.get_context("spawn").Pipe()
    other = multiprocessing.get_context("spawn").Process(target=run, args=(prefill, here))
    other.start()
    run(decode, there)
    other.join()
    raise SystemExit(other.exitcode)
