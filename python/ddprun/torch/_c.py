# SPDX-License-Identifier: Apache-2.0
"""Calls libddprun_c.so by ctypes: its communicator, over any store of torch.distributed.

Calls let other Python threads run while they wait."""
from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any, Callable, Optional

from .. import program

TIMEOUT, PEER_LOST, CONNECTION_LOST = 2, 6, 4
UINT8 = 5
SUM, AVERAGE, MIN, MAX, PRODUCT = range(5)


class Buffer(Structure):
    _fields_ = [("data", c_void_p), ("count", c_size_t), ("dtype", c_int)]


class Call(Structure):
    _fields_ = [("timeout_ms", c_int64), ("tag", c_int)]


class _CommOptions(Structure):
    _fields_ = [("rank", c_int), ("size", c_int), ("key_prefix", c_char_p), ("timeout_ms", c_int64),
                ("init_timeout_ms", c_int64)]


_BYTES = [c_void_p, c_size_t]  # pointer and size
_SIGNATURES: dict[str, list[Any]] = {"set": [*_BYTES, *_BYTES, c_void_p], "get": [*_BYTES, c_void_p],
               "add": [*_BYTES, c_int64, POINTER(c_int64), c_void_p],
               "compare_set": [*_BYTES, *_BYTES, *_BYTES, c_void_p],
               "check": [*_BYTES, POINTER(c_int), c_void_p], "wait": [*_BYTES, c_int64, c_void_p],
               "delete_key": [*_BYTES, POINTER(c_int), c_void_p]}


_KINDS: dict[str, Any] = {name: CFUNCTYPE(c_int, c_void_p, *types) for name, types in _SIGNATURES.items()}


class _StoreCalls(Structure):
    _fields_ = list(_KINDS.items())


def _find() -> str:
    here = os.path.dirname(os.path.abspath(program.path()))
    for folder in (here, os.path.join(here, "../libexec/ddprun")):
        path = os.path.join(folder, "libddprun_c.so")
        if os.path.exists(path):
            return path
    raise FileNotFoundError("no libddprun_c.so beside %s, nor in ../libexec/ddprun: install ddprun again" % here)


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(_find())
    more = [POINTER(Call), POINTER(c_void_p)]
    for name, types in {"store_create_over": [POINTER(_StoreCalls), c_void_p, POINTER(c_void_p)],
                        "comm_create_over": [c_void_p, POINTER(_CommOptions), POINTER(c_void_p)],
                        "all_reduce": [c_void_p, Buffer, c_int, *more],
                        "reduce": [c_void_p, Buffer, c_int, c_int, *more],
                        "broadcast": [c_void_p, Buffer, c_int, *more],
                        "all_gather": [c_void_p, Buffer, Buffer, *more],
                        "reduce_scatter": [c_void_p, Buffer, Buffer, c_int, *more],
                        "send": [c_void_p, Buffer, c_int, *more], "recv": [c_void_p, Buffer, c_int, *more],
                        "recv_any": [c_void_p, Buffer, POINTER(c_int), *more],
                        "all_to_all": [c_void_p, POINTER(Buffer), POINTER(Buffer), *more],
                        "barrier": [c_void_p, POINTER(Call)], "work_wait": [c_void_p],
                        "work_test": [c_void_p, POINTER(c_int)]}.items():
        getattr(library, "ddprun_" + name).argtypes = types
    for name, types in {"store_destroy": [c_void_p], "comm_destroy": [c_void_p], "work_destroy": [c_void_p],
                        "comm_abort": [c_void_p, c_char_p], "reply_set": [c_void_p, c_char_p, c_size_t]}.items():
        function = getattr(library, "ddprun_" + name)
        function.argtypes, function.restype = types, None
    library.ddprun_error_text.restype = c_char_p
    return library


library = _load()


class Error(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def check(status: int) -> None:
    if status:
        raise Error(status, library.ddprun_error_text().decode(errors="replace"))


@cache
def _function(name: str) -> Any:
    return getattr(library, "ddprun_" + name)


class _Store:
    """The functions that the library calls for a torch.distributed.Store."""

    def __init__(self, store: Any) -> None:
        self.store = store
        made = {name: kind(self._safely(getattr(self, "_" + name))) for name, kind in _KINDS.items()}
        self.calls = _StoreCalls(**made)

    @staticmethod
    def _safely(function: Callable[..., Optional[bytes]]) -> Callable[..., int]:
        def call(_: Any, *arguments: Any) -> int:
            reply = arguments[-1]
            try:
                value = function(*arguments[:-1])
                if value is not None:
                    library.ddprun_reply_set(reply, value, len(value))
                return 0
            except Exception as error:
                text = str(error).encode()
                library.ddprun_reply_set(reply, text, len(text))
                return TIMEOUT if "imeout" in type(error).__name__ or "imeout" in str(error) else CONNECTION_LOST
        return call

    def _set(self, key: int, key_size: int, value: int, size: int) -> None:
        self.store.set(_text(key, key_size), ctypes.string_at(value, size))

    def _get(self, key: int, key_size: int) -> bytes:
        return bytes(self.store.get(_text(key, key_size)))

    def _add(self, key: int, key_size: int, delta: int, total: Any) -> None:
        total[0] = self.store.add(_text(key, key_size), delta)

    def _compare_set(self, key: int, key_size: int, expected: int, expected_size: int, desired: int,
                     desired_size: int) -> bytes:
        return bytes(self.store.compare_set(_text(key, key_size), ctypes.string_at(expected, expected_size),
                                            ctypes.string_at(desired, desired_size)))

    def _check(self, key: int, key_size: int, exists: Any) -> None:
        exists[0] = self.store.check([_text(key, key_size)])

    def _wait(self, key: int, key_size: int, timeout_ms: int) -> None:
        from datetime import timedelta
        self.store.wait([_text(key, key_size)], timedelta(milliseconds=timeout_ms))

    def _delete_key(self, key: int, key_size: int, existed: Any) -> None:
        existed[0] = self.store.delete_key(_text(key, key_size))


def _text(address: int, size: int) -> str:
    return ctypes.string_at(address, size).decode()


class Work:
    """An operation under way."""

    def __init__(self, handle: c_void_p) -> None:
        self._handle = handle

    def wait(self) -> None:
        check(library.ddprun_work_wait(self._handle))

    def is_done(self) -> bool:
        done = c_int()
        check(library.ddprun_work_test(self._handle, byref(done)))
        return done.value != 0

    def __del__(self) -> None:
        library.ddprun_work_destroy(self._handle)


class Communicator:
    """A communicator of the ranks that share a store's `prefix`. Any thread may call, but none beside destroy()."""

    def __init__(self, store: Any, prefix: str, rank: int, size: int, timeout_ms: int) -> None:
        calls, handle = _Store(store), c_void_p()
        check(library.ddprun_store_create_over(byref(calls.calls), None, byref(handle)))
        self._handle = c_void_p()
        try:
            options = _CommOptions(rank, size, prefix.encode(), timeout_ms, timeout_ms)
            check(library.ddprun_comm_create_over(handle, byref(options), byref(self._handle)))
        finally:
            library.ddprun_store_destroy(handle)

    def run(self, name: str, *arguments: Any, call: Optional[Call] = None) -> None:
        """Runs the operation, and returns when it has ended."""
        status = _function(name)(self._handle, *arguments, call, None)
        if status:
            check(status)

    def start(self, name: str, *arguments: Any, call: Optional[Call] = None) -> Work:
        handle = c_void_p()
        check(_function(name)(self._handle, *arguments, call, byref(handle)))
        return Work(handle)

    def barrier(self, call: Optional[Call] = None) -> None:
        check(library.ddprun_barrier(self._handle, call))

    def abort(self, reason: str) -> None:
        library.ddprun_comm_abort(self._handle, reason.encode())

    def destroy(self) -> None:
        """Destroys the communicator. Nobody may be waiting for its operations. Later calls fail."""
        handle = c_void_p(self._handle.value)
        self._handle.value = None  # in the object itself: a call of this thread may be about to use it
        library.ddprun_comm_destroy(handle)


def buffers(those: Sequence[Buffer]) -> Any:
    return (Buffer * len(those))(*those)
