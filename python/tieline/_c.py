"""The records and functions of tieline.h that the module uses, through ctypes. Calls let other threads run.

The calls of the data path are in `native/native.c`, which receives the addresses of its functions from here.
"""

import ctypes
import os
import pathlib
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int32, c_int64, c_size_t, c_ssize_t
from ctypes import c_uint16, c_uint32, c_uint64, c_void_p

try:
    from . import _native
except ImportError as error:
    raise ImportError(
        f"tieline._native cannot be loaded ({error}): install a wheel for this Python, or build it with `pip install ./python`"
    ) from None

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
        ("index", c_int64),
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


class WorkerParams(Structure):
    """struct tieline_worker_params."""

    _fields_ = [("size", c_size_t), ("flags", c_uint64)]


class JobPlace(Structure):
    """struct tieline_job_place."""

    _fields_ = [
        ("size", c_size_t),
        ("rank", c_size_t),
        ("ranks", c_size_t),
        ("local_rank", c_size_t),
        ("local_ranks", c_size_t),
    ]


class How(Structure):
    """struct tieline_how."""

    _fields_ = [
        ("size", c_size_t),
        ("tell", c_uint32),
        ("flags", c_uint32),
        ("user", c_uint64),
        ("counter", c_void_p),
        ("word", c_uint32),
        ("reserved", c_uint32),
    ]


class Piece(Structure):
    """struct tieline_piece."""

    _fields_ = [("region", c_void_p), ("offset", c_size_t), ("len", c_size_t)]


class Descriptor(Structure):
    """struct tieline_descriptor."""

    _fields_ = [
        ("region", c_void_p),
        ("local_offset", c_size_t),
        ("memory", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("offset", c_uint64),
    ]


class Followed(Structure):
    """struct tieline_followed."""

    _fields_ = [
        ("size", c_size_t),
        ("requests", c_void_p),
        ("request_count", c_size_t),
        ("numbers", c_void_p),
        ("number_count", c_size_t),
        ("counter", c_void_p),
    ]


class SendOptions(Structure):
    """struct tieline_send_options."""

    _fields_ = [
        ("size", c_size_t),
        ("header_bytes", c_char_p),
        ("header_len", c_size_t),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class Limits(Structure):
    """struct tieline_limits."""

    _fields_ = [("size", c_size_t)] + [
        (name, c_size_t)
        for name in ("max_message", "max_short", "max_gathered", "max_pending", "max_queued_bytes")
    ]


class KeyInfo(Structure):
    """struct tieline_key_info."""

    _fields_ = [
        ("size", c_size_t),
        ("len", c_uint64),
        ("reaches_passive_target", c_uint32),
        ("is_settling", c_uint32),
        ("max_put", c_size_t),
        ("max_get", c_size_t),
        ("max_pieces", c_size_t),
        ("address", c_uint64),
        ("has_address", c_uint32),
        ("reserved", c_uint32),
    ]


class Counted(Structure):
    """struct tieline_counted."""

    _fields_ = [
        ("size", c_size_t),
        ("done", c_uint64),
        ("failed", c_uint64),
        ("pending", c_uint64),
        ("first_failure", c_int32),
        ("first_kind", c_uint32),
        ("done_since_mark", c_uint64),
        ("failed_since_mark", c_uint64),
        ("first_index", c_int64),
    ]


class Counters(Structure):
    """struct tieline_counters."""

    _fields_ = [("size", c_size_t)] + [
        (name, c_uint64)
        for name in (
            "unknown_ids",
            "malformed",
            "emulated",
            "assisted_chunks",
            "connections",
            "failed_connections",
            "wireup_retransmissions",
            "wireup_rejections",
        )
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


TAKE_FN = CFUNCTYPE(None, c_void_p, c_size_t, c_void_p, c_size_t)

OUT_HANDLE = POINTER(c_void_p)
OUT_LEN = POINTER(c_size_t)
OUT_WORD = POINTER(c_uint64)
_POST = [c_void_p, OUT_WORD]  # `how`, and the place for the request number
_HANDLER = [c_void_p, c_void_p, c_void_p]  # the worker, the function, and its `user`
_PIECES = [c_void_p, c_size_t]

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
    "tieline_region_key_with_address": [c_void_p, c_void_p, OUT_LEN],
    "tieline_region_handle": [c_void_p, OUT_WORD],
    "tieline_region_publish": [c_void_p, c_uint64],
    "tieline_region_unpublish": [c_void_p, c_uint64],
    "tieline_region_close": [c_void_p],
    "tieline_region_drop": [c_void_p],
    "tieline_worker_open_with": [c_void_p, POINTER(WorkerParams), OUT_HANDLE],
    "tieline_worker_close": [c_void_p, c_int64],
    "tieline_worker_drop": [c_void_p],
    "tieline_worker_address": [c_void_p, c_void_p, OUT_LEN],
    "tieline_worker_name": [c_void_p, c_void_p, OUT_LEN],
    "tieline_worker_name_of_peer": [c_void_p, c_uint32, c_void_p, OUT_LEN],
    "tieline_worker_progress": [c_void_p],
    "tieline_worker_wait_until": [c_void_p, c_void_p, c_void_p, c_int64],
    "tieline_worker_wait": [c_void_p, c_int64],
    "tieline_worker_pending": [c_void_p, OUT_LEN],
    "tieline_worker_fd": [c_void_p, POINTER(c_int32)],
    "tieline_worker_arm": [c_void_p],
    "tieline_worker_waker": [c_void_p, OUT_HANDLE],
    "tieline_waker_wake": [c_void_p],
    "tieline_waker_drop": [c_void_p],
    "tieline_worker_status": [c_void_p, c_void_p, OUT_LEN],
    "tieline_worker_counters": [c_void_p, POINTER(Counters)],
    "tieline_worker_on_message": [c_void_p, c_uint16, c_void_p, c_void_p],
    "tieline_worker_on_notification": _HANDLER,
    "tieline_worker_on_endpoint_failure": _HANDLER,
    "tieline_worker_on_peer_failure": _HANDLER,
    "tieline_worker_on_peer_left": _HANDLER,
    "tieline_message_peer": [c_void_p, POINTER(c_uint32)],
    "tieline_message_header_bytes": [c_void_p, c_void_p, OUT_LEN],
    "tieline_message_announcement": [c_void_p, OUT_HANDLE],
    "tieline_message_acknowledgement": [c_void_p, OUT_HANDLE],
    "tieline_announcement_take": [c_void_p, c_void_p, c_size_t, c_size_t, *_POST],
    "tieline_announcement_take_pieces": [c_void_p, *_PIECES, *_POST],
    "tieline_announcement_refuse": [c_void_p],
    "tieline_acknowledgement_give": [c_void_p],
    "tieline_acknowledgement_drop": [c_void_p],
    "tieline_worker_close_region": [c_void_p, c_void_p, c_int64],
    "tieline_worker_connect": [c_void_p, c_void_p, c_size_t, OUT_HANDLE],
    "tieline_worker_ask_name": [c_void_p, c_void_p, c_size_t, OUT_HANDLE],
    "tieline_name_call_test": [c_void_p, OUT_HANDLE],
    "tieline_name_call_drop": [c_void_p],
    "tieline_worker_endpoint_to": [c_void_p, c_uint32, OUT_HANDLE],
    "tieline_worker_known_endpoint": [c_void_p, c_uint32, OUT_HANDLE],
    "tieline_worker_finish": [c_void_p, c_uint64, c_int64, OUT_WORD],
    "tieline_worker_test": [c_void_p, c_uint64, OUT_WORD],
    "tieline_worker_forget": [c_void_p, c_uint64],
    "tieline_worker_cancel": [c_void_p, c_uint64],
    "tieline_worker_track": [c_void_p, c_uint64, c_uint64],
    "tieline_worker_take_completed": [c_void_p, c_void_p, c_size_t, c_size_t, OUT_LEN],
    "tieline_worker_begin_flush": [c_void_p, c_void_p],
    "tieline_worker_counter": [c_void_p, OUT_HANDLE],
    "tieline_counter_read": [c_void_p, POINTER(Counted)],
    "tieline_counter_mark": [c_void_p],
    "tieline_counter_drop": [c_void_p],
    "tieline_endpoint_drop": [c_void_p],
    "tieline_endpoint_close": [c_void_p, c_uint32, *_POST],
    "tieline_endpoint_path": [c_void_p, c_void_p, OUT_LEN],
    "tieline_endpoint_peer": [c_void_p, POINTER(c_uint32)],
    "tieline_endpoint_error": [c_void_p, POINTER(Failure)],
    "tieline_endpoint_limits": [c_void_p, POINTER(Limits)],
    "tieline_endpoint_fence": [c_void_p],
    "tieline_endpoint_import_key": [c_void_p, c_void_p, c_size_t, OUT_HANDLE],
    "tieline_endpoint_key_by_handle": [c_void_p, c_uint64, c_void_p, OUT_HANDLE, OUT_WORD],
    "tieline_endpoint_key_by_number": [c_void_p, c_uint64, c_void_p, OUT_HANDLE, OUT_WORD],
    "tieline_endpoint_flush": [c_void_p, *_POST],
    "tieline_endpoint_flush_messages": [c_void_p, *_POST],
    "tieline_send": [c_void_p, c_uint16, c_uint64, c_void_p, c_size_t, *_POST],
    "tieline_send_with": [c_void_p, c_uint16, c_uint64, c_void_p, c_size_t, c_void_p, *_POST],
    "tieline_send_pieces_with": [c_void_p, c_uint16, c_uint64, *_PIECES, c_void_p, *_POST],
    "tieline_key_drop": [c_void_p],
    "tieline_key_path": [c_void_p, c_void_p, OUT_LEN],
    "tieline_key_info": [c_void_p, POINTER(KeyInfo)],
    "tieline_key_pointer": [c_void_p, OUT_HANDLE, OUT_HANDLE, OUT_LEN],
    "tieline_pointer_drop": [c_void_p],
    "tieline_put": [c_void_p, c_uint64, c_void_p, c_size_t, c_size_t, *_POST],
    "tieline_put_bytes": [c_void_p, c_uint64, c_void_p, c_size_t, *_POST],
    "tieline_get": [c_void_p, c_uint64, c_void_p, c_size_t, c_size_t, *_POST],
    "tieline_put_pieces": [c_void_p, c_uint64, *_PIECES, *_POST],
    "tieline_get_pieces": [c_void_p, c_uint64, *_PIECES, *_POST],
    "tieline_put_list": [c_void_p, *_PIECES, *_POST],
    "tieline_get_list": [c_void_p, *_PIECES, *_POST],
    "tieline_list_prepare": [c_void_p, c_uint32, *_PIECES, OUT_HANDLE],
    "tieline_list_post": [c_void_p, *_POST],
    "tieline_list_drop": [c_void_p],
    "tieline_notify": [c_void_p, c_void_p, c_uint16, c_uint64, c_void_p, c_size_t, *_POST],
    "tieline_atomic": [c_void_p, c_uint32, c_uint32, c_uint64, c_uint64, *_POST],
    "tieline_fetch": [c_void_p, c_uint32, c_uint32, c_uint64, c_uint64, c_uint64, OUT_WORD, *_POST],
    "tieline_job_open": [c_void_p, OUT_HANDLE],
    "tieline_job_close": [c_void_p],
    "tieline_job_place": [c_void_p, POINTER(JobPlace)],
    "tieline_job_set_deadline": [c_void_p, c_uint64],
    "tieline_job_publish": [c_void_p, c_uint32, c_void_p, c_size_t],
    "tieline_job_lookup": [c_void_p, c_size_t, c_uint32, c_void_p, OUT_LEN],
    "tieline_job_exchange": [c_void_p, c_void_p, c_size_t, TAKE_FN, c_void_p],
    "tieline_job_barrier": [c_void_p, c_void_p],
}

#: The functions of the library that `_native` calls, in the order of its record.
_NATIVE = (
    "last_error",
    "worker_progress",
    "worker_wait_until",
    "worker_wait",
    "worker_finish",
    "worker_take_completed",
    "send",
    "send_with",
    "context_lend",
    "region_close",
    "put_bytes",
    "put",
    "get",
    "message_peer",
    "message_header_bytes",
    "message_announcement",
    "message_acknowledgement",
    "announcement_refuse",
    "acknowledgement_drop",
)


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
        library.tieline_status_text.argtypes, library.tieline_status_text.restype = [c_int32], c_char_p
        for name, arguments in FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise ImportError(f"{path} is of another version: it has no {name}") from None
            function.argtypes = arguments
            function.restype = c_int32
        return library
    raise AssertionError


def _address(function):
    return ctypes.cast(function, c_void_p).value


lib = _load()

get_buffer = ctypes.pythonapi.PyObject_GetBuffer
get_buffer.argtypes = [ctypes.py_object, POINTER(Buffer), ctypes.c_int]
get_buffer.restype = ctypes.c_int
release_buffer = ctypes.pythonapi.PyBuffer_Release
release_buffer.argtypes = [POINTER(Buffer)]
release_buffer.restype = None

#: Tuples (function, its arguments) that end objects and could not do so, because another thread was in a call of their worker.
left: list = []

_native.bind(
    (_address(get_buffer), _address(release_buffer), *(_address(getattr(lib, f"tieline_{name}")) for name in _NATIVE)),
    left,
)
