#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills ddprund at the n-th write to its journal, for each n of a whole job, and starts it again. The job goes on,
and nothing is decided twice.

DDPRUN_KILL_STEP=N: only every N-th n; 1: all of them (scripts/soak.sh --only journal-kills)."""
import glob
import http.client
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import urllib.request

from rounds_case import RoundsCase, harness, wait_until
import skips

STEP = int(os.environ.get("DDPRUN_KILL_STEP") or "17")
LIBRARY = os.path.join(harness.BIN, "libdie_at_write.so")


class Run:
    """A job of two rounds, of which the first one fails. Its ddprund dies at write number `at`, and the next process
    at its write number `again_at`. A ddprund that dies is started again at once."""

    def __init__(self, case, at, is_half, again_at=0):
        self.case, self.is_half = case, is_half
        # The writes at which the coming processes die, the last process first.
        self.deadly = [each for each in (again_at, at) if each]
        self.directory = os.path.realpath(case.scratch())
        self.state = os.path.join(self.directory, "state")
        self.port = harness.free_port()
        self.num_deaths = 0
        self.daemon = None

    def start(self):
        at = self.deadly.pop() if self.deadly else 0
        half = {"DIE_HALF": "1"} if self.is_half else {}
        deadly = {"LD_PRELOAD": LIBRARY, "DIE_BELOW": self.state, "DIE_AT": str(at), **half} if at else {}
        with open(os.path.join(self.directory, "log"), "ab") as log:
            self.begin = os.path.getsize(log.name)
            self.daemon = subprocess.Popen(
                [harness.DDPRUND, f"--listen=127.0.0.1:{self.port}", f"--state-dir={self.state}"],
                env=harness.environment(**deadly), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self):
        with open(os.path.join(self.directory, "log")) as file:
            return file.read()

    def live(self):
        """Starts the daemon again if it has died. Returns whether it listens."""
        if self.daemon is None:
            self.start()
        elif self.daemon.poll() is not None:
            self.case.assertEqual(self.daemon.returncode, -signal.SIGKILL, self.log())
            self.num_deaths += 1
            self.start()
        return "listening on" in self.log()[self.begin:]

    def wait(self, condition, what):
        """Waits until the daemon listens and `condition` holds."""
        def holds():
            try:
                return self.live() and condition()
            except (OSError, http.client.HTTPException):  # the daemon died while it was asked
                return False
        wait_until(holds, what, 40)

    def wait_for_end(self, num_jobs=1):
        """Waits for the end of so many jobs. Returns their entries."""
        page = {}

        def are_over():
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/jobs", timeout=10) as answer:
                page.update(json.load(answer))
            return not page["jobs"] and len(page["finished"]) >= num_jobs
        self.wait(are_over, "the job is over")
        return page["finished"]

    def end(self):
        """Stops the daemon, which may die even so."""
        while True:
            self.wait(lambda: True, "it listens")
            self.daemon.terminate()
            if self.daemon.wait(20) == 0:
                return

    def all_of_it(self):
        case = self.case
        case.meet = case.scratch()
        self.wait(lambda: True, "it listens")
        agents = case.agents_at(f"127.0.0.1:{self.port}", "--rdzv-conf=is_host=0", "--max-restarts=1", failing=1)
        for number in (1, 2):
            self.wait(lambda: len(case.pids(number)) == 4, f"the workers of round {number} run")
            case.go(number)
        self.wait(lambda: all(agent.poll() is not None for agent in agents), "the agents end")
        for agent in agents:
            case.finish(agent, code=0)
        told = self.wait_for_end()
        case.assertEqual([(job["run_id"], job["exit_code"], job["rounds"]) for job in told], [("job", 0, 2)])
        self.end()
        # pids() checks that each rank of each round was started once.
        case.assertEqual([len(case.pids(number)) for number in (1, 2, 3)], [4, 4, 0])
        case.assertNotIn("damaged", self.log())

    def close(self):
        if self.daemon and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()


class JournalKill(RoundsCase):
    def run_job(self, at, **how):
        """Runs a job. Returns how often its ddprund died."""
        run = Run(self, at, **how)
        self.addCleanup(run.close)
        try:
            run.all_of_it()
        except BaseException:
            print(f"\n-- write {at}, {how}\n{run.log()}", file=sys.stderr)
            raise
        self.doCleanups()
        return run.num_deaths

    def check_every(self, **how):
        """Kills at each write, from the first one on, until a job has fewer writes."""
        at = 1
        while self.run_job(at, **how) > 0:
            at += STEP
        print(f"{at // STEP} deaths, the last one at write {at - STEP} ", end="", file=sys.stderr, flush=True)
        self.assertGreater(at, 100)  # otherwise the writes weren't counted

    def test_killed_at_the_nth_write(self):
        self.check_every(is_half=False)

    def test_killed_half_way_through_the_nth_write(self):
        self.check_every(is_half=True)

    def damaged_journal(self):
        """Returns the directory of a journal with two finished jobs, of which the first one's row is damaged."""
        run = Run(self, 0, False)
        self.addCleanup(run.close)
        run.wait(lambda: True, "it listens")
        self.go()
        for name in ("first", "second"):
            for agent in self.agents_at(f"127.0.0.1:{run.port}", "--rdzv-conf=is_host=0", run_id=name):
                self.assertEqual(self.finish(agent).returncode, 0)
        run.wait_for_end(2)
        run.close()
        database = sqlite3.connect(os.path.join(run.state, "journal.db"))
        with database:
            database.execute("UPDATE rows SET content = content || ' ' WHERE key = 'finished/1'")
        database.close()
        return run.state

    def test_killed_at_the_nth_write_while_a_damaged_journal_is_made_anew(self):
        damaged = self.damaged_journal()
        for is_half in (False, True):
            at, deaths = 1, 1
            while deaths:
                run = Run(self, at, is_half)
                self.addCleanup(run.close)
                shutil.copytree(damaged, run.state)
                self.assertEqual([job["run_id"] for job in run.wait_for_end()], ["second"], f"{at}\n{run.log()}")
                # Any of the processes may have made a new journal, and may have died before it logged this.
                self.assertEqual(len(glob.glob(run.state + "/journal.db.damaged-*Z")), 1, f"{at}\n{run.log()}")
                run.end()
                deaths = run.num_deaths
                at += 1
            self.assertGreater(at, 20)

    def test_killed_again_while_it_begins_anew(self):
        for again_at in range(1, 40, STEP):
            for is_half in (False, True):
                self.assertEqual(self.run_job(40 + again_at, again_at=again_at, is_half=is_half), 2)


if __name__ == "__main__":
    if os.environ.get("DDPRUN_SANITIZE"):
        skips.skip_all("a sanitizer's own library has to be loaded first")
    if not os.path.exists(LIBRARY):
        sys.exit(f"no {LIBRARY}: build it first")
    harness.main()
