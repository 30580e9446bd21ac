#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ddprunctl submit --to ssh over real sshds: jobs are detached from the process that submitted them."""
import json
import os
import shlex
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
import sshd  # noqa: E402

CTL = os.path.join(BIN, "ddprunctl")
PORT = 2222
SECONDS = 60  # limit of each wait, for a machine under load


class Submit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keys = sshd.Keys()
        cls.addClassCleanup(cls.keys.close)
        cls.keys.client_config(f"Host *\n  Port {PORT}\n")
        cls.hosts = netns.Hosts(2)
        cls.addClassCleanup(cls.hosts.close)
        for host in cls.hosts:
            cls.addClassCleanup(sshd.Server(cls.keys, host.address, PORT, host=host).close)

    def setUp(self):
        self.directory = files.scratch(self)
        dropped = ("DDPRUN_RDZV", "PET_", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        self.environment["XDG_STATE_HOME"] = os.path.join(self.directory, "state")

    def run_ctl(self, *arguments):
        return self.hosts[0].run([CTL, *arguments], env=self.environment, cwd=self.directory, text=True,
                                 timeout=SECONDS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def ctl(self, *arguments, code=0):
        done = self.run_ctl(*arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def job(self, script, more="", hosts='hosts = ["node[0-1]:2"]'):
        ssh = " ".join(self.keys.ssh_words())
        return files.write(self.directory, "job.toml",
                           f'name = "digits"\ncommand = {json.dumps(["sh", "-c", script])}\n{more}\n'
                           f'[to.ssh]\n{hosts}\nssh = "{ssh}"\n')

    def status(self, job):
        return json.loads(self.ctl("status", "--json", job))

    def wait_until(self, probe, what):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if probe():
                return
            time.sleep(0.05)
        self.fail(f"not within {SECONDS} s: {what}")

    def wait_for_text(self, job, text):
        self.wait_until(lambda: text in self.ctl("logs", job), f"{text!r} in the log")

    def wait_for_end(self, job):
        self.wait_until(lambda: self.status(job)["phase"] != "running", f"the end of {job}")
        return self.status(job)

    def test_a_job_goes_on_after_the_shell_that_submitted_it(self):
        path = self.job('echo "rank $RANK of $WORLD_SIZE on $(hostname): $HUSH"; '
                        'until [ -e go ]; do sleep 0.05; done', '[environment]\nHUSH = "s3cret"\n')
        shell = self.hosts[0].popen(["sh", "-c", '"$@"; exec sleep 1000', "sh", CTL, "submit", path],
                                    env=self.environment, cwd=self.directory, text=True, start_new_session=True,
                                    stdout=subprocess.PIPE)
        job = shell.stdout.readline().strip()
        self.assertRegex(job, r"^ssh:digits-\w{5}$")
        os.killpg(shell.pid, signal.SIGHUP)  # as when a terminal is closed
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()
        for rank in range(4):
            self.wait_for_text(job, f"rank {rank} of 4 on node{rank // 2}: s3cret")
        state = self.status(job)
        self.assertEqual((state["phase"], state["nodes"]), ("running", ["node0", "node1"]))
        for pid in os.listdir("/proc"):
            if pid.isdigit():
                try:
                    with open(f"/proc/{pid}/cmdline", "rb") as f:
                        self.assertNotIn(b"s3cret", f.read(), "on a command line")
                except OSError:
                    pass
        files.write(self.directory, "go", "")
        state = self.wait_for_end(job)
        self.assertEqual((state["phase"], state["exit_code"]), ("succeeded", 0))
        self.assertIn(job, self.ctl("jobs", "--to", "ssh"))

    def test_wait_ends_with_the_jobs_exit_code_and_the_log_goes_where_it_is_told(self):
        path = self.job('[ $RANK != 3 ] || exit 13; exec sleep 1000', 'log_dir = "logs"')
        shown = self.ctl("submit", path, "--wait", code=13)
        self.assertIn("rank 3", shown)
        job = json.loads(self.ctl("jobs", "--to=ssh", "--json"))["jobs"][0]
        self.assertEqual((job["phase"], job["exit_code"]), ("failed", 13))
        with open(os.path.join(self.directory, "logs", job["id"].split(":")[1] + ".log")) as f:
            self.assertEqual(f.read(), shown)

    def test_a_cancelled_job_may_save(self):
        job = self.ctl("submit", self.job("trap 'echo saved; exit 1' TERM; echo here; sleep 1000 & wait")).strip()
        self.wait_for_text(job, "here")
        self.ctl("cancel", job)
        state = self.wait_for_end(job)
        self.assertEqual((state["phase"], state["exit_code"]), ("cancelled", 143))
        self.assertIn("saved", self.ctl("logs", job))
        self.ctl("cancel", job)  # the job is over, so this does nothing

    def test_a_launcher_that_was_killed_is_not_taken_for_running(self):
        job = self.ctl("submit", self.job("echo here; exec sleep 1000")).strip()
        self.wait_for_text(job, "here")
        directory = os.path.join(self.directory, "state/ddprun/jobs", job.replace(":", "-"))
        with open(os.path.join(directory, "process")) as f:
            group = int(f.read().split()[0])
        os.killpg(group, signal.SIGKILL)
        state = self.wait_for_end(job)
        self.assertEqual((state["phase"], state["exit_code"]), ("unknown", None))
        self.assertIn("killed", state["reason"])
        self.assertEqual(self.run_ctl("cancel", job).returncode, 2)

    def record(self, job):
        return os.path.join(self.directory, "state/ddprun/jobs", job.replace(":", "-"))

    def launcher(self, job):
        with open(os.path.join(self.record(job), "process")) as f:
            return int(f.read().split()[0])

    def test_a_waiter_for_a_job_whose_launcher_is_killed_is_told_that_its_end_is_not_known(self):
        waiting = self.hosts[0].popen([CTL, "submit", self.job("echo here; exec sleep 1000"), "--wait"],
                                      env=self.environment, cwd=self.directory, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(waiting.communicate)
        self.addCleanup(waiting.kill)
        job = waiting.stderr.readline().split()[-1]  # "ddprunctl: submitted ssh:…"
        self.wait_for_text(job, "here")
        os.killpg(self.launcher(job), signal.SIGKILL)
        _, said = waiting.communicate(timeout=SECONDS)
        self.assertEqual(waiting.returncode, 1, said)
        self.assertIn(f"{job} unknown: its launcher was killed", said)

    def test_a_job_whose_launcher_was_killed_is_seen_and_can_be_ended(self):
        job = self.ctl("submit", self.job("trap 'echo saved; exit 1' TERM; echo here; sleep 1000 & wait")).strip()
        self.wait_for_text(job, "here")
        os.kill(self.launcher(job), signal.SIGKILL)  # kills only the shell
        self.wait_until(lambda: "its ddprun runs on" in self.status(job)["reason"], "the shell's end is seen")
        self.assertEqual(self.status(job)["phase"], "running")
        self.ctl("cancel", job)
        state = self.wait_for_end(job)
        self.assertEqual((state["phase"], state["exit_code"]), ("cancelled", None))
        self.assertIn("saved", self.ctl("logs", job))

    def test_each_of_several_jobs_is_cancelled_whatever_is_wrong_with_others(self):
        job = self.ctl("submit", self.job("echo here; exec sleep 1000")).strip()
        self.wait_for_text(job, "here")
        done = self.run_ctl("cancel", "ssh:none", "nonsense", job)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 2), done.stderr)
        self.assertIn("ssh:none", done.stderr)
        self.assertIn("nonsense", done.stderr)
        self.assertEqual(self.wait_for_end(job)["phase"], "cancelled")

    def test_an_exit_code_for_which_there_was_no_room_is_told_as_that(self):
        job = self.ctl("submit", self.job("echo here; until [ -e go ]; do sleep 0.05; done")).strip()
        os.symlink("/dev/full", os.path.join(self.record(job), "exit.part"))
        files.write(self.directory, "go", "")
        state = self.wait_for_end(job)
        self.assertEqual((state["phase"], state["exit_code"]), ("unknown", None))
        self.assertIn("could not be written: is the disk full?", state["reason"])

    def test_a_record_that_cannot_be_read_is_left_out_with_a_line(self):
        os.makedirs(os.path.join(self.record("ssh:bad-22222"), "job.json"))
        os.makedirs(self.record("ssh:fifo-33333"))
        os.mkfifo(os.path.join(self.record("ssh:fifo-33333"), "job.json"))
        done = self.run_ctl("jobs", "--to", "ssh")
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (0, "no jobs\n", 2))
        for job in ("ssh:bad-22222", "ssh:fifo-33333"):
            self.assertIn(f"{job} is left out: ", done.stderr)
        done = self.run_ctl("status", "ssh:bad-22222")
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))
        self.assertIn("ssh-bad-22222/job.json can't be read", done.stderr)

    def test_a_job_for_whose_record_there_is_no_room_does_not_run_and_leaves_nothing(self):
        path = self.job("exec sleep 1000")
        state = self.environment["XDG_STATE_HOME"]
        os.mkdir(state)
        script = ('mount -t tmpfs -o nr_inodes="$1" tmpfs "$2" && shift && "$2" submit "$3"; echo "code $?"; '
                  'find "$1" -name "ssh-*"')
        for files_at_most in (3, 4, 5, 6):  # seven are needed: 3 directories, the job's, job.json, log, process
            done = self.hosts[0].run(["unshare", "-m", "sh", "-c", script, "sh", str(files_at_most), state, CTL, path],
                                     env=self.environment, cwd=self.directory, text=True, timeout=SECONDS,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertRegex(done.stdout, r"\Acode [1-9]\d*\n\Z", done.stderr)
            self.assertIn("No space left on device", done.stderr)
            self.wait_until(lambda: not self.started_here(), "the end of what was started")

    # Returns the processes of this test's jobs on this machine.
    def started_here(self):
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    variables = f.read().split(b"\0")
            except OSError:
                continue
            has_state = f"XDG_STATE_HOME={self.environment['XDG_STATE_HOME']}".encode() in variables
            if has_state and any(each.startswith(b"DDPRUN_SUBMITTED_AS=") for each in variables):
                found.append(pid)
        return found

    def test_output_that_nobody_could_take_is_told_with_the_job_that_was_submitted(self):
        def to_full(*arguments):
            with open("/dev/full", "w") as full:
                done = self.hosts[0].run([CTL, *arguments], env=self.environment, cwd=self.directory, text=True,
                                         timeout=SECONDS, stdout=full, stderr=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (74, 1), done.stderr)
            self.assertIn("can't write to standard output: No space left on device", done.stderr)
            return done.stderr

        said = to_full("submit", self.job("true"))
        job = json.loads(self.ctl("jobs", "--to=ssh", "--json"))["jobs"][0]["id"]
        self.assertIn(f"{job} is submitted", said)
        self.wait_for_end(job)
        # The log is now practically endless. Only a request for the whole log reads all of it.
        os.truncate(os.path.join(self.record(job), "log"), 1 << 40)
        for ends in (lambda logs: logs.stdout.close(), lambda logs: logs.send_signal(signal.SIGINT)):
            logs = self.hosts[0].popen([CTL, "logs", job], env=self.environment, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE)
            self.addCleanup(logs.kill)
            logs.stdout.read(1)
            ends(logs)
            self.assertEqual((logs.wait(SECONDS), logs.stderr.read()), (74 if logs.stdout.closed else 130, b""))
        to_full("jobs", "--to", "ssh")
        to_full("status", job)
        to_full("doctor", "--list")

    def test_an_unknown_flag_names_the_help_of_its_command(self):
        done = self.run_ctl("submit", "--wiat")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("(see ddprunctl submit --help)", done.stderr)

    def test_a_dry_run_has_the_map_of_ranks_of_each_hosts_file_and_no_effect(self):
        ranks = [("node0", 0, 3), ("node1", 3, 1)]
        for text in ("node0 slots=3 max-slots=4\nnode1 slots=1\n", "node0:3\nnode1:1\n", "node0 slots=3\nnode1\tslots = 1\n"):
            files.write(self.directory, "hosts.txt", text)
            path = self.job("true", hosts='hostfile = "hosts.txt"')
            shown = json.loads(self.ctl("submit", path, "--dry-run", "--json"))
            self.assertEqual([(r["node"], r["first_global_rank"], r["num_workers"]) for r in shown["ranks"]], ranks)
        self.assertIn(f"--hostfile={self.directory}/hosts.txt", shown["text"])
        self.assertFalse(os.path.exists(os.path.join(self.directory, "state")))

    def test_a_dry_run_is_the_command_line_that_runs_and_its_ranks_are_those_that_run(self):
        path = self.job('echo "rank $RANK on $(hostname)"; until [ -e go ]; do sleep 0.05; done', '[environment]\nA = "b c"\n'
                        '[limits]\ntime = "1h"\n[restarts]\nmax_restarts = 2\n', hosts='hosts = ["node0:3", "node1:1"]')
        shown = json.loads(self.ctl("submit", path, "--dry-run", "--json"))
        job = self.ctl("submit", path).strip()
        for row in shown["ranks"]:
            for rank in range(row["first_global_rank"], row["first_global_rank"] + row["num_workers"]):
                self.wait_for_text(job, f"rank {rank} on {row['node']}")
        self.assertEqual(sum(row["num_workers"] for row in shown["ranks"]), self.ctl("logs", job).count(" on node"))
        launcher = self.launcher(job)
        with open(f"/proc/{launcher}/task/{launcher}/children") as f:
            ddprun, = f.read().split()
        with open(f"/proc/{ddprun}/cmdline") as f:
            self.assertEqual(f.read().split("\0")[:-1], shlex.split(shown["text"]))
        self.assertEqual(os.readlink(f"/proc/{ddprun}/cwd"), shown["how"].rpartition(" in ")[2])
        files.write(self.directory, "go", "")
        self.assertEqual(self.wait_for_end(job)["phase"], "succeeded")

    def test_an_error_in_the_hosts_is_told_with_its_line_and_nothing_is_left(self):
        files.write(self.directory, "hosts.txt", "node0 slots=3\nnode1 slots=none\n")
        done = self.run_ctl("submit", self.job("true", hosts='hostfile = "hosts.txt"'))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("hosts.txt:2", done.stderr)
        self.assertEqual(self.ctl("jobs", "--to", "ssh"), "no jobs\n")
        done = self.run_ctl("submit", self.job("true", 'directory = "nowhere"'))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("nowhere", done.stderr)
        self.assertEqual(self.ctl("jobs", "--to", "ssh"), "no jobs\n")

    def test_an_unknown_job_is_one_line(self):
        for arguments, said in ((["status", "ssh:none"], "ddprunctl jobs --to ssh"), (["logs", "7"], "say --to"),
                                (["status", "ssh:x", "--to=slurm"], "not a job of --to slurm")):
            done = self.run_ctl(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)


if __name__ == "__main__":
    sshd.keys_or_skip().close()
    netns.hosts_or_skip(1).close()
    runner.main()
