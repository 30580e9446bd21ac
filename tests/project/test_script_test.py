#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/test.sh and torch_versions.sh: what they install, run and report. Fakes replace the setup and the runs."""
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../.."))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402
NIGHTLY = ("soak.sh", "wheel_check.sh", "debian_packages.sh", "image_check.sh", "release_check.sh", "torch_versions.sh")


class TestScriptTest(unittest.TestCase):
    def setUp(self):
        # A script's children may still write to the folder while they end.
        directory = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(directory.cleanup)
        self.scripts = os.path.join(directory.name, "scripts")
        os.mkdir(self.scripts)
        for name in ("test.sh", "test_behind.sh"):
            shutil.copy(os.path.join(SOURCE, "scripts", name), self.scripts)
        for name in ("setup.sh", "check_arrows.py", "check_english.py", "check_hidden_names.py", "check_skips.py",
                     "check_test_names.py", "format.sh", "fuzz.sh", *NIGHTLY):
            path = os.path.join(self.scripts, name)
            with open(path, "w") as f:
                f.write(f'#!/bin/sh\necho "{name} $*"\n')
            os.chmod(path, 0o755)

    def set_up_for(self, *arguments):
        done = subprocess.run([os.path.join(self.scripts, "test.sh"), *arguments], text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.splitlines()[0]

    def test_the_checks_alone_need_no_pytorch(self):
        self.assertEqual(self.set_up_for("--only", "checks"), "setup.sh checks")
        self.assertEqual(self.set_up_for("--skip=release"), "setup.sh checks")

    def test_the_checks_run_each_check_of_the_tree_and_its_own_test_first(self):
        done = subprocess.run([os.path.join(self.scripts, "test.sh"), "--only=checks"], text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wanted = ["format.sh --check"]
        for name in (name for name in os.listdir(os.path.join(SOURCE, "scripts")) if name.startswith("check_")):
            with open(os.path.join(SOURCE, "scripts", name), encoding="utf-8") as f:
                own_test = [f"{name} --self-test"] if "--self-test" in f.read() else []
            wanted += [*own_test, f"{name} {'tests/allowed_skips.txt' if name == 'check_skips.py' else ''}"]
        said = done.stdout.split("=== checks\n")[1].split("===")[0].splitlines()
        self.assertEqual(sorted(said), sorted(wanted))
        for self_test in (line for line in wanted if line.endswith("--self-test")):
            self.assertTrue(said[said.index(self_test) + 1].startswith(self_test.split()[0]), said)

    def test_other_parts_need_all_and_the_wheels_come_beside_the_build(self):
        status, output = self.run_asan(ctest="echo '100% tests passed, 0 tests failed out of 3'")
        self.assertEqual((status, output.splitlines()[0]), (0, "setup.sh full --no-torch"), output)
        with open(os.path.join(self.scripts, "../build/test-wheels.log")) as f:
            self.assertEqual(f.read(), "setup.sh full\n")

    def test_wheels_that_cannot_be_fetched_fail_the_parts_that_need_them(self):
        with open(os.path.join(self.scripts, "setup.sh"), "w") as f:
            f.write('#!/bin/sh\ncase "$*" in *--no-torch*) exit 0 ;; esac; echo "no network"; exit 1\n')
        for part in ("asan", "tidy"):
            done = subprocess.run([os.path.join(self.scripts, "test.sh"), "--only", part], text=True, timeout=120,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("\nno network\n", done.stdout)
            self.assertIn(f"test: {part}: the wheels could not be installed\ntest: FAILED: {part};", done.stdout)

    def in_a_new_clone(self, accuracy, ddprund):
        """Runs the demo part with a fake demo, which trains to `accuracy` and leaves the program `ddprund`."""
        binaries = os.path.join(self.scripts, "../build/release/bin")
        path = os.path.join(self.scripts, "demo.sh")
        with open(path, "w") as f:
            f.write(f"""#!/bin/sh
mkdir -p '{binaries}'
printf '#!/bin/sh\\n{ddprund}\\n' >'{binaries}/ddprund'; chmod +x '{binaries}/ddprund'
echo 'file(INSTALL DESTINATION "${{CMAKE_INSTALL_PREFIX}}/bin" TYPE PROGRAM RENAME ddprunctl FILES "{binaries}/ddprund")' >build/release/cmake_install.cmake
echo 'demo: trained on the digits with 2 processes: test accuracy {accuracy}'
""")
        os.chmod(path, 0o755)
        done = subprocess.run([os.path.join(self.scripts, "test.sh"), "--only=demo"], text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def test_deepspeed_without_its_header_fails_the_versions_of_pytorch(self):
        """A python3 stands in that installs nothing and whose tests pass: it has no Python.h."""
        shutil.copy(os.path.join(SOURCE, "scripts/torch_versions.sh"), self.scripts)
        python = """folder=$3
[ "$1 $2" = "-m venv" ] || { case "$*" in *'"Python.h"'*) exit 1 ;; *metadata*) echo 7 ;; esac; exit 0; }
mkdir -p "$folder/bin"
cp "$0" "$folder/bin/python"
"""
        environment = self.with_tools(python3=python, ddprun="exit 0", ddprund="exit 0")
        environment["DDPRUN_BIN_DIR"] = os.path.join(self.scripts, "tools")
        done = subprocess.run([os.path.join(self.scripts, "torch_versions.sh"), "2.15.0", "deepspeed"], text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        self.assertIn("| passed | passed | passed | passed | passed |", done.stdout)
        self.assertIn("\nDeepSpeed 7 with PyTorch 2.15.0: failed (no Python.h, ", done.stdout)
        self.assertEqual(done.returncode, 1)

    def test_the_demo_comes_before_anything_is_installed_in_a_new_clone(self):
        status, output = self.in_a_new_clone("0.9612", "echo ddprund 1")
        self.assertEqual(status, 0, output)
        self.assertLess(output.index("ddprund 1"), output.index("setup.sh"))
        self.assertIn("test: all passed: demo ", output)

    def test_a_demo_that_is_not_run_is_told_and_not_counted_as_passed(self):
        os.makedirs(os.path.join(self.scripts, "../build/release"))
        with open(os.path.join(self.scripts, "../build/release/CMakeCache.txt"), "w", encoding="utf-8"):
            pass
        done = subprocess.run([os.path.join(self.scripts, "test.sh"), "--ci", "--only=demo,checks"], text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        said = r"\ntest: not run: demo: build/release is there, so this clone isn't new\ntest: all passed: checks \d+s \(\d+ s\)\n$"
        self.assertRegex(done.stdout, said)

    def test_a_demo_that_learns_too_little_or_leaves_no_daemon_fails(self):
        for accuracy, ddprund, said in (("0.9596", "exit 0", "demo: test accuracy '0.9596', not 0.96"),
                                        ("0.9712", "exit 1", "demo: there is no ddprund")):
            status, output = self.in_a_new_clone(accuracy, ddprund)
            self.assertEqual(status, 1, output)
            self.assertIn(f"test: {said}\ntest: FAILED: demo;", output)

    def test_a_flag_without_its_value_is_one_line_and_2(self):
        for arguments, text in ((["--only"], "--only needs a part; there are: demo checks"), (["--skip"], "--skip needs a part"),
                                (["--only="], "--only needs a part"), (["--jobs"], "--jobs needs a number from 1"),
                                (["--jobs=x"], "--jobs needs a number from 1, not 'x'")):
            with self.subTest(arguments):
                done = subprocess.run([os.path.join(self.scripts, "test.sh"), *arguments], text=True, timeout=120,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertEqual((done.returncode, done.stdout.count("\n")), (2, 1), done.stdout)
                self.assertIn(f"test: {text}", done.stdout)

    def with_tools(self, **tools):
        """Returns an environment in which each tool is a given shell script."""
        directory = os.path.join(self.scripts, "tools")
        os.mkdir(directory)
        for name, what in tools.items():
            with open(os.path.join(directory, name), "w") as f:
                f.write(f"#!/bin/sh\n{what}\n")
            os.chmod(os.path.join(directory, name), 0o755)
        return {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}

    def test_the_last_lines_say_which_tests_failed(self):
        log = os.path.join(self.scripts, "../build/asan/Testing/Temporary/LastTestsFailed.log")
        os.makedirs(os.path.dirname(log))
        failing = f"echo '12:first test' > '{log}'; echo '50% tests passed, 1 tests failed out of 2'; exit 8"
        done = subprocess.run([os.path.join(self.scripts, "test.sh"), "--only=checks,asan"], text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=self.with_tools(cmake="exit 0", ctest=failing))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.splitlines()[-3:-1], ["50% tests passed, 1 tests failed out of 2",
                                                           "test: asan: failed twice: first test;"])
        self.assertIn("test: FAILED: asan; passed: checks", done.stdout)

    def test_a_build_that_fails_is_shown_and_the_rest_goes_on(self):
        cmake = 'case "$*" in *asan*) echo "a.cc:1: error: no compiler"; exit 1 ;; esac'
        done = subprocess.run([os.path.join(self.scripts, "test.sh"), "--ci", "--skip=demo,checks,tidy"], text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=self.with_tools(cmake=cmake, ctest="echo '100% tests passed, 0 tests failed out of 3'"))
        self.assertEqual(done.returncode, 1, done.stdout)
        said = "a.cc:1: error: no compiler\n"
        self.assertIn("\n" + said, done.stdout)
        self.assertRegex(done.stdout, r"\n100% tests passed, 0 tests failed out of 3\ntest: asan: the build failed: " + said +
                                      r"test: FAILED: asan; passed: release \d+s tsan \d+s fuzz \d+s \(\d+ s\)\n$")

    def test_a_build_without_the_loaders_of_cuda_and_nccl_fails_ci_only(self):
        tools = self.with_tools(cmake="echo '--   CUDA, NCCL   off (headers not found …)'", ctest="echo '100% tests passed, 0 tests failed out of 3'")
        why = "test: release: built without CUDA and NCCL: there is no cuda_runtime_api.h or no nccl.h\ntest: FAILED: release"
        for level, said in ((["--ci"], why), (["--nightly"], why), ([], "test: all passed: release ")):
            with self.subTest(level):
                done = subprocess.run([os.path.join(self.scripts, "test.sh"), *level, "--only=release"], text=True, timeout=120,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=tools)
                self.assertIn(said, done.stdout)

    def test_the_release_part_builds_the_programs_of_the_gpu_check(self):
        tools = self.with_tools(cmake='echo "cmake $*"', ctest="exit 0")
        subprocess.run([os.path.join(self.scripts, "test.sh"), "--ci", "--only=release"], timeout=120, env=tools,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        with open(os.path.join(self.scripts, "../build/test-release.log"), encoding="utf-8") as f:
            self.assertRegex(f.read(), r"cmake --preset release .*-DDDPRUN_BUILD_BENCH=ON\ncmake --build build/release .* gpu_programs\n")

    def test_each_level_leaves_out_what_another_one_has(self):
        tools = self.with_tools(cmake="exit 0", ctest='echo "ctest $*"')
        for level, left_out in (([], "nightly|torch"), (["--ci", "--only=release"], "nightly"),
                                (["--nightly", "--only=release"], "none")):
            with self.subTest(level):
                done = subprocess.run([os.path.join(self.scripts, "test.sh"), *level], text=True, timeout=120,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=tools)
                self.assertRegex(done.stdout, rf"ctest .*/?build/release .*-LE {re.escape(left_out)}\n")

    def test_soak_and_packages_are_parts_of_each_night_and_of_no_other_run(self):
        for name in (script.removesuffix(".sh") for script in NIGHTLY):
            path = os.path.join(self.scripts, name + ".sh")
            with open(path, "w", encoding="utf-8") as f:
                f.write(f'#!/bin/sh\necho "{name} $*"\n[ {name} != image_check ]\n')
            os.chmod(path, 0o755)
        run = [os.path.join(self.scripts, "test.sh"), "--only=soak,packages"]
        done = subprocess.run([*run, "--nightly"], text=True, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("\nsoak \n", done.stdout)
        self.assertIn("wheel_check \ndebian_packages --check\nimage_check \nrelease_check \ntorch_versions \n", done.stdout)
        said = (r"\ntest: soak +\d+ core-seconds of 28800, +\d+ s\ntest: packages +\d+ core-seconds of 28800, +\d+ s\n"
                r"test: packages: image_check.sh failed\ntest: FAILED: packages; passed: soak \d+s")
        self.assertRegex(done.stdout, said)
        done = subprocess.run([*run, "--ci"], text=True, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 2, done.stdout)

    def test_each_night_readmes_line_runs_in_a_new_clone(self):
        tools = self.with_tools(cmake="exit 0", ctest='echo "$PWD: ctest $*, ${DDPRUN_NIGHTLY:-by day}"; exit $STATUS')
        root = os.path.realpath(os.path.join(self.scripts, ".."))
        for command in (("init", "--quiet"), ("add", "scripts"),
                        ("-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "--message=base")):
            subprocess.run(["git", *command], cwd=root, check=True, timeout=60)
        for status in (0, 1):
            done = subprocess.run([os.path.join(self.scripts, "test.sh"), "--nightly", "--only=clone"], text=True, timeout=120,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**tools, "STATUS": str(status)})
            self.assertEqual(done.returncode, status, done.stdout)
            self.assertRegex(done.stdout, rf"\n{re.escape(root)}/build/clone: ctest .* -LE nightly\|torch, by day\n")
            self.assertRegex(done.stdout, r"\ntest: clone +\d+ core-seconds of  2600, +\d+ s\n")

    def test_clang_tidy_reads_libtorchs_users_too_and_each_night_all_sources(self):
        path = os.path.join(self.scripts, "tidy.py")
        with open(path, "w", encoding="utf-8") as f:
            f.write('#!/bin/sh\necho "tidy.py $*"\n')
        os.chmod(path, 0o755)
        tools = self.with_tools(cmake='echo "$*" >&2')
        for level, arguments in (("--ci", ""), ("--nightly", "--all --alone")):
            done = subprocess.run([os.path.join(self.scripts, "test.sh"), level, "--only=tidy"], text=True, timeout=120,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=tools)
            self.assertRegex(done.stdout, rf"-DDDPRUN_WITH_TORCH=ON .*\ntidy\.py {arguments}\n")

    def test_warnings_are_errors_in_folders_that_begin_under_ci_and_in_no_user_s(self):
        tools = self.with_tools(cmake='echo "warnings as errors: $DDPRUN_WERROR."', ctest="exit 0")
        log = os.path.join(self.scripts, "../build/test-release.log")
        for level, said in (([], ""), (["--ci"], "ON"), (["--nightly"], "ON")):
            with self.subTest(level):
                subprocess.run([os.path.join(self.scripts, "test.sh"), *level, "--only=release"], timeout=120, env=tools,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
                with open(log, encoding="utf-8") as f:
                    self.assertEqual(set(f.read().splitlines()), {f"warnings as errors: {said}."})

    def test_the_demo_of_ci_has_warnings_as_errors_since_its_folder_is_tested_later(self):
        with open(os.path.join(self.scripts, "demo.sh"), "w", encoding="utf-8") as f:
            f.write('#!/bin/sh\necho "warnings as errors: $DDPRUN_WERROR."\n')
        os.chmod(f.name, 0o755)
        for level, said in (([], ""), (["--ci"], "ON")):
            with self.subTest(level):
                done = subprocess.run([os.path.join(self.scripts, "test.sh"), *level, "--only=demo"], text=True, timeout=120,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertIn(f"\nwarnings as errors: {said}.\n", done.stdout)

    def test_all_that_is_compiled_has_warnings_as_errors_where_the_variable_says_so(self):
        build = os.path.join(self.scripts, "build")
        done = subprocess.run(["cmake", "-S", SOURCE, "-B", build, "-G", "Ninja", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
                               "-DDDPRUN_WITH_TORCH=OFF"], text=True, timeout=200, env={**os.environ, "DDPRUN_WERROR": "ON"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
            commands = json.load(f)
        self.assertTrue(commands)
        self.assertEqual([each["file"] for each in commands if " -Werror " not in each["command"]], [])

    def test_the_soak_gives_each_run_of_all_tests_twenty_minutes(self):
        shutil.copy(os.path.join(SOURCE, "scripts/soak.sh"), self.scripts)
        os.makedirs(os.path.join(self.scripts, "../build/release"))
        limit = os.path.join(self.scripts, "limit")
        tools = self.with_tools(timeout=f"echo $2 >{limit}")
        for scale in (50, 100, 1000):
            done = subprocess.run([os.path.join(self.scripts, "soak.sh"), "--only", "repeat", "--scale", str(scale)], text=True, timeout=60,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=tools)
            num_runs = int(re.search(r"without LibTorch, (\d+) times", done.stdout)[1])
            with open(limit, encoding="utf-8") as f:
                self.assertEqual(int(f.read()), 1200 * num_runs)

    def failing_at_first(self, names, preset="asan"):
        """Returns a fake ctest whose first run fails these tests, and whose second run passes."""
        log = os.path.join(self.scripts, f"../build/{preset}/Testing/Temporary/LastTestsFailed.log")
        os.makedirs(os.path.dirname(log))
        lines = "\\n".join(f"{number}:{name}" for number, name in enumerate(names))
        return (f"case \"$*\" in *--rerun-failed*) echo '100% tests passed, 0 tests failed out of {len(names)}'; exit 0 ;; esac\n"
                f"printf '{lines}\\n' > '{log}'; echo '50% tests passed'; exit 8")

    def run_asan(self, **tools):
        done = subprocess.run([os.path.join(self.scripts, "test.sh"), "--only=asan"], text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.with_tools(cmake="exit 0", **tools))
        return done.returncode, done.stdout

    def test_one_flaky_test_is_reported(self):
        status, output = self.run_asan(ctest=self.failing_at_first(["a b"]))
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"test: all passed: asan .*; flaky, passed at the second try only: asan: a b; \n$")

    def test_two_flaky_tests_fail_the_run(self):
        status, output = self.run_asan(ctest=self.failing_at_first(["a b", "c"]))
        self.assertEqual(status, 1, output)
        self.assertIn("test: FAILED: 2 flaky tests;", output)

    def test_a_skip_that_is_not_allowed_fails_the_run(self):
        with open(os.path.join(self.scripts, "check_skips.py"), "w") as f:
            f.write("#!/bin/sh\necho 'not allowed: a: no root'; exit 1\n")
        status, output = self.run_asan(ctest="echo '100% tests passed, 0 tests failed out of 3'")
        self.assertEqual(status, 1, output)
        self.assertIn("test: asan: a skip is not allowed: a: no root;\ntest: FAILED: asan;", output)

    def test_a_test_that_fails_and_is_skipped_at_its_second_try_fails_the_run(self):
        shutil.copy(os.path.join(SOURCE, "scripts/check_skips.py"), self.scripts)
        build = os.path.join(self.scripts, "../build/asan")
        os.makedirs(os.path.join(self.scripts, "../tests"))
        os.makedirs(build)
        for path, text in (("../tests/allowed_skips.txt", ""),
                           ("first", '<testsuite><testcase name="a" status="fail"><failure/></testcase></testsuite>'),
                           ("second", '<testsuite><testcase name="a" status="notrun"><skipped/></testcase></testsuite>')):
            with open(os.path.join(self.scripts, path), "w", encoding="utf-8") as f:
                f.write(text)
        status, output = self.run_asan(ctest=f"""results() {{ while [ "$1" != --output-junit ]; do shift; done; echo '{build}/'"$2"; }}
case "$*" in *--rerun-failed*) cp '{self.scripts}/second' "$(results "$@")"; exit 0 ;; esac
cp '{self.scripts}/first' "$(results "$@")"; exit 8""")
        self.assertEqual(status, 1, output)
        self.assertIn("test: asan: a skip is not allowed: a: no reason given;\ntest: FAILED: asan;", output)

    def test_a_part_over_its_budget_of_core_seconds_fails(self):
        spin = "sh -c 'ulimit -t 2; while :; do :; done'; echo '100% tests passed, 0 tests failed out of 3'"
        with open(os.path.join(self.scripts, "soak.sh"), "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\n{spin}\n")
        tools = self.with_tools(cmake="exit 0", ctest=spin)
        for part, level in (("asan", "--ci"), ("soak", "--nightly")):
            with self.subTest(part):
                done = subprocess.run([os.path.join(self.scripts, "test.sh"), level, "--only", part], text=True, timeout=120,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**tools, "DDPRUN_TEST_BUDGET": "0"})
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertRegex(done.stdout, rf"test: {part}: [1-9]\d* core-seconds, over its budget of 0\n")

    def test_a_build_behind_the_tests_ends_with_the_script(self):
        began = os.path.join(self.scripts, "began")
        os.mkfifo(began)
        script = subprocess.Popen([os.path.join(self.scripts, "test.sh"), "--only=asan"], stdout=subprocess.DEVNULL,
                                  env=self.with_tools(cmake=f"echo $$ >'{began}'; exec sleep 100"))
        with open(began) as f:
            build = os.pidfd_open(int(f.read()))
        script.terminate()
        script.wait(timeout=120)
        self.assertTrue(select.select([build], [], [], 120)[0], "the build goes on")
        os.close(build)


if __name__ == "__main__":
    runner.main()
