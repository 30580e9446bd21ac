# SPDX-License-Identifier: Apache-2.0
"""A job of two nodes, for tests of daemons that end and are started again. Its four workers write files when they run.
They wait or fail as the test tells them."""
import errno
import glob
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "launcher"))
import harness  # noqa: E402
from harness import wait_until  # noqa: E402

# A worker writes its pid into a file for each round and rank. Then it waits for `go`, or fails if its round is to fail.
WORKER = ('echo $$ >> "$MEET/$DDPRUN_ROUND.$RANK"; '
          'until [ -e "$MEET/go$DDPRUN_ROUND" ] || [ -e "$MEET/go" ]; do sleep 0.02; done; '
          'if [ $DDPRUN_ROUND -le $FAILING ] && [ $RANK = $((DDPRUN_ROUND % 4)) ]; then exit 9; fi')


class RoundsCase(harness.Case):
    ROUND_LIMIT = 30  # seconds

    def setUp(self):
        super().setUp()
        self.meet = self.scratch()

    def agents_at(self, endpoints, *flags, count=2, failing=0, run_id="job"):
        return [self.start(f"--rdzv-endpoint={endpoints}", "--nnodes=2", "--nproc_per_node=2",
                           f"--rdzv-id={run_id}", *flags, "--", "/bin/sh", "-c", WORKER, MEET=self.meet,
                           FAILING=str(failing)) for _ in range(count)]

    def pids(self, round_number):
        """Returns the pids of a round's workers, by rank. Checks that each rank was started once."""
        found = {}
        for path in glob.glob(os.path.join(self.meet, f"{round_number}.*")):
            with open(path) as file:
                lines = file.read().split()
            if lines:
                self.assertEqual(len(lines), 1, f"{path}: started more than once")
                found[int(path.rpartition(".")[2])] = int(lines[0])
        return found

    def wait_for_round(self, number):
        wait_until(lambda: len(self.pids(number)) == 4, f"the workers of round {number} run", self.ROUND_LIMIT)
        return self.pids(number)

    def go(self, round_number=""):
        open(os.path.join(self.meet, f"go{round_number}"), "w").close()

    def end_well(self, agents):
        """Lets the workers end. Checks that each agent ends with 0."""
        self.go()
        for agent in agents:
            self.finish(agent, code=0)

    def check_end(self, agents, pids):
        """Checks that all went well, in one round."""
        self.end_well(agents)
        self.assertEqual(self.pids(1), pids)
        self.assertEqual(self.pids(2), {})

    def small_disk(self, size):
        """Returns a directory, and the words before a command for which it is a disk of `size` ("4m")."""
        disk = self.scratch()
        script = f'mount -t tmpfs -o size={size} none {disk} && exec "$@"'
        prefix = ["unshare", "-m", "sh", "-c", script, "sh"]
        if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
            self.skipTest("no tmpfs of our own")
        return disk, prefix

    def fill(self, process, disk):
        """Fills the disk that `process` sees in `disk`. Returns the path of the file that fills it."""
        inside = f"/proc/{process.pid}/root{disk}/filler"
        with open(inside, "wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 4096):
                    pass
            except OSError as error:
                self.assertEqual(error.errno, errno.ENOSPC)
        return inside
