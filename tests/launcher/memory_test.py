#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the memory of a job's ddprun, and the libraries that it loads. Only for release builds; others are larger."""
import os
import re
import subprocess
import sys

import harness

# A worker that prints the memory of its ddprun and warden.
LOOK = f"""
import sys
sys.path.insert(0, {os.path.join(harness.HERE, "../support")!r})
import family
used = family.use()
print("resident", used["ddprun"]["kB"], used["warden"]["kB"])
"""


class Memory(harness.Case):
    def resident(self):
        """Returns the (ddprun's, warden's) kB that each of two workers has seen."""
        done = self.ddprun("--standalone", "--nproc_per_node=2", "--no-python", sys.executable, "-c", LOOK, code=0)
        found = [(int(a), int(b)) for a, b in re.findall(r"resident (\d+) (\d+)", done.stdout)]
        print(found)
        self.assertEqual(len(found), 2, done.text)
        return found

    def test_ddprun_and_its_warden_take_less_than_9_mb(self):
        self.assertLess(max(map(sum, self.resident())), 9000)  # kB: about 8,000; 9,900 if optimised for speed

    def test_a_warden_takes_less_than_1_mb(self):
        self.assertLess(max(warden for _, warden in self.resident()), 1024)

    def test_ddprun_loads_libc_and_openssl_alone(self):
        dynamic = subprocess.run(["readelf", "-dW", harness.DDPRUN], capture_output=True, text=True, check=True).stdout
        loaded = {name.split(".so")[0] for name in re.findall(r"NEEDED.*\[(.*)\]", dynamic)}
        self.assertLessEqual(loaded, {"libc", "libssl", "libcrypto", "ld-linux-x86-64", "ld-linux-aarch64"})


if __name__ == "__main__":
    harness.main()
