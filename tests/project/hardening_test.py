#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shipped programs are hardened. Their ELF files show the options that the linker and the compiler were given."""
import os
import re
import subprocess
import sys
import unittest

BIN = os.environ["DDPRUN_BIN_DIR"]
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import runner  # noqa: E402
PROGRAMS = ("ddprun", "ddprund", "ddprunctl", "ddprun-agent", "ddprun-check", "ddprun-gpus", "ddprun-stacks", "train")
WARDEN = "ddprun-warden"  # it is linked statically, so it has no dynamic symbols


def read(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


class Hardening(unittest.TestCase):
    def check_file(self, path):
        self.assertRegex(read("-h", path), r"Type:\s+DYN", "its addresses aren't random: -pie")
        dynamic = read("-d", path)
        self.assertRegex(dynamic, r"FLAGS_1\).*\bNOW\b", "its table of functions can be written: -z now")
        self.assertRegex(dynamic, r"FLAGS_1\).*\bPIE\b")
        segments = read("-l", path)
        self.assertIn("GNU_RELRO", segments, "-z relro")
        stack = re.search(r"GNU_STACK.*", segments).group()
        self.assertNotIn("E", stack.split()[-2], "its stack can be executed")
        self.assertNotIn("RWE", segments)

    def test_each_program_has_random_addresses_and_no_table_that_can_be_written(self):
        for name in (*PROGRAMS, WARDEN):
            path = os.path.join(BIN, name)
            if os.path.exists(path) or name != "train":  # a build without LibTorch has no train
                with self.subTest(program=name):
                    self.check_file(path)

    @staticmethod
    def is_debug():
        with open(os.path.join(os.path.dirname(BIN), "CMakeCache.txt"), encoding="utf-8") as cache:
            return "CMAKE_BUILD_TYPE:STRING=Debug\n" in cache.read()

    def test_stacks_and_buffers_are_checked(self):
        for name in PROGRAMS[:4]:
            with self.subTest(program=name):
                symbols = read("--dyn-syms", os.path.join(BIN, name))
                self.assertIn("__stack_chk_fail", symbols, "-fstack-protector-strong")
                if not self.is_debug():  # this one needs optimisation
                    self.assertRegex(symbols, r"__\w+_chk@", "_FORTIFY_SOURCE")
        with self.subTest(program=WARDEN):
            self.assertIn("__stack_chk_fail", read("-s", os.path.join(BIN, WARDEN)))


if __name__ == "__main__":
    runner.main()
