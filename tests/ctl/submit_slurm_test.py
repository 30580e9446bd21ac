#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ddprunctl submit --to slurm with a real Slurm of two nodes (tests/support/slurm.py)."""
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(os.path.join(HERE, "../..")))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/release/bin"))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import files  # noqa: E402
import netns  # noqa: E402
import runner  # noqa: E402
import skips  # noqa: E402
import slurm  # noqa: E402

CTL = os.path.join(BIN, "ddprunctl")
SECONDS = 60  # limit of each wait, for a machine under load


class Submit(unittest.TestCase):
    """All these tests share one Slurm, because it takes seconds to start."""

    @classmethod
    def setUpClass(cls):
        cls.directory = files.scratch_of_class(cls)
        cls.hosts = netns.Hosts(2)
        cls.addClassCleanup(cls.hosts.close)
        cls.slurm = slurm.Slurm(cls.hosts, cls.directory)
        cls.slurm.environment["XDG_STATE_HOME"] = os.path.join(cls.directory, "state-home")
        cls.slurm.environment["KEPT_BACK"] = "here"
        if not cls.slurm.wait_until_idle():
            print(cls.slurm.logs())
            raise unittest.SkipTest("Slurm did not come up on this machine")

    def ctl(self, *arguments, code=0):
        done = self.hosts[0].run([CTL, *arguments], env=self.slurm.environment, cwd=self.directory, text=True,
                                 timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr + self.slurm.logs())
        return done.stdout

    def job(self, script, more="", nodes="2"):
        """Writes a job file whose workers run `script` on both nodes. Returns its path."""
        text = (f'name = "digits"\ncommand = {json.dumps(["sh", "-c", script])}\nnodes = {nodes}\n'
                f"workers_per_node = 2\n{more}\n")
        return files.write(self.directory, f"{self.id()}.toml", text)

    def status(self, job):
        return json.loads(self.ctl("status", "--json", job))

    def wait_for(self, job, *phases):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            state = self.status(job)
            if state["phase"] in phases:
                return state
            time.sleep(0.1)
        self.fail(f"{job} is {state}, and not {phases}" + self.slurm.logs())

    def wait_for_text(self, job, text):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            shown = self.hosts[0].run([CTL, "logs", job], env=self.slurm.environment, text=True, timeout=SECONDS,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout
            if text in shown:
                return shown
            time.sleep(0.1)
        self.fail(f"{text!r} is not in {shown!r}" + self.slurm.logs())

    def test_a_dry_run_shows_the_script_that_submit_gives_to_sbatch_and_has_no_effect(self):
        path = self.job("true", "[to.slurm]\npartition = \"all\"")
        shown = json.loads(self.ctl("submit", path, "--dry-run", "--json"))
        self.assertEqual(shown["to"], "slurm")
        self.assertEqual(json.loads(self.ctl("jobs", "--to", "slurm", "--json")), {"jobs": []})
        self.assertEqual([rank["first_global_rank"] for rank in shown["ranks"]], [0, 2])
        job = self.ctl("submit", path).strip()
        given = self.slurm.run("scontrol", "write", "batch_script", job.split(":")[1], "-").stdout
        self.assertEqual(given.strip(), shown["text"].strip())
        self.wait_for(job, "succeeded")

    def test_wait_shows_the_output_and_ends_with_the_jobs_exit_code(self):
        path = self.job('echo "rank $RANK of $WORLD_SIZE on $(hostname): $GREETING ${KEPT_BACK-}${SLURM_TIME_FORMAT-}."; '
                        ": >said.$RANK; "
                        "[ $RANK = 3 ] || exec sleep 100; "
                        "until [ -e said.0 ] && [ -e said.1 ] && [ -e said.2 ]; do sleep 0.05; done; exit 13",
                        'environment_without = ["KEPT_BACK"]\n[environment]\nGREETING = "it\'s $HOME"')
        shown = self.ctl("submit", path, "--to=slurm", "--wait", code=13)
        for rank in range(4):
            self.assertIn(f"rank {rank} of 4 on node{rank // 2}: it's $HOME .", shown)

    def test_the_job_has_what_slurm_gives_with_min_and_max(self):
        path = self.job('echo "rank $RANK of $WORLD_SIZE"', nodes='"1:2"')
        shown = self.ctl("submit", path, "--to=slurm", "--wait")
        for rank in range(4):
            self.assertIn(f"rank {rank} of 4", shown)

    def test_a_job_is_seen_from_the_queue_to_its_end_and_cancelled(self):
        path = self.job("echo here; exec sleep 100")
        first = self.ctl("submit", path, "--to", "slurm").strip()
        self.assertRegex(first, r"^slurm:\d+$")
        state = self.wait_for(first, "running")
        self.assertEqual(state["nodes"], ["node0", "node1"])
        self.assertEqual(state["name"], "digits")
        second = self.ctl("submit", self.job("true", "[to.slurm]\nexclusive = true"), "--to", "slurm").strip()
        self.assertEqual(self.status(second)["phase"], "queued")
        listed = {job["id"]: job for job in json.loads(self.ctl("jobs", "--to", "slurm", "--json"))["jobs"]}
        self.assertEqual((listed[first]["phase"], listed[second]["phase"]), ("running", "queued"))
        self.assertIn(first, self.ctl("jobs", "--to=slurm"))
        self.wait_for_text(first, "here")
        self.ctl("cancel", first)
        self.assertEqual(self.wait_for(first, "cancelled")["exit_code"], None)
        self.assertEqual(self.wait_for(second, "succeeded")["exit_code"], 0)
        self.ctl("cancel", first)  # the job is over, so this does nothing

    def test_a_warning_reaches_the_workers_and_the_job_runs_again_as_often_as_it_may(self):
        """scancel sends the signal that --signal=USR1@N sends at the time limit. This Slurm's proctrack/linuxproc sends
        it to every process of the step, and it would end a worker that has no handler yet."""
        path = self.job("trap 'exit 75' USR1; "
                        'echo "rank $RANK run ${SLURM_RESTART_COUNT:-0}"; [ "$SLURM_RESTART_COUNT" != 1 ] || exit 75; '
                        "sleep 100 & wait", 'log_dir = "logs of mine"\nrestarts.requeues = 1')
        job = self.ctl("submit", path, "--to", "slurm").strip()
        for rank in range(4):
            self.wait_for_text(job, f"rank {rank} run 0")
        self.slurm.run("scancel", "--signal=USR1", job.split(":")[1])
        self.assertEqual(self.wait_for(job, "succeeded", "failed")["exit_code"], 75)
        with open(os.path.join(self.directory, "logs of mine", f"digits-{job.split(':')[1]}.log")) as f:
            log = f.read()
        self.assertIn("run 1", log)
        self.assertNotIn("run 2", log)

    def test_no_progress_is_not_tried_again(self):
        job = self.ctl("submit", self.job("exit 76"), "--to", "slurm").strip()
        self.assertEqual(self.wait_for(job, "succeeded", "failed")["exit_code"], 76)

    def test_links_at_the_names_of_the_exit_code_are_not_followed(self):
        """Other users may write to a log_dir that a group shares."""
        folder = os.path.join(self.directory, "shared")
        os.makedirs(os.path.join(folder, "taken"))
        path = self.job('[ "$RANK" = 0 ] || exec sleep 100; at=digits-$SLURM_JOB_ID.exit; '
                        'ln -s victim $at.part && ln -s taken $at && exit 13',
                        f"log_dir = {json.dumps(folder)}\ndirectory = {json.dumps(folder)}")
        job = self.ctl("submit", path, "--to", "slurm").strip()
        self.assertEqual(self.wait_for(job, "succeeded", "failed")["exit_code"], 13)
        found = os.path.join(folder, f"digits-{job.split(':')[1]}.exit")
        self.assertFalse(os.path.islink(found))
        with open(found, encoding="ascii") as file:
            self.assertEqual(file.read(), "13\n")
        self.assertEqual((os.stat(found).st_mode & 0o777, os.listdir(os.path.join(folder, "taken"))), (0o644, []))
        self.assertFalse(os.path.exists(os.path.join(folder, "victim")))

    def test_the_end_of_waiting_is_not_the_end_of_the_job(self):
        path = self.job("echo here; exec sleep 100")
        process = self.hosts[0].popen([CTL, "submit", path, "--to", "slurm", "--wait"], env=self.slurm.environment,
                                      cwd=self.directory, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        job = re.search(r"slurm:\d+", process.stderr.readline())[0]
        self.wait_for_text(job, "here")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130, said)
        self.assertIn(f"ddprunctl cancel {job} ends it", said)
        self.assertEqual(self.status(job)["phase"], "running")
        self.ctl("cancel", job)

    def test_a_job_that_slurm_refuses_is_one_line(self):
        path = self.job("true", "[to.slurm]\npartition = \"none\"")
        done = self.hosts[0].run([CTL, "submit", path], env=self.slurm.environment, text=True, timeout=SECONDS,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^ddprunctl: sbatch: Batch job submission failed: Invalid partition.*\n$")

    def test_a_job_that_ddprun_would_refuse_is_never_queued(self):
        path = self.job("true", 'flags = ["--hang-timeuot=5"]')
        done = self.hosts[0].run([CTL, "submit", path, "--to=slurm"], env=self.slurm.environment, text=True,
                                 timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("--hang-timeout", done.stderr)

    def test_zz_slurm_may_forget_a_job(self):
        """This test runs last. The controller starts again without its state and without accounting."""
        good = self.ctl("submit", self.job("true"), "--to", "slurm").strip()
        bad = self.ctl("submit", self.job("exit 13"), "--to", "slurm").strip()
        self.wait_for(good, "succeeded")
        self.wait_for(bad, "failed")
        self.slurm.forget_jobs()
        self.assertIn("nvalid job id", self.slurm.run("scontrol", "show", "job", good.split(":")[1]).stdout)
        self.assertEqual(self.status(good)["phase"], "succeeded")
        self.assertEqual(self.status(bad)["exit_code"], 13)
        self.ctl("status", "slurm:99999", code=2)


if __name__ == "__main__":
    reason = slurm.why_not()
    if reason:
        skips.skip_all(reason)
    netns.hosts_or_skip(1).close()
    runner.main()
