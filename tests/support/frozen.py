# SPDX-License-Identifier: Apache-2.0
"""Stops one thread of a child while its other threads run, as if it hung in a call."""
import contextlib
import ctypes
import os
import unittest

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000  # __WALL: waitpid() takes any thread, not only a process' first

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request, thread):
    if _libc.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def thread(number):
    """Stops the thread. Skips the test if the system doesn't allow to trace."""
    try:
        _ptrace(PTRACE_SEIZE, number)
    except OSError as why:
        raise unittest.SkipTest(f"no thread can be stopped here (ptrace: {why})") from None
    _ptrace(PTRACE_INTERRUPT, number)
    os.waitpid(number, WALL)  # returns when the thread has stopped
    try:
        yield
    finally:
        _ptrace(PTRACE_DETACH, number)
