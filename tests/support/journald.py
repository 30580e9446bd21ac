# SPDX-License-Identifier: Apache-2.0
"""A real journald, in a mount name space of its own."""
import json
import os
import shutil
import subprocess
import time
import unittest

JOURNALD = "/lib/systemd/systemd-journald"
PLACE = ("mount -t tmpfs none /run && mount -t tmpfs none /var/log && mkdir -p /run/systemd/journal /run/log/journal"
         " && mkdir -p /run/systemd/journald.conf.d && echo \"$0\" >/run/systemd/journald.conf.d/test.conf"
         f" && echo placed && exec {JOURNALD}")
# This journald must not take the kernel's own messages, nor its auditing.
SETTINGS = "[Journal]\nAudit=no\nReadKMsg=no"
# Sets JOURNAL_STREAM, as systemd does for a unit. systemd-cat sets it only since version 254.
AS_UNIT = 'JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2) exec "$0" "$@"'
SECONDS = 60


class Journald:
    """A journald that ends with `case`. Skips the case if none can be started."""

    def __init__(self, case):
        self._case = case
        if not (os.access(JOURNALD, os.X_OK) and shutil.which("journalctl")):
            raise unittest.SkipTest("systemd-journald is missing")
        journald = subprocess.Popen(["unshare", "--mount", "--propagation=private", "sh", "-c", PLACE, SETTINGS],
                                    text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT)
        case.addCleanup(lambda: (journald.kill(), journald.communicate()))
        said = journald.stdout.readline()
        if said != "placed\n":
            raise unittest.SkipTest(f"no mount name space: {said.strip()}")
        self._inside = ["nsenter", f"--mount=/proc/{journald.pid}/ns/mnt"]
        deadline = time.monotonic() + SECONDS
        while not os.path.exists(f"/proc/{journald.pid}/root/run/systemd/journal/stdout"):
            case.assertLess(time.monotonic(), deadline, "journald listens")
            time.sleep(0.005)

    def entries(self, *matches):
        """Returns the entries so far, a dictionary for each.

        `_COMM` is not in an entry of a process that ended before journald read its line.
        """
        subprocess.run([*self._inside, "journalctl", "--sync"], check=True, timeout=SECONDS)
        done = subprocess.run([*self._inside, "journalctl", "--directory=/run/log/journal", "--output=json", *matches],
                              capture_output=True, text=True, timeout=SECONDS)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def start(self, *command, env):
        """Starts a program whose stdout and stderr go to the journal, like a unit's."""
        process = subprocess.Popen([*self._inside, "systemd-cat", "sh", "-c", AS_UNIT, *command], env=env,
                                   stdin=subprocess.DEVNULL)
        self._case.addCleanup(lambda: (process.kill(), process.wait()))
        return process
