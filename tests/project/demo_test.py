#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that scripts/demo.sh passes its arguments on. Fakes replace the setup, the build and the run. The README's own
test runs the whole script."""
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../.."))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402

# A fake ddprun that keeps its arguments, and writes the summary to the file that they name.
FAKE_DDPRUN = """#!/usr/bin/env python3
import json, sys
arguments = sys.argv[1:]
print("ARGUMENTS " + json.dumps(arguments))
at = [i for i, a in enumerate(arguments) if a.split("=")[0] == "--json"]
assert len(at) == 1, "--json is given %d times" % len(at)
name, _, value = arguments[at[0]].partition("=")
with open(value or arguments[at[0] + 1], "w") as f:
    json.dump({"test_accuracy": 0.9512}, f)
"""


class DemoTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name
        for path, text in (("scripts/setup.sh", "#!/bin/sh\n"), ("tools/cmake", "#!/bin/sh\necho cmake $*\n"),
                           ("scripts/build_progress.py", "#!/bin/sh\necho build $*\n"),
                           ("build/release/bin/ddprun", FAKE_DDPRUN)):
            path = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)
            os.chmod(path, 0o755)
        shutil.copy(os.path.join(SOURCE, "scripts/demo.sh"), os.path.join(self.root, "scripts/demo.sh"))
        os.mkdir(os.path.join(self.root, "tmp"))

    def demo(self, *arguments):
        env = dict(os.environ, PATH=os.path.join(self.root, "tools") + ":" + os.environ["PATH"],
                   TMPDIR=os.path.join(self.root, "tmp"))
        return subprocess.run([os.path.join(self.root, "scripts/demo.sh"), *arguments], env=env, text=True,
                              timeout=30, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def test_the_summary_goes_where_the_user_wants_it_and_only_there(self):
        path = os.path.join(self.root, "mine with a space.json")
        for arguments in (["--json", path], [f"--json={path}", "--epochs=2"], ["--epochs=2"], []):
            with self.subTest(arguments=arguments):
                done = self.demo(*arguments)
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertTrue(done.stdout.endswith("test accuracy 0.9512\n"), done.stdout)
                self.assertEqual(os.path.exists(path), path in " ".join(arguments))
                self.assertEqual(os.listdir(os.path.join(self.root, "tmp")), [])
                if os.path.exists(path):
                    os.remove(path)

    def test_a_fresh_folder_gets_each_program_of_the_readme(self):
        done = self.demo()
        self.assertRegex(done.stdout, "build build/release 0-40 [0-9]+ ddprund ddprunctl\n(.*\n)*"
                                      "build build/release 40-100 [0-9]+ ddprun ddprund ddprunctl ddprun-agent ddprun_c train pages\n")

    def test_all_that_does_without_the_download_is_built_while_it_lasts(self):
        os.mkfifo(os.path.join(self.root, "come"))
        with open(os.path.join(self.root, "scripts/setup.sh"), "w") as f:
            f.write('#!/bin/sh\ncase "$*" in *--no-torch*) ;; *) cat come ;; esac\n')
        with open(os.path.join(self.root, "scripts/build_progress.py"), "w") as f:
            f.write('#!/bin/sh\necho build $*\ncase "$*" in *" 40-65 "*) : >come ;; esac\n')
        self.assertRegex(self.demo().stdout, "build build/release 0-40 [0-9]+ ddprund ddprunctl\n"
                                             "build build/release 40-65 [0-9]+ ddprun ddprund ddprunctl ddprun-agent ddprun_c\n"
                                             "(.*\n)*build build/release 40-100 [0-9]+ ddprun .* train pages\n")

    def test_a_download_that_fails_is_shown(self):
        with open(os.path.join(self.root, "scripts/setup.sh"), "w") as f:
            f.write('#!/bin/sh\ncase "$*" in *--no-torch*) exit 0 ;; esac; echo "no network"; exit 1\n')
        done = self.demo()
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertTrue(done.stdout.endswith("no network\ndemo: failed; the reason is above\n"), done.stdout)

    def test_help_is_its_own_and_builds_and_trains_nothing(self):
        for flag in ("--help", "-h"):
            done = self.demo("--epochs=2", flag)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn("Arguments go to `train`", done.stdout)
            self.assertNotIn("demo:", done.stdout)
            self.assertNotIn("ARGUMENTS", done.stdout)

    def test_it_says_so_when_training_fails(self):
        with open(os.path.join(self.root, "build/release/bin/ddprun"), "w") as f:
            f.write("#!/bin/sh\nexit 3\n")
        done = self.demo()
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertTrue(done.stdout.endswith("demo: failed; the reason is above\n"), done.stdout)
        self.assertEqual(os.listdir(os.path.join(self.root, "tmp")), [])

    def test_the_progress_tells_no_time_before_it_can_and_ends_as_the_build_does(self):
        with open(os.path.join(self.root, "build.ninja"), "w") as f:
            f.write("rule say\n command = echo told; exit 1\nbuild out: say\n")
        for span, first_line in (("9-40", "building:   9%"), ("40-100", "building:  40%, about 2 min left")):
            began = str(time.time() - 60)
            done = subprocess.run([os.path.join(SOURCE, "scripts/build_progress.py"), self.root, span, began, "out"],
                                  text=True, timeout=30, capture_output=True)
            self.assertEqual(done.stdout.splitlines()[0], first_line)
            self.assertIn("told", done.stdout)
            self.assertEqual(done.returncode, 1, done.stderr)


if __name__ == "__main__":
    runner.main()
