# SPDX-License-Identifier: Apache-2.0
"""Makes system calls fail, as in a container whose seccomp filter refuses them."""
import ctypes
import errno
import os
import platform
import struct
import unittest

NUMBERS = {"x86_64": {"clone": 56, "clone3": 435, "getrandom": 318, "signalfd4": 289, "unshare": 272},
           "aarch64": {"clone": 220, "clone3": 435, "getrandom": 278, "signalfd4": 74, "unshare": 97}}
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF
ALLOW, FAIL = 0x7fff0000, 0x00050000
SET_SECCOMP, FILTER, SET_NO_NEW_PRIVILEGES = 22, 2, 38  # prctl(2)


def require():
    """Skips the test on an architecture whose system call numbers are not in NUMBERS."""
    if platform.machine() not in NUMBERS:
        raise unittest.SkipTest("system calls' numbers are not known here")


def forbid(*names, error=errno.ENOSYS):
    """From now on these system calls fail in this process and its children."""
    numbers = [NUMBERS[platform.machine()][name] for name in names]
    steps = [(LOAD, 0, 0, 0),  # the call's number
             *((JUMP_IF_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)),
             (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, FAIL | error)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(text)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0 or prctl(SET_SECCOMP, FILTER, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
