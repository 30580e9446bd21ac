#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that scripts/setup.sh installs only wheels whose hash is in its lock file."""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../.."))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402

# A fake dpkg-query that reports each package as installed.
DPKG_QUERY = '#!/bin/sh\nshift 3\nfor package; do printf "installed:%s " "$package"; done\n'


class Setup(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name
        for folder in ("scripts/wheels", "tools", "wheels"):
            os.makedirs(os.path.join(self.root, folder))
        shutil.copy(os.path.join(SOURCE, "scripts/setup.sh"), os.path.join(self.root, "scripts"))
        self.write("tools/dpkg-query", DPKG_QUERY)
        os.chmod(os.path.join(self.root, "tools/dpkg-query"), 0o755)

    def write(self, name, text):
        with open(os.path.join(self.root, name), "w", encoding="utf-8") as f:
            f.write(text)

    def make_wheel(self):
        """Makes a wheel "torch" of one file. Returns its hash."""
        path = os.path.join(self.root, "wheels/torch-7-py3-none-any.whl")
        with zipfile.ZipFile(path, "w") as wheel:
            for name, text in (("torch.py", ""), ("torch-7.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 7\n"),
                               ("torch-7.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
                               ("torch-7.dist-info/RECORD", "")):
                wheel.writestr(name, text)
        with open(path, "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()

    def set_up(self, digest):
        self.write("scripts/wheels/torch.lock", f"torch==7 ; python_version > '3' \\\n    --hash=sha256:{digest}\n"
                                                "gone==1 ; python_version < '3' \\\n    --hash=sha256:00\n")
        done = subprocess.run([os.path.join(self.root, "scripts/setup.sh")], text=True, timeout=100,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, "PATH": f"{self.root}/tools:{os.environ['PATH']}", "PIP_NO_INDEX": "1",
                                   "PIP_FIND_LINKS": f"{self.root}/wheels"})
        return done.returncode, done.stdout

    def test_a_wheel_with_another_hash_is_refused(self):
        digest = self.make_wheel()
        status, output = self.set_up("0" * 64)
        self.assertEqual(status, 1, output)
        self.assertIn("setup: pip could not install the wheels: THESE PACKAGES DO NOT MATCH THE HASHES", output)
        status, output = self.set_up(digest)
        self.assertEqual((status, output.splitlines()[-1]), (0, "setup: done (minimal)"), output)
        self.assertEqual(self.set_up(digest), (0, "setup: nothing to install (minimal)\n"))


if __name__ == "__main__":
    runner.main()
