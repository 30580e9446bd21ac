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
# The kernel's own messages, and its auditing, are this machine's.
SETTINGS = "[Journal]\nAudit=no\nReadKMsg=no"
# As systemd starts a unit; its systemd-cat leaves JOURNAL_STREAM out before 254.
AS_UNIT = 'JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2) exec "$0" "$@"'
SECONDS = 60


class Journald:
    """Ends with `case`; skips it where there can be none."""

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
        """Those that are there now: a dictionary each."""
        subprocess.run([*self._inside, "journalctl", "--sync"], check=True, timeout=SECONDS)
        done = subprocess.run([*self._inside, "journalctl", "--directory=/run/log/journal", "--output=json", *matches],
                              capture_output=True, text=True, timeout=SECONDS)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def start(self, *command, env):
        """A program whose stdout and stderr are the journal, as a unit's are."""
        process = subprocess.Popen([*self._inside, "systemd-cat", "sh", "-c", AS_UNIT, *command], env=env,
                                   stdin=subprocess.DEVNULL)
        self._case.addCleanup(lambda: (process.kill(), process.wait()))
        return process
