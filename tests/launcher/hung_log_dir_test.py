#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A log directory whose file system stops answering. It is frozen (fsfreeze), which looks like a dead file server."""
import json
import os
import subprocess
import time

import harness

KEEP_ALIVE = 1  # seconds
FROZEN = 3 * KEEP_ALIVE
NUM_LINES = 300_000  # lines of each worker: more than the queue and the pipe hold

# A worker that begins to write when the file system is frozen, and ends when all lines are written.
NOISY = ': >"$MEET/up.$RANK"; until [ -e "$MEET/go" ]; do sleep 0.01; done; seq 1 ' + str(NUM_LINES)
QUIET = ': >"$MEET/up.$RANK"; until [ -e "$MEET/go" ]; do sleep 0.01; done; echo short; exit $CODE'


class HungLogDir(harness.HostsCase):
    def setUp(self):
        self.meet = self.scratch()
        self.disk = self.mount()
        super().setUp()  # after mount(), because hosts see only earlier mounts

    def run_quietly(self, *argv):
        return subprocess.run(argv, timeout=20, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def mount(self):
        """Mounts a small file system for the test, which can be frozen. Returns its directory."""
        image, disk = os.path.join(self.scratch(), "image"), self.scratch()
        with open(image, "wb") as f:
            f.truncate(64 << 20)
        for argv in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, disk]):
            try:
                done = self.run_quietly(*argv)
            except OSError as missing:
                self.skipTest(str(missing))
            if done.returncode != 0:
                self.skipTest(f"{' '.join(argv)}: {done.stderr.strip()}")
        self.addCleanup(self.run_quietly, "umount", "-l", disk)
        return disk

    def freeze(self):
        self.addCleanup(self.thaw)  # always needed: a process that writes there can't even be killed
        done = self.run_quietly("fsfreeze", "-f", self.disk)
        if done.returncode != 0:
            self.skipTest(f"fsfreeze: {done.stderr.strip()}")

    def thaw(self):
        return self.run_quietly("fsfreeze", "-u", self.disk)

    def up(self, num_workers):
        harness.wait_until(lambda: len(os.listdir(self.meet)) == num_workers, "all workers run")

    def go(self):
        self.write(self.meet, "go", "")

    def log(self, local_rank):
        run = os.path.join(self.disk, next(name for name in os.listdir(self.disk) if name.startswith("job_")))
        self.assertEqual([name for name in os.listdir(run) if not name.startswith("events.")], ["attempt_0"])
        with open(os.path.join(run, "attempt_0", str(local_rank), "stdout.log"), encoding="utf-8") as f:
            return f.read()

    def test_the_node_stays_in_the_job_and_nothing_is_lost(self):
        flags = ["--nnodes=2", "--rdzv-id=job", f"--rdzv-endpoint={self.hosts[0].address}:29400", "--max-restarts=3",
                 f"--rdzv-conf=keep_alive_timeout={KEEP_ALIVE}", "--nproc-per-node=2", "-r", "1",
                 "--log-max-size=1G"]  # makes ddprun write the files, and print nothing
        command = ["--no-python", "sh", "-c", NOISY]
        first = self.start(*flags, f"--log-dir={self.scratch()}", *command, host=self.hosts[0], MEET=self.meet)
        hung = self.start(*flags, f"--log-dir={self.disk}", *command, host=self.hosts[1], MEET=self.meet)
        self.up(4)
        self.freeze()
        self.go()
        time.sleep(FROZEN)  # the test needs nothing to be written for this long
        self.assertIsNone(hung.poll())
        self.assertEqual(self.thaw().returncode, 0)
        done = [self.finish(first), self.finish(hung)]
        self.assertEqual([each.returncode for each in done], [0, 0], [each.stderr for each in done])
        lines = "".join(f"{i}\n" for i in range(1, NUM_LINES + 1))
        for local_rank in range(2):
            self.assertTrue(self.log(local_rank) == lines, f"log file of {local_rank}")
        for each in done:
            self.assertNotIn("lost", each.stderr)
            self.assertNotIn("round 2", each.stderr)

    def test_a_worker_fails_and_a_round_begins_meanwhile(self):
        script = ('[ "$DDPRUN_ROUND" = 1 ] || exit 0; : >"$MEET/up.$RANK"; until [ -e "$MEET/go" ]; do sleep 0.01; done; '
                  'echo words >&2; exit 5')
        job = self.start("--standalone", "--rdzv-id=job", "--max-restarts=1", "-r", "1", f"--log-dir={self.disk}", "--no-python",
                         "sh", "-c", script, MEET=self.meet)
        self.up(1)
        self.freeze()
        self.go()
        for line in job.stderr:
            if "no log files of this round" in line:
                break
        else:
            self.fail("nothing was said")
        self.assertIn("doesn't answer", line)
        self.assertEqual(self.thaw().returncode, 0)
        self.finish(job, code=0)

    def test_the_end_waits_ten_seconds_and_says_what_may_be_missing(self):
        job = self.start("--standalone", "--rdzv-id=job", "-t", "1", f"--log-dir={self.disk}", "--events=off", "--no-python", "sh",
                         "-c", QUIET, MEET=self.meet, CODE="7")
        self.up(1)
        self.freeze()
        begin = time.monotonic()
        self.go()
        for line in job.stderr:
            if "hasn't come to an end" in line:
                break
        else:
            self.fail("nothing was said")
        self.assertRegex(line, r"6 bytes of the workers' output \(or of events\) may be missing in their log files: writing \S+/0/stdout.log")
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(self.thaw().returncode, 0)  # only now the kernel lets the process end
        self.assertEqual(job.wait(timeout=20), 7)

    def test_files_that_say_how_a_job_ended(self):
        report, own = os.path.join(self.disk, "report"), os.path.join(self.disk, "own")
        fault = json.dumps({"message": {"message": "E", "extraInfo": {"py_callstack": "T", "timestamp": "1"}}})
        job = self.start("--standalone", f"--report={report}", "--no-python", "sh", "-c",
                         'echo "$FAULT" >"$TORCHELASTIC_ERROR_FILE"; ' + QUIET, MEET=self.meet, CODE="7", FAULT=fault,
                         TORCHELASTIC_ERROR_FILE=own)
        self.up(1)
        self.freeze()
        begin = time.monotonic()
        self.go()
        said = ""
        while "ddprun exits with 7" not in said and (line := job.stderr.readline()):
            said += line
        self.assertLess(time.monotonic() - begin, 25)
        self.assertIn(f"the failure could not be written to {own}: its file system doesn't answer\n", said)
        self.assertIn(f"--report={report} was not written: its file system doesn't answer\n", said)
        self.assertIn("FAILED: the first failure was rank 0", said)
        self.assertEqual(self.thaw().returncode, 0)  # only now the kernel lets the process end
        self.assertEqual(job.wait(timeout=20), 7)


if __name__ == "__main__":
    harness.main()
