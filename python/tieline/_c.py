"""The records and functions of tieline.h that the module uses, through ctypes. Calls let other threads run."""

import ctypes
import os
import pathlib
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int32, c_int64, c_size_t, c_ssize_t
from ctypes import c_uint16, c_uint32, c_uint64, c_void_p

SONAME = "libtieline.so.0"


class Failure(Structure):
    """struct tieline_error."""

    _fields_ = [
        ("size", c_size_t),
        ("status", c_int32),
        ("kind", c_uint32),
        ("what", c_char_p),
        ("why", c_char_p),
        ("fix", c_char_p),
        ("setting", c_char_p),
    ]


class Setting(Structure):
    """struct tieline_setting."""

    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class ContextParams(Structure):
    """struct tieline_context_params."""

    _fields_ = [
        ("size", c_size_t),
        ("settings", POINTER(Setting)),
        ("settings_count", c_size_t),
        ("flags", c_uint64),
    ]


class ArrivedMessage(Structure):
    """struct tieline_message."""

    _fields_ = [
        ("size", c_size_t),
        ("header", c_uint64),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("id", c_uint32),
        ("is_announced", c_uint32),
        ("reserved", c_void_p),
    ]


class JobPlace(Structure):
    """struct tieline_job_place."""

    _fields_ = [
        ("size", c_size_t),
        ("rank", c_size_t),
        ("ranks", c_size_t),
        ("local_rank", c_size_t),
        ("local_ranks", c_size_t),
    ]


class Buffer(Structure):
    """Py_buffer of the stable ABI of Python 3."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


MESSAGE_FN = CFUNCTYPE(None, c_void_p, POINTER(ArrivedMessage))

OUT_HANDLE = POINTER(c_void_p)
OUT_LEN = POINTER(c_size_t)
OUT_WORD = POINTER(c_uint64)
_POST = [c_void_p, OUT_WORD]  # `how`, and the place for the request number

FUNCTIONS = {
    "tieline_last_error": [POINTER(Failure)],
    "tieline_context_open": [POINTER(ContextParams), OUT_HANDLE],
    "tieline_context_close": [c_void_p],
    "tieline_context_report": [c_void_p, c_uint32, c_void_p, OUT_LEN],
    "tieline_context_alloc": [c_void_p, c_size_t, c_uint64, OUT_HANDLE],
    "tieline_context_register": [c_void_p, c_void_p, c_size_t, c_uint64, OUT_HANDLE],
    "tieline_context_lend": [c_void_p, c_void_p, c_size_t, OUT_HANDLE],
    "tieline_region_memory": [c_void_p, OUT_HANDLE, OUT_LEN],
    "tieline_region_key": [c_void_p, c_void_p, OUT_LEN],
    "tieline_region_close": [c_void_p],
    "tieline_region_drop": [c_void_p],
    "tieline_worker_open": [c_void_p, OUT_HANDLE],
    "tieline_worker_close": [c_void_p, c_int64],
    "tieline_worker_drop": [c_void_p],
    "tieline_worker_address": [c_void_p, c_void_p, OUT_LEN],
    "tieline_worker_progress": [c_void_p],
    "tieline_worker_wait": [c_void_p, c_int64],
    "tieline_worker_on_message": [c_void_p, c_uint16, MESSAGE_FN, c_void_p],
    "tieline_message_peer": [POINTER(ArrivedMessage), POINTER(c_uint32)],
    "tieline_message_announcement": [POINTER(ArrivedMessage), OUT_HANDLE],
    "tieline_announcement_take": [c_void_p, c_void_p, c_size_t, c_size_t, *_POST],
    "tieline_announcement_refuse": [c_void_p],
    "tieline_worker_close_region": [c_void_p, c_void_p, c_int64],
    "tieline_worker_connect": [c_void_p, c_void_p, c_size_t, OUT_HANDLE],
    "tieline_worker_finish": [c_void_p, c_uint64, c_int64, OUT_WORD],
    "tieline_worker_test": [c_void_p, c_uint64, OUT_WORD],
    "tieline_worker_forget": [c_void_p, c_uint64],
    "tieline_endpoint_drop": [c_void_p],
    "tieline_endpoint_path": [c_void_p, c_void_p, OUT_LEN],
    "tieline_endpoint_import_key": [c_void_p, c_void_p, c_size_t, OUT_HANDLE],
    "tieline_endpoint_flush": [c_void_p, *_POST],
    "tieline_send": [c_void_p, c_uint16, c_uint64, c_void_p, c_size_t, *_POST],
    "tieline_key_drop": [c_void_p],
    "tieline_put": [c_void_p, c_uint64, c_void_p, c_size_t, c_size_t, *_POST],
    "tieline_job_open": [c_void_p, OUT_HANDLE],
    "tieline_job_close": [c_void_p],
    "tieline_job_place": [c_void_p, POINTER(JobPlace)],
    "tieline_job_publish": [c_void_p, c_uint32, c_void_p, c_size_t],
    "tieline_job_lookup": [c_void_p, c_size_t, c_uint32, c_void_p, OUT_LEN],
    "tieline_job_barrier": [c_void_p, c_void_p],
    "tieline_get": [c_void_p, c_uint64, c_void_p, c_size_t, c_size_t, *_POST],
}


def _candidates():
    """The path of the library: the user's setting unless the process has raised rights, else the wheel's file, else the loader's search path."""
    named = os.environ.get("TIELINE_LIBRARY")
    if named and os.getuid() == os.geteuid() and os.getgid() == os.getegid():
        yield named
        return
    carried = pathlib.Path(__file__).with_name(SONAME)
    if carried.exists():
        yield str(carried)
        return
    yield SONAME


def _load():
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            raise ImportError(
                f"{path} cannot be loaded ({error}): install the package libtieline0, or set TIELINE_LIBRARY to its path"
            ) from None
        for name, arguments in FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise ImportError(f"{path} is of another version: it has no {name}") from None
            function.argtypes = arguments
            function.restype = c_int32
        return library
    raise AssertionError


lib = _load()

get_buffer = ctypes.pythonapi.PyObject_GetBuffer
get_buffer.argtypes = [ctypes.py_object, POINTER(Buffer), ctypes.c_int]
get_buffer.restype = ctypes.c_int
release_buffer = ctypes.pythonapi.PyBuffer_Release
release_buffer.argtypes = [POINTER(Buffer)]
release_buffer.restype = None
