"""Memory that operations and peers access."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_size_t, c_uint64, c_void_p
from typing import Any, Iterator, Optional

from . import _c
from ._buffers import Exported, word
from ._c import lib
from ._errors import check
from ._handle import Handle, opened, output

#: Memory that a peer may still access, and whose region could not be closed. It stays for the rest of the process.
_unclosed: list = []


class Region:
    """Memory that peers access by its key. `region[begin:end]` is a part of it, for put, get and `take_into`."""

    def __init__(self, handle: int, exported: Optional[Exported] = None) -> None:
        self._owner = _Owner(handle, exported)
        self._handle = self._owner.handle
        memory, length = c_void_p(), c_size_t()
        check(lib.tieline_region_memory(handle, byref(memory), byref(length)))
        # A separate subclass has an attribute for the owner, which must outlive the memory.
        kind: Any = type("Memory", (ctypes.c_ubyte * length.value,), {})
        self._memory: Any = kind.from_address(memory.value) if length.value else kind()
        self._memory.owner = self._owner

    def __len__(self) -> int:
        """The length in bytes."""
        return len(self._memory)

    def __getitem__(self, part: slice) -> Part:
        begin, end, step = part.indices(len(self))
        if step != 1:
            raise ValueError("a part of a region is contiguous")
        return Part(self, begin, max(0, end - begin))

    def view(self) -> memoryview:
        """Returns the memory for reading and writing. The region cannot be closed while views of it exist."""
        if not self._handle.value:
            raise ValueError("this region is closed")
        return memoryview(self._memory).cast("B")

    def array(self, dtype: Any = "uint8", shape: Any = None, offset: int = 0) -> Any:
        """Returns the memory from `offset` (in bytes) as a numpy array, without a copy. The region cannot be closed while the array exists."""
        import numpy

        kind = numpy.dtype(dtype)
        if shape is None:
            shape = ((len(self) - offset) // kind.itemsize,)
        return numpy.ndarray(shape, kind, self.view(), offset)

    def key(self, with_address: bool = False) -> bytes:
        """Returns the key by which a peer accesses the region. With `with_address`, the key also reveals the region's address (`KeyInfo.address`)."""
        return output(lib.tieline_region_key_with_address if with_address else lib.tieline_region_key, self._handle.opened)

    def handle(self) -> int:
        """Returns a number of 64 bits, by which a process with an endpoint to this one can request the key (`Endpoint.key_by_handle`)."""
        number = c_uint64()
        check(lib.tieline_region_handle(self._handle.opened, byref(number)))
        return number.value

    def publish(self, number: int) -> None:
        """Publishes the key under a number of the program's choice, for `Endpoint.key_by_number` of peers, until `unpublish` or the end of the region.

        The context must permit it (`publish_keys=True`): every process that can connect to one of its workers may request the key. Raises `Busy` if
        another region of the context has the number.
        """
        check(lib.tieline_region_publish(self._handle.opened, word(number)))

    def unpublish(self, number: int) -> None:
        """Ends the publication under a number. Keys that peers have received stay valid."""
        check(lib.tieline_region_unpublish(self._handle.opened, word(number)))

    def close(self) -> None:
        """Closes the region: afterwards neither peers nor the library access its memory. Raises `Busy` while an operation or a peer may access it."""
        if self._handle.value:
            self._end(lib.tieline_region_close)

    def _end(self, end: Any, *timeout: Any) -> None:
        if sys.getrefcount(self._memory) > 2:
            raise BufferError("views of this region's memory exist; release them before it is closed")
        check(end(self._handle.value, *timeout))
        self._handle.value = None
        if self._owner.exported is not None:
            self._owner.exported.release()

    def __enter__(self) -> Region:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Owner:
    """The owner of a region's handle, shared by the region, its memory and all views. Dropping the last reference ends the region."""

    def __init__(self, handle: int, exported: Optional[Exported]) -> None:
        self.handle, self.exported = Handle(handle, "tieline_region_drop", "a region"), exported

    def __del__(self) -> None:
        if not self.handle.value or self.exported is None:
            return
        if lib.tieline_region_close(self.handle.value) < 0:
            # A peer may still access the buffer, so it is never released.
            _unclosed.append((self.handle, self.exported))
        else:
            self.handle.value = None
            self.exported.release()


class Part:
    """A contiguous part of a region: `offset` and `length` in bytes."""

    __slots__ = ("region", "offset", "length")

    def __init__(self, region: Region, offset: int, length: int) -> None:
        self.region, self.offset, self.length = region, offset, length

    def __len__(self) -> int:
        return self.length


class Local:
    """The local side of one operation: pieces of regions and of buffers. Buffers are registered until the operation has ended."""

    __slots__ = ("pieces", "count", "length", "_addresses", "_held", "_open")

    def __init__(self, context: int, data: Any, writable: bool) -> None:
        self._held: list = []
        self._open: list = []
        self._addresses: list = []
        found: list = []
        try:
            for one in data if isinstance(data, (list, tuple)) else (data,):
                self._add(context, one, writable, found)
        except BaseException:
            self.close()
            raise
        self._lay(found)

    def _add(self, context: int, one: Any, writable: bool, found: list) -> None:
        if isinstance(one, Region):
            one = Part(one, 0, len(one))
        if isinstance(one, Part):
            self._held.append(one)
            found.append((one.region._handle.opened, one.offset, one.length))
            self._addresses.append(ctypes.addressof(one.region._memory))
            return
        exported = Exported(one, writable)
        runs = list(exported.pieces()) if exported.length else [(0, 0)]
        start, length = exported.span() if exported.length else (exported.address, 0)
        try:
            region = opened(lib.tieline_context_lend, context, start, length)
        except BaseException:
            exported.release()
            raise
        self._open.append((region, exported))
        found += [(region, offset, run) for offset, run in runs]
        self._addresses += [start] * len(runs)

    def _lay(self, found: list) -> None:
        self.count = len(found)
        self.pieces = (_c.Piece * self.count)(*found)
        self.length = sum(length for _, _, length in found)

    def cut(self, length: int) -> None:
        """Shortens the pieces to `length` bytes together."""
        if self.length > length:
            found, room = [], length
            for piece in self.pieces:
                found.append((piece.region, piece.offset, min(piece.len, room)))
                room -= found[-1][2]
            self._lay([one for one in found if one[2]] or found[:1])

    def runs(self) -> Iterator:
        """Yields (address, length) for each piece."""
        for base, piece in zip(self._addresses, self.pieces):
            yield base + piece.offset, piece.len

    def close(self) -> bool:
        """Tries to release the buffers; returns whether the library has finished with all of them."""
        while self._open:
            region, exported = self._open[-1]
            if lib.tieline_region_close(region) < 0:
                return False
            self._open.pop()
            exported.release()
        self._held = []
        return True

    def __del__(self) -> None:
        if not self.close():
            _unclosed.extend(self._open)


class Pointer:
    """A mapping of a peer's memory into this process. Accesses through it are not checked."""

    def __init__(self, handle: int, memory: int, length: int) -> None:
        kind: Any = type("Mapped", (ctypes.c_ubyte * length,), {})
        self._memory: Any = kind.from_address(memory)
        self._memory.owner = Handle(handle, "tieline_pointer_drop", "a pointer")

    def view(self) -> memoryview:
        """Returns the mapped memory for reading and writing. The mapping exists while a view of it does."""
        return memoryview(self._memory).cast("B")

    def __len__(self) -> int:
        """The length in bytes."""
        return len(self._memory)
