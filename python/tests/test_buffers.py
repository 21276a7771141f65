"""Tests of the memory that calls accept: with gaps, by the array interface, and by DLPack."""

import array
import ctypes
import itertools
import struct
import unittest

import tieline
from support import LONG, Loopback
from tieline._buffers import MOST_PIECES, Exported, _Tensor

try:
    import numpy
except ImportError:
    numpy = None


class Interface:
    """An object with the array interface alone, as numpy's arrays of dates have it."""

    def __init__(self, data, typestr, shape, strides=None, read_only=False, start=0):
        self.data = data
        address = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data)) + start
        self.__array_interface__ = {"data": (address, read_only), "typestr": typestr, "shape": shape, "strides": strides, "version": 3}


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor of DLPack."""

    _fields_ = [("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Tensor:
    """An object with DLPack alone, as a tensor on the CPU has it."""

    def __init__(self, data, shape, strides=None, device=1):
        self.data, self.device = data, device
        numbers = ctypes.c_int64 * len(shape)
        self.shape, self.strides = numbers(*shape), numbers(*strides) if strides else None
        place = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
        self.managed = _Managed(
            _Tensor(place, 1, 0, len(shape), 2, 32, 1, self.shape, self.strides, 0), None, None
        )

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)


class Shapes(unittest.TestCase):
    def test_pieces_of_every_small_shape_are_its_bytes_in_order(self):
        data = bytearray(range(1, 241))
        flat = memoryview(data).cast("B", (4, 5, 12))
        cuts = (slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(1, 1))
        for cut in itertools.product(cuts, repeat=1):
            view = memoryview(data)[cut[0]]
            self.check(view, view.tobytes())
        self.check(flat, flat.tobytes())
        self.check(memoryview(b""), b"")

    def check(self, data, expected):
        exported = Exported(data)
        start = exported.span()[0]
        got = b"".join(ctypes.string_at(start + offset, length) for offset, length in exported.pieces())
        self.assertEqual((got[: exported.length], exported.length), (expected, len(expected)))
        exported.release()

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_pieces_of_numpy_arrays_are_their_bytes_in_order(self):
        whole = numpy.arange(4 * 5 * 6, dtype="<i2").reshape(4, 5, 6)
        cuts = (slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(2, 3))
        for cut in itertools.product(cuts, repeat=3):
            for one in (whole[cut], whole[cut].T):
                with self.subTest(cut=cut):
                    self.check(one, one.tobytes())
        for kind in ("M8[ns]", "S3", "U2", "c16", "?", "f2"):
            one = numpy.zeros((3, 4), kind)[:, ::2]
            self.check(one, one.tobytes())
        self.check(numpy.broadcast_to(numpy.arange(3, dtype="u1"), (2, 3)), bytes([0, 1, 2, 0, 1, 2]))

    def test_array_with_too_many_pieces_is_refused(self):
        exported = Exported(memoryview(bytes(2 * MOST_PIECES + 2))[::2])
        with self.assertRaisesRegex(BufferError, "make a contiguous copy"):
            list(exported.pieces())


class Transfers(Loopback):
    def test_array_with_gaps_is_put_and_got_by_pieces(self):
        key = self.key_of(self.context.alloc(4096))
        key.put(memoryview(bytes(range(100)))[10:20:3], offset=5)
        self.assertEqual(key.get(bytearray(4), offset=5), bytes([10, 13, 16, 19]))
        into = bytearray(9)
        key.get(memoryview(into)[::-2], offset=5 - 1)
        self.assertEqual(into, bytes([19, 0, 16, 0, 13, 0, 10, 0, 0]))
        self.me.send(1, 0, memoryview(b"a-b-c-")[::2])
        self.assertEqual(self.arrived(1).payload, b"abc")

    def test_array_interface_is_accepted_where_the_buffer_protocol_fails(self):
        data = bytearray(struct.pack("<6q", *range(6)))
        key = self.key_of(self.context.alloc(4096))
        key.put(Interface(data, "<M8[ns]", (3,), (16,), start=8))
        self.assertEqual(key.get(array.array("q", bytes(24))), array.array("q", [1, 3, 5]))
        key.get(Interface(data, "<M8[ns]", (2,), start=0))
        self.assertEqual(struct.unpack("<6q", data), (1, 3, 2, 3, 4, 5))
        self.me.send(1, 0, Interface(data, "<M8[ns]", (2,)))
        self.assertEqual(self.arrived(1).payload, bytes(data[:16]))
        with self.assertRaises(BufferError):
            key.get(Interface(data, "<i8", (2,), read_only=True))
        with self.assertRaises(TypeError):
            key.put(Interface(data, "|O", (2,)))

    def test_tensor_of_the_cpu_is_accepted_and_another_is_refused(self):
        data = bytearray(struct.pack("<6f", *range(6)))
        key = self.key_of(self.context.alloc(4096))
        key.put(Tensor(data, (2, 2), (3, 1)))
        self.assertEqual(key.get(array.array("f", bytes(16))), array.array("f", [0, 1, 3, 4]))
        key.get(Tensor(data, (2,)), offset=8)
        self.assertEqual(struct.unpack("<6f", data), (3, 4, 2, 3, 4, 5))
        with self.assertRaisesRegex(BufferError, "copy it to the CPU"):
            key.put(Tensor(data, (2,), device=2))

    def test_memory_of_the_program_is_registered_by_each_way(self):
        data = bytearray(64)
        for owner in (data, Interface(data, "<i8", (8,)), Tensor(data, (16,))):
            region = self.context.register(owner)
            self.me.import_key(region.key()).put(b"new")
            self.assertEqual(data[:3], b"new")
            data[:3] = bytes(3)
            self.worker.close_region(region, timeout=LONG)
        with self.assertRaises(BufferError):
            self.context.register(memoryview(data)[::2])

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy_arrays_go_in_and_out_without_copies(self):
        memory = self.context.alloc(8 * 1000)
        there = memory.array("f8", (10, 100))
        key = self.key_of(memory)
        sent = numpy.arange(1000.0).reshape(10, 100)
        key.put(sent)
        self.assertTrue((there == sent).all())
        into = numpy.zeros((10, 50))
        key.get(into[:, ::2][:, :10])
        self.assertTrue((into[:, :20:2].ravel() == numpy.arange(100.0)).all())
        dates = numpy.array(["2026-11-29", "2026-11-30"], "M8[s]")
        key.put(dates)
        self.assertTrue((there.ravel()[:2].view("M8[s]") == dates).all())
        for objects in (numpy.array([None]), numpy.zeros(1, [("Offset", "i4"), ("a", "O")])):
            for call in (lambda: key.put(objects), lambda: key.get(objects[::-1]), lambda: self.me.send(1, 0, objects)):
                with self.assertRaisesRegex(TypeError, "Python objects"):
                    call()
        key.put(numpy.zeros(1, [("Offset", "i4")]))
        with self.assertRaises(BufferError):
            memory.close()
        del there


if __name__ == "__main__":
    unittest.main()
