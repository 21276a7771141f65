"""The memory of Python objects: the buffer protocol, the array interface of numpy, and DLPack."""

from __future__ import annotations

import ctypes
import itertools
from ctypes import POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, Iterator, Optional

from . import _c

_WRITABLE, _FORMAT, _STRIDED = 1, 4, 0x18  # PyBUF_WRITABLE, PyBUF_FORMAT, PyBUF_STRIDES
#: The maximum number of pieces of one buffer. The library keeps some 64 bytes for each piece until the operation has ended.
MOST_PIECES = 1 << 16


class _Tensor(Structure):
    """DLTensor of DLPack."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Versioned(Structure):
    """The beginning of DLManagedTensorVersioned of DLPack 1."""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, c_char_p], c_void_p
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.argtypes, _capsule_name.restype = [ctypes.py_object], c_char_p
_CPU, _READ_ONLY = 1, 1


class _Objects(TypeError):
    """An array whose bytes are pointers to Python objects."""

    def __init__(self) -> None:
        super().__init__("an array of Python objects has no bytes to transfer")


class Exported:
    """The memory of an object, kept in place until it is released.

    `strides` are in bytes, and None for a contiguous object. `length` is the number of bytes of the elements.
    """

    def __init__(self, data: Any, writable: bool = False) -> None:
        self.view: Optional[_c.Buffer] = None
        self.owner: Any = data
        self.address, self.length = 0, 0
        self.shape: tuple = ()
        self.strides: Optional[tuple] = None
        self.item = 1
        try:
            self._by_buffer(data, writable)
        except _Objects:
            raise
        except (BufferError, TypeError, ValueError) as error:
            # numpy exports no buffer of some types, such as dates.
            interface = getattr(data, "__array_interface__", None)
            if isinstance(interface, dict):
                self._by_interface(interface, writable)
            elif hasattr(data, "__dlpack__") and hasattr(data, "__dlpack_device__"):
                self._by_dlpack(data, writable)
            else:
                raise error

    def _by_buffer(self, data: Any, writable: bool) -> None:
        view = _c.Buffer()
        _c.get_buffer(data, byref(view), _FORMAT | _STRIDED | (_WRITABLE if writable else 0))
        if view.format and b"O" in b"".join(view.format.split(b":")[::2]):
            _c.release_buffer(byref(view))
            raise _Objects()
        self.view, self.address, self.length, self.item = view, view.buf or 0, view.len, view.itemsize
        if view.ndim and view.shape and view.strides:
            numbers = ctypes.c_ssize_t * view.ndim
            self.shape = tuple(numbers.from_address(view.shape))
            self._strided(tuple(numbers.from_address(view.strides)))

    def _strided(self, strides: tuple) -> None:
        expected = self.item
        for size, stride in zip(reversed(self.shape), reversed(strides)):
            if size != 1 and stride != expected and self.length:
                self.strides = strides
            expected *= size

    def _by_interface(self, interface: dict, writable: bool) -> None:
        kind = interface["typestr"]
        if "O" in kind:
            raise _Objects()
        self.address, is_read_only = interface["data"]
        if is_read_only and writable:
            raise BufferError("the array is read-only")
        shape = tuple(interface["shape"])
        self.item = int(kind[2:].split("[")[0]) * (4 if kind[1] == "U" else 1)
        self._lay(shape, interface.get("strides"))

    def _by_dlpack(self, data: Any, writable: bool) -> None:
        if data.__dlpack_device__()[0] != _CPU:
            raise BufferError("the tensor is not in host memory: copy it to the CPU first")
        try:
            capsule = data.__dlpack__(max_version=(1, 0))
        except TypeError:  # a producer of an earlier DLPack
            capsule = data.__dlpack__()
        name = _capsule_name(capsule)
        place = _capsule_pointer(capsule, name)
        if name == b"dltensor_versioned":
            managed = _Versioned.from_address(place)
            tensor, is_read_only = managed.tensor, managed.flags & _READ_ONLY
        else:
            tensor, is_read_only = _Tensor.from_address(place), 0
        if is_read_only and writable:
            raise BufferError("the tensor is read-only")
        # The capsule ends the export when it is collected.
        self.owner = (data, capsule)
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.item = tensor.bits * tensor.lanes // 8
        shape = tuple(tensor.shape[n] for n in range(tensor.ndim))
        strides = tuple(tensor.strides[n] * self.item for n in range(tensor.ndim)) if tensor.strides else None
        self._lay(shape, strides)

    def _lay(self, shape: tuple, strides: Optional[tuple]) -> None:
        self.shape, self.length = shape, self.item
        for size in shape:
            self.length *= size
        if strides is not None:
            self._strided(tuple(strides))

    def contiguous(self) -> Exported:
        """Returns this object, or raises `BufferError` if its elements are not contiguous in C order."""
        if self.strides is not None:
            self.release()
            raise BufferError("the elements are not contiguous in C order")
        return self

    def span(self) -> tuple:
        """Returns the lowest address of an element, and the number of bytes up to the end of the highest one."""
        if self.strides is None:
            return self.address, self.length
        reach = [(size - 1) * stride for size, stride in zip(self.shape, self.strides)]
        low = sum(step for step in reach if step < 0)
        return self.address + low, sum(abs(step) for step in reach) + self.item

    def pieces(self) -> Iterator:
        """Yields (offset in the span, length) for each run of adjacent bytes, in C order."""
        if self.strides is None:
            yield 0, self.length
            return
        start, run, inner = self.address - self.span()[0], self.item, len(self.shape)
        while inner and (self.strides[inner - 1] == run or self.shape[inner - 1] == 1):
            inner -= 1
            run *= self.shape[inner]
        count = self.length // run
        if count > MOST_PIECES:
            self.release()
            raise BufferError(f"the array has {count} separate runs of bytes, at most {MOST_PIECES} are transferred: make a contiguous copy")
        steps = [range(0, size * stride, stride) if stride else [0] * size for size, stride in zip(self.shape[:inner], self.strides)]
        for steps_taken in itertools.product(*steps):
            yield start + sum(steps_taken), run

    def release(self) -> None:
        """Ends the export."""
        view, self.view, self.owner = self.view, None, None
        if view is not None:
            _c.release_buffer(byref(view))

    def __len__(self) -> int:
        return self.length


def bytes_of(data: Any) -> bytes:
    """Returns the bytes of an address, a key or a name. A `str` raises `TypeError`."""
    if isinstance(data, bytes):
        return data
    exported = Exported(data).contiguous()
    try:
        return ctypes.string_at(exported.address, exported.length)
    finally:
        exported.release()


def word(number: int, bits: int = 64) -> int:
    """Checks the range of a number: ctypes would silently truncate a larger number."""
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{number} does not fit in {bits} bits")
    return number
