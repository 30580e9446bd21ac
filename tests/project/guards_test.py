#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the checks of a change find planted faults: clang-format, clang-tidy, ccache's rules, check_skips.py."""
import json
import os
import shutil
import subprocess
import sys
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../.."))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/release/bin"))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import files  # noqa: E402
import runner  # noqa: E402

GOOD = "#include <string>\n\nstd::string good(const std::string& text) { return text; }\n"
USED_AFTER_MOVE = """#include <string>
#include <utility>

std::string bad(std::string text) {
  std::string moved = std::move(text);
  return moved + text;
}
"""
NOT_FORMATTED = "int  one( ){return 1;}\n"


class Guards(unittest.TestCase):
    def setUp(self):
        """Makes a repository of two sources, whose main branch has one old fault."""
        self.root = files.scratch(self)
        for path in ("scripts/format.sh", "scripts/tidy.py", ".clang-format", ".clang-tidy"):
            os.makedirs(os.path.dirname(os.path.join(self.root, path)), exist_ok=True)
            shutil.copy(os.path.join(SOURCE, path), os.path.join(self.root, path))
        self.write("common/old.cc", USED_AFTER_MOVE)
        self.write("common/new.cc", GOOD)
        self.write("build/tidy/compile_commands.json", json.dumps(
            [{"directory": self.root, "file": f"{self.root}/common/{name}.cc",
              "command": f"c++ -std=c++20 -I{self.root} -o x.dir/{name}.o -c {self.root}/common/{name}.cc"} for name in ("old", "new")]))
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit()

    def commit(self):
        self.git("add", "common")
        self.git("-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "-m", "change")

    def git(self, *arguments):
        subprocess.run(["git", *arguments], cwd=self.root, check=True)

    def write(self, path, text):
        os.makedirs(os.path.dirname(os.path.join(self.root, path)), exist_ok=True)
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as f:
            f.write(text)

    def run_script(self, *argv, **options):
        done = subprocess.run(argv, cwd=self.root, text=True, timeout=100, **options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def test_a_changed_file_that_is_not_formatted_is_named(self):
        self.assertEqual(self.run_script("scripts/format.sh", "--check")[0], 0)
        self.write("common/new.cc", NOT_FORMATTED)
        status, said = self.run_script("scripts/format.sh", "--check")
        self.assertEqual(status, 1, said)
        self.assertTrue(said.startswith("common/new.cc\n"), said)

    def test_clang_tidy_looks_at_each_changed_source_and_each_night_at_all(self):
        self.write("common/new.cc", GOOD + "\n")
        status, said = self.run_script("scripts/tidy.py")
        self.assertEqual((status, said), (0, "tidy: 1 of 2 sources in 1 runs, 0 with findings\n"))
        self.write("common/new.cc", USED_AFTER_MOVE.replace("bad", "worse"))
        status, said = self.run_script("scripts/tidy.py")
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"common/new\.cc:6:\d+: error: 'text' used after it was moved")
        self.assertNotIn("old.cc", said)
        for alone, runs in (([], 1), (["--alone"], 2)):
            status, said = self.run_script("scripts/tidy.py", "--all", *alone)
            self.assertEqual(status, 1, said)
            self.assertRegex(said, r"old\.cc:6:[^\0]*new\.cc:6:|new\.cc:6:[^\0]*old\.cc:6:")
            self.assertIn(f"2 of 2 sources in {runs} runs", said)

    def test_a_changed_header_without_a_source_is_read_in_one_that_includes_it(self):
        self.write("common/new.cc", '#include "common/some.h"\n' + GOOD)
        self.write("common/some.h", '#include "common/only.h"\n')
        self.write("common/only.h", "inline int f() { return 1; }\n")
        self.commit()
        self.git("checkout", "--quiet", "-b", "change")
        self.write("common/only.h", USED_AFTER_MOVE.replace("std::string bad", "inline std::string bad"))
        self.commit()
        status, said = self.run_script("scripts/tidy.py")
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"common/only\.h:6:\d+: error: 'text' used after it was moved")
        self.assertIn("tidy: 1 of 2 sources in 1 runs, 1 with findings", said)

    def test_a_changed_source_that_no_target_has_is_read_like_one_beside_it(self):
        self.write("common/stub.cc", USED_AFTER_MOVE)
        status, said = self.run_script("scripts/tidy.py")
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"common/stub\.cc:6:\d+: error: 'text' used after it was moved")
        self.assertIn("tidy: 1 of 3 sources in 1 runs, 1 with findings", said)

    def test_a_changed_file_that_clang_tidy_cannot_read_fails(self):
        for path in ("worker_sdk/torch/model.cc", "common/unused.h"):
            with self.subTest(path):
                self.write(path, GOOD)
                status, said = self.run_script("scripts/tidy.py")
                self.assertEqual((status, said), (1, f"tidy: not in this build: {path}\ntidy: 0 of 2 sources in 0 runs, 0 with findings\n"))
                os.remove(os.path.join(self.root, path))

    def test_a_clone_without_the_commit_before_the_change_has_all_sources_read(self):
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=self.root, check=True, capture_output=True, text=True).stdout
        self.write(".git/shallow", head)  # as a clone of depth 1 has it
        status, said = self.run_script("scripts/tidy.py")
        self.assertEqual(status, 1, said)
        self.assertIn("tidy: this clone doesn't have the commit before the change, so all sources are read\n", said)
        self.assertIn("tidy: 2 of 2 sources in 1 runs, 1 with findings", said)

    def test_sources_that_cannot_be_read_as_one_are_read_each_by_itself(self):
        self.write("common/old.cc", GOOD)
        status, said = self.run_script("scripts/tidy.py", "--all")
        self.assertEqual(status, 0, said)
        self.write("common/old.cc", GOOD + USED_AFTER_MOVE)
        status, said = self.run_script("scripts/tidy.py", "--all")
        self.assertEqual(status, 1, said)
        self.assertIn("'text' used after it was moved", said)
        self.assertNotIn("redefinition", said)

    def all_tests(self):
        # ctest runs in another folder, because it overwrites the log of its folder. The ctest that runs this test has
        # its log open.
        self.write("CTestTestfile.cmake", f'subdirs("{os.path.dirname(os.path.realpath(BIN))}")')
        tests = subprocess.run(["ctest", "--test-dir", self.root, "--show-only=json-v1"],
                               text=True, timeout=60, stdout=subprocess.PIPE, check=True).stdout
        tests = json.loads(tests)["tests"]
        self.assertGreater(len(tests), 100)
        return tests

    def test_the_tests_run_in_venvs_python_where_there_is_one(self):
        venv = os.path.join(SOURCE, ".venv/bin/python3")
        commands = [test.get("command", []) for test in self.all_tests()]  # no command: its program is not built
        pythons = {command[0] for command in commands if "-B" in command}
        self.assertEqual(len(pythons), 1, pythons)
        self.assertTrue(pythons == {venv} or not os.path.exists(venv), pythons)

    def test_a_new_checkout_builds_where_only_spaces_and_comments_of_a_precompiled_header_changed(self):
        shutil.copytree(os.path.join(SOURCE, "cmake"), os.path.join(self.root, "cmake"))
        self.write("cmake/headers_std.h", "")
        self.write("cmake/headers_asio.h", "")
        self.write("CMakeLists.txt", """cmake_minimum_required(VERSION 3.22)
project(ddprun CXX)
add_library(Boost::json INTERFACE IMPORTED)
set(DDPRUN_BUILD_ONCE ON)
include(cmake/DdprunTargets.cmake)
add_library(user OBJECT user.cc)
target_link_libraries(user ddprun_flags)
ddprun_compile_plainly(user)
ddprun_reuse_headers(user ddprun_headers_test_std)
""")
        for header in ("// A comment.\n#pragma once\ninline int f() { return 1; }\n",
                       "// Another.\n#pragma once\ninline int f() { return 1; }\n",
                       "// Another.\n#pragma once\ninline  int  f() { return 1; }\n"):
            self.write("tests/support/catch.h", header)
            self.write("user.cc", f'#include "tests/support/catch.h"\nint of{len(header)} = f();\n')
            status, said = self.run_script("sh", "-c", "rm -rf b && cmake -G Ninja -B b -S . && cmake --build b",
                                           env=dict(os.environ, CCACHE_DIR=self.root + "/ccache"))
            self.assertEqual(status, 0, said)

    def test_exit_status_77_alone_is_a_skip(self):
        for test in self.all_tests():
            kept = {p["name"]: p["value"] for p in test.get("properties", [])}
            self.assertNotIn("SKIP_REGULAR_EXPRESSION", kept, test["name"])
            self.assertIn(kept.get("SKIP_RETURN_CODE", 77), (77, "77"), test["name"])


if __name__ == "__main__":
    runner.main()
