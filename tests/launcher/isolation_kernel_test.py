#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests limits of workers on a real kernel. Boots one user-mode Linux, in which all of cgroup v2 is the test's. There
ddprun runs as root, as a user with a delegated cgroup, and like a unit. The test cases check the results."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

import harness
import user_mode_linux

ROOT = "/sys/fs/cgroup"
# Takes memory for ever, and writes to all of it.
HOG = "import os\nkept = []\nwhile True: kept.append(os.urandom(1) * (1 << 20))"
FORKS = ("import os, time\npids = []\ntry:\n    while True:\n        pid = os.fork()\n        if pid == 0: time.sleep(600)\n"
         "        pids.append(pid)\nexcept OSError as error:\n    print('refused', error.errno, flush=True)\n    os._exit(9)")
SHOW = 'd=/sys/fs/cgroup$(sed s/^0:://p -n /proc/self/cgroup); echo "$RANK in $d"; for f in %s; do echo "$RANK $f $(cat $d/$f)"; done'


JOB = """name = "limited"
command = ["sh", "-c", {script}]
workers_per_node = 2
[limits]
memory = "64M"
pids = 25
cpuset = "0"
io = "98:0:wbps=2M"
[to.nodes]
endpoint = "127.0.0.1:29400"
"""


class Guest:
    """The part of the test that runs in the other kernel."""

    def __init__(self):
        self.seen = {}

    def ddprun(self, name, *args, cgroup=None, user=None, **more):
        """Runs the command to its end, and keeps its output under `name`."""
        report = f"/run/{name}.json"
        argv = [harness.DDPRUN, "--standalone", f"--report={report}" if user is None else "--role=default", *args]
        done = subprocess.run(argv, text=True, capture_output=True, timeout=60, env=harness.environment(**more),
                              preexec_fn=lambda: enter(cgroup, user))
        kept = {"code": done.returncode, "out": done.stdout, "err": done.stderr}
        if os.path.exists(report):
            with open(report, encoding="utf-8") as f:
                kept["report"] = json.load(f)
        kept["left"] = children(cgroup or ROOT)
        self.seen[name] = kept

    def run(self):
        with open(f"{ROOT}/cgroup.controllers", encoding="utf-8") as f:
            self.seen["controllers"] = f.read().split()
        self.limits_at_the_top()
        self.of_a_job_file()
        self.ends()
        self.in_a_unit()
        self.without()

    def limits_at_the_top(self):
        script = (SHOW % "memory.max memory.swap.max memory.oom.group pids.max io.max") + "; sh -c 'grep ^0:: /proc/self/cgroup; :'"
        self.ddprun("limits", "--nproc-per-node=2", "--worker-memory=100000000", "--worker-pids=20",
                    "--worker-io=98:0:rbps=1M,wiops=30", "sh", "-c", script)
        self.ddprun("rounds", "--max-restarts=1", "--max-restart-delay=0", "--worker-pids=20", "sh", "-c",
                    "grep ^0:: /proc/self/cgroup; ls -d /sys/fs/cgroup/ddprun-round*; exit $((3 - 3 * TORCHELASTIC_RESTART_COUNT))")

    def of_a_job_file(self):
        """Runs a job for a standing agent that runs like a unit."""
        unit = make("agent", None)
        write(f"{ROOT}/cgroup.subtree_control", "+io")
        os.mkdir(f"{unit}/ddprun-supervisor")
        job = "/run/job.toml"
        write(job, JOB.format(script=json.dumps(SHOW % "memory.max memory.swap.max pids.max io.max")))
        env = {**harness.environment(), "USER": "root"}
        with open("/run/daemon.log", "w", encoding="utf-8") as log:
            daemon = subprocess.Popen([harness.DDPRUND, "--listen=127.0.0.1:29400"], env=env, stderr=log)
            agent = subprocess.Popen([os.path.join(harness.BIN, "ddprun-agent"), "--rdzv-endpoint=127.0.0.1:29400",
                                      "--name=here", "--slots=2", "--log-dir=/run"], env=env, stderr=log,
                                     preexec_fn=lambda: enter(f"{unit}/ddprun-supervisor", None))
        done = subprocess.run([harness.DDPRUNCTL, "submit", job, "--wait"], env=env, text=True, capture_output=True,
                              timeout=60)
        agent.terminate()
        agent.wait(30)
        daemon.kill()
        daemon.wait()
        self.seen["job_file"] = {"code": done.returncode, "out": done.stdout, "err": done.stderr, "left": children(unit)}

    def ends(self):
        self.ddprun("out_of_memory", "--nproc-per-node=2", "--worker-memory=48M", "--no-python", sys.executable, "-c",
                    "import os, time\nif os.environ['RANK'] == '0': time.sleep(600)\n" + HOG)
        self.ddprun("child", "--worker-memory=48M", "sh", "-c", f'{sys.executable} -c "$HOG"; echo lives on; exit 8', HOG=HOG)
        self.ddprun("by_hand", "--worker-memory=48M", "sh", "-c", "kill -9 $$")
        self.ddprun("forks", "--worker-pids=15", "--no-python", sys.executable, "-c", FORKS)

    def in_a_unit(self):
        unit = make("unit", "100M")
        write(f"{ROOT}/cgroup.subtree_control", "+memory +pids +io")
        tree = ("cd /sys/fs/cgroup/unit; for f in cgroup.procs cgroup.subtree_control ddprun-supervisor/cgroup.procs; do "
                "echo $f: $(cat $f | tr '\\n' ' '); done; echo warden $PPID; ls -d ddprun-*")
        self.ddprun("unit", "--worker-memory=64M", "sh", "-c", tree, cgroup=unit)
        self.ddprun("above", "--worker-memory=1G", "--no-python", sys.executable, "-c", HOG, cgroup=unit)
        own = make("users", None)
        for path in (own, f"{own}/cgroup.procs", f"{own}/cgroup.subtree_control"):
            os.chown(path, 1000, 1000)
        self.ddprun("user", "--worker-memory=64M", "sh", "-c", "id -u; grep ^0:: /proc/self/cgroup", cgroup=own, user=1000)
        self.crash(unit)
        unit = make("crowded", None)
        other = subprocess.Popen(["sleep", "600"], preexec_fn=lambda: enter(unit, None))
        self.ddprun("crowd", "--worker-memory=64M", "grep", "^0::", "/proc/self/cgroup", cgroup=unit)
        self.ddprun("crowd_required", "--worker-memory=64M", "--worker-limits=required", "true", cgroup=unit)
        other.kill()
        other.wait()

    def crash(self, unit):
        """Kills ddprun and its warden at once. A process of a worker outlives them, until the next ddprun."""
        script = "setsid sleep 600 & echo $! $PPID; wait"
        job = subprocess.Popen([harness.DDPRUN, "--standalone", "--worker-memory=64M", "sh", "-c", script], text=True,
                               stdout=subprocess.PIPE, env=harness.environment(), preexec_fn=lambda: enter(unit, None))
        sleeper, warden = map(int, job.stdout.readline().split())
        os.kill(job.pid, 19)  # a stopped ddprun starts nothing new meanwhile
        os.kill(warden, 9)
        job.kill()
        job.wait()
        time_limit = time.monotonic() + 20
        while os.path.exists(f"/proc/{warden}/exe") and time.monotonic() < time_limit:
            time.sleep(0.01)
        self.seen["crash"] = {"outlives": running(sleeper), "left": children(unit)}
        # The unit's own cgroup still has controllers enabled for its children, so it can't take a process.
        self.ddprun("after_crash", "--worker-memory=64M", "true", cgroup=f"{unit}/ddprun-supervisor")
        self.seen["crash"]["left_then"] = children(unit)
        self.seen["crash"]["ended"] = not running(sleeper)

    def without(self):
        subprocess.run(["mount", "-o", "remount,ro", ROOT], check=True)
        self.ddprun("read_only", "--worker-memory=64M", "--worker-pids=9", "true")
        self.ddprun("read_only_required", "--worker-memory=64M", "--worker-limits=required", "true")


def enter(cgroup, user):
    """Moves the process into the cgroup and changes its user. For preexec_fn."""
    if cgroup:
        write(f"{cgroup}/cgroup.procs", str(os.getpid()))
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


def make(name, limit):
    os.mkdir(f"{ROOT}/{name}")
    write(f"{ROOT}/cgroup.subtree_control", "+memory +pids")
    if limit:
        write(f"{ROOT}/{name}/memory.max", limit)
        write(f"{ROOT}/{name}/memory.swap.max", "0")
    return f"{ROOT}/{name}"


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def children(cgroup):
    return sorted(entry.name for entry in os.scandir(cgroup) if entry.is_dir())


def running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class OnAKernel(harness.Case):
    @classmethod
    def setUpClass(cls):
        if os.environ.get("DDPRUN_SANITIZE"):
            cls.skip("the sanitizers want more addresses than this kernel's programs have")
        with tempfile.TemporaryDirectory(prefix="ddprun-test-") as scratch:
            disk = os.path.join(scratch, "disk")
            with open(disk, "wb") as f:
                f.truncate(1 << 24)
            passed = {name: os.environ[name] for name in ("DDPRUN_BIN_DIR", "DDPRUN_SOURCE_DIR", "PATH") if name in os.environ}
            try:
                cls.seen = user_mode_linux.run(__file__, scratch, passed, disk)
            except user_mode_linux.Unavailable as reason:
                cls.skip(reason)

    @staticmethod
    def skip(reason):
        raise unittest.SkipTest(str(reason))

    def ran(self, name, code=0):
        self.assertIn(name, self.seen)
        done = self.seen[name]
        self.text = f"{name}: exit {done['code']}\n-- stdout\n{done['out']}\n-- stderr\n{done['err']}"
        self.assertEqual(done["code"], code, self.text)
        return done

    def first_failure(self, done):
        return done["report"]["first_failure"]

    def test_each_worker_is_in_a_leaf_of_its_own_that_has_its_limits(self):
        done = self.ran("limits")
        for rank in (0, 1):
            for wanted in ("memory.max 99999744", "memory.swap.max 0", "memory.oom.group 1", "pids.max 20",
                           "io.max 98:0 rbps=1048576 wbps=max riops=max wiops=30"):
                self.assertIn(f"{rank} {wanted}\n", done["out"], self.text)
            self.assertRegex(done["out"], rf"{rank} in {ROOT}/ddprun-round-\d+-1/worker-{rank}\n")
            # This is the cgroup of a child of the worker.
            self.assertRegex(done["out"], rf"(?m)^(\[{rank}\] )?0::/ddprun-round-\d+-1/worker-{rank}$")
        self.assertEqual(done["err"].count("enforced"), 0, self.text)

    def test_limits_of_a_job_file_are_those_of_its_workers_cgroups(self):
        done = self.ran("job_file")
        for rank in (0, 1):
            for wanted in ("memory.max 67108864", "memory.swap.max 0", "pids.max 25",
                           "io.max 98:0 rbps=max wbps=2097152 riops=max wiops=max"):
                self.assertIn(f"{rank} {wanted}\n", done["out"], self.text)
            self.assertRegex(done["out"], rf"{rank} in {ROOT}/agent/ddprun-round-\d+-1/worker-{rank}\n")
        # This kernel may have no cpuset. The other controllers can be enforced.
        self.assertEqual("--worker-cpuset can't be enforced" in done["out"], "cpuset" not in self.seen["controllers"])
        self.assertNotRegex(done["out"], "--worker-(memory|pids|io)[^;]* can't be enforced")
        self.assertEqual(done["left"], ["ddprun-supervisor"], self.text)

    def test_nothing_is_left_of_a_job(self):
        for name in ("limits", "rounds", "out_of_memory", "child", "by_hand", "forks", "unit", "above", "user", "after_crash"):
            with self.subTest(name):
                self.assertEqual([each for each in self.seen[name]["left"] if each.startswith("ddprun")], [], self.seen[name])

    def test_each_round_has_a_cgroup_and_the_one_before_is_gone(self):
        done = self.ran("rounds")
        self.assertRegex(done["out"], r"ddprun-round-\d+-1/worker-0\n/sys/fs/cgroup/ddprun-round-\d+-1\n"
                                      r"(.*)0::/ddprun-round-\d+-2/worker-0\n/sys/fs/cgroup/ddprun-round-\d+-2\n$")

    def test_a_lack_of_memory_is_told_with_peak_and_limit(self):
        done = self.ran("out_of_memory", 137)
        self.assertRegex(done["err"], r"  memory    ran out: the kernel's OOM killer killed all of it, at its own limit "
                                      r"\(peak 48(\.0)? MiB, limit 48 MiB; \S+/worker-1/memory\.events: oom \d+, oom_kill \d+\)\n")
        failure = self.first_failure(done)
        self.assertEqual((failure["global_rank"], failure["memory_limit_bytes"]), (1, 48 << 20), failure)
        self.assertTrue(47 << 20 <= failure["memory_peak_bytes"] <= 48 << 20, failure)
        self.assertTrue(failure["out_of_memory"].startswith("ran out: the kernel's OOM killer"), failure)

    def test_a_worker_is_ended_whole(self):
        done = self.ran("child", 137)
        self.assertNotIn("lives on", done["out"])
        self.assertIn("killed all of it, at its own limit", done["err"])

    def test_a_signal_9_by_hand_is_no_want_of_memory(self):
        done = self.ran("by_hand", 137)
        self.assertNotIn("  memory  ", done["err"])
        failure = self.first_failure(done)
        self.assertEqual((failure["out_of_memory"], failure["memory_limit_bytes"]), (None, 48 << 20))

    def test_more_processes_than_the_limit_are_refused_and_that_is_noted(self):
        done = self.ran("forks", 9)
        self.assertIn("refused 11\n", done["out"])
        self.assertRegex(done["err"], r"  note      its limit of processes and threads \(--worker-pids\) refused it one 1 time\n")

    def test_no_inner_node_of_a_unit_has_a_process(self):
        out = self.ran("unit")["out"]
        self.assertIn("cgroup.procs:\n", out.replace(": \n", ":\n"), self.text)
        self.assertIn("cgroup.subtree_control: memory", out, self.text)
        warden = out.split("warden ")[1].split()[0]
        supervisor = out.split("ddprun-supervisor/cgroup.procs: ")[1].splitlines()[0].split()
        self.assertIn(warden, supervisor, self.text)
        self.assertGreater(len(supervisor), 1, self.text)  # ddprun is there, too

    def test_a_limit_above_is_not_taken_for_its_own(self):
        done = self.ran("above", 137)
        self.assertIn("not at its own limit: at one above, or the machine's", done["err"])
        self.assertIn("limit 1 GiB", done["err"])

    def test_a_user_limits_workers_in_a_cgroup_that_was_given_to_them(self):
        out = self.ran("user")["out"]
        self.assertRegex(out, r"^1000\n0::/users/ddprun-round-\d+-1/worker-0\n$")
        self.assertNotIn("enforced", self.seen["user"]["err"])

    def test_processes_that_a_crash_left_are_ended_by_the_next_ddprun(self):
        crash = self.seen["crash"]
        self.assertTrue(crash["outlives"], crash)
        self.assertEqual([each for each in crash["left"] if each.startswith("ddprun-round")][0][:13], "ddprun-round-", crash)
        self.ran("after_crash")
        self.assertTrue(crash["ended"], crash)
        self.assertEqual(crash["left_then"], ["ddprun-supervisor"])

    def test_a_crowded_cgroup_is_said_and_the_job_runs_without_limits(self):
        done = self.ran("crowd")
        self.assertRegex(done["err"], r"--worker-memory can't be enforced: process \d+ \(sleep\) is in /sys/fs/cgroup/crowded, too")
        self.assertIn("/worker-0", done["out"])  # the worker gets a cgroup even so, to be killed by it
        done = self.ran("crowd_required", 2)
        self.assertRegex(done["err"], r"^ddprun: --worker-limits=required: --worker-memory can't be enforced: [^\n]*\n$")

    def test_cgroups_that_cannot_be_written_are_one_line(self):
        done = self.ran("read_only")
        self.assertRegex(done["err"], r"--worker-memory, --worker-pids can't be enforced: /sys/fs/cgroup: Read-only file system;")
        self.assertEqual(done["err"].count("\n"), 1, self.text)
        self.ran("read_only_required", 2)


if __name__ == "__main__":
    if sys.argv[1:2] == [user_mode_linux.GUEST]:
        guest = Guest()
        guest.run()
        write(sys.argv[2], json.dumps(guest.seen))
    else:
        harness.main()
