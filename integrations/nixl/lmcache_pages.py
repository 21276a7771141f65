#!/usr/bin/env python3
"""
Moves pages of a KV cache between two processes by LMCache's own channel over NIXL, in host memory.

    lmcache_pages.py [BACKEND]

needs LMCache and torch (a build without CUDA will do: NO_CUDA_EXT=1), and a NIXL that finds the backend TIELINE. One process writes
pages to the other one, and then reads other pages of it.
"""

import asyncio
import multiprocessing
import os
import socket
import sys
import time

PAGES, SHAPE = 64, (2, 4, 256, 128)


def channel(backend, role, url):
    """An allocator of pages with LMCache's channel over its buffer."""
    import torch
    from lmcache.v1.memory_management import PagedTensorMemoryAllocator
    from lmcache.v1.transfer_channel.nixl_channel import NixlChannel

    shape, kind = torch.Size(SHAPE), torch.bfloat16
    length = shape.numel() * kind.itemsize
    pages = PagedTensorMemoryAllocator(torch.zeros(PAGES * length, dtype=torch.uint8), [shape], [kind])
    place = {"buffer_ptr": pages.buffer_ptr, "buffer_size": pages.buffer_size, "align_bytes": pages.align_bytes}
    return pages, NixlChannel(role=role, tp_rank=0, peer_init_url=url, backends=[backend], device="cpu", **place)


def receive(backend, url, pipe):
    pages, _channel = channel(backend, "receiver", url)
    for page in range(PAGES // 2, PAGES):
        pages.paged_buffers[page].fill_(page)
    pipe.send("ready")
    pipe.recv()
    right = all(bool((pages.paged_buffers[page] == 100 + page).all()) for page in range(PAGES // 2))
    pipe.send(right)
    pipe.recv()


def main():
    backend = sys.argv[1] if len(sys.argv) > 1 else "TIELINE"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{free.getsockname()[1]}"
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=receive, args=(backend, url, there), daemon=True)
    process.start()
    here.recv()
    pages, sender = channel(backend, "sender", None)
    sender.lazy_init_peer_connection("sender", "receiver", url)
    half = PAGES // 2
    for page in range(half):
        pages.paged_buffers[page].fill_(100 + page)
    objects = list(pages.free_blocks)
    begun = time.perf_counter()
    written = sender.batched_write(objects[:half], {"receiver_id": "receiver", "remote_indexes": list(range(half))})
    seconds = time.perf_counter() - begun
    here.send("written")
    assert here.recv(), "the receiver's pages differ"
    spec = {"sender_id": "receiver", "remote_indexes": list(range(half, PAGES))}
    read = asyncio.run(sender.async_batched_read(objects[half:], spec))
    assert all(bool((pages.paged_buffers[page] == page).all()) for page in range(half, PAGES)), "the pages that were read differ"
    length = written * pages.align_bytes >> 20
    print(f"{backend}: {written} pages written and {read} read by LMCache's channel; {length} MiB written in {seconds * 1e3:.1f} ms", flush=True)
    process.kill()
    # LMCache warns of each page that the interpreter frees at the end.
    os._exit(0)


if __name__ == "__main__":
    main()
