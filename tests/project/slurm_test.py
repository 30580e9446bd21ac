#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""configs/train.sbatch under a real Slurm: slurmctld and two slurmd on two hosts of netns.py.

scripts/setup.sh full unpacks Debian's Slurm into .cache/slurm, where nothing of it is installed; a
Slurm in the system's own folders is used where there is one. Needs root (slurmd starts as root).
"""
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(os.path.join(HERE, "../..")))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/release/bin"))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import netns  # noqa: E402
import runner  # noqa: E402
import files  # noqa: E402

UNPACKED = os.path.join(SOURCE, ".cache/slurm")
CONFIGURATION = """ClusterName=test
SlurmctldHost=node0
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
PluginDir={plugins}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
NodeName=node[0-1] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """One controller and two nodes. Everything that they write is in `directory`."""

    def __init__(self, hosts, directory):
        self.hosts, self.directory = hosts, directory
        root = UNPACKED if os.path.isdir(UNPACKED) else "/"
        libraries = os.path.join(root, "usr/lib/x86_64-linux-gnu")
        plugins = os.path.join(libraries, "slurm-wlm")
        self._sbin, self._bin = os.path.join(root, "usr/sbin"), os.path.join(root, "usr/bin")
        for name in ("state", "node0", "node1"):
            os.mkdir(os.path.join(directory, name))
        with open(os.path.join(directory, "slurm.conf"), "w") as f:
            f.write(CONFIGURATION.format(plugins=plugins, directory=directory))
        own = {k: v for k, v in os.environ.items()
               if not k.startswith(("SLURM_", "DDPRUN_RDZV", "PET_", "MASTER_", "RANK", "WORLD_SIZE"))}
        self.environment = {**own, "SLURM_CONF": os.path.join(directory, "slurm.conf"),
                            "LD_LIBRARY_PATH": f"{libraries}:{plugins}",
                            "PATH": f"{self._bin}:{BIN}:{own.get('PATH', '')}"}
        self._start(hosts[0], [self._program("slurmctld"), "-D"])
        for host in hosts:
            self._start(host, [self._program("slurmd"), "-D", "-N", host.name,
                               "-d", self._program("slurmstepd")])

    def _program(self, name):
        return os.path.join(self._sbin, name + "-wlm")

    def _start(self, host, argv):
        host.popen(argv, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)

    def run(self, *argv, timeout=60, **kwargs):
        return self.hosts[0].run([os.path.join(self._bin, argv[0]), *argv[1:]], timeout=timeout,
                                 env=self.environment, text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, **kwargs)

    def wait_until_idle(self, seconds=20):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.run("sinfo", "--noheader", "--format=%T %D").stdout.strip() == "idle 2":
                return True
            time.sleep(0.1)
        return False

    def logs(self):
        text = ""
        for name in ("slurmctld.log", "node0.log", "node1.log"):
            path = os.path.join(self.directory, name)
            if os.path.exists(path):
                with open(path, errors="replace") as f:
                    text += f"-- {name}\n" + "".join(f.readlines()[-15:])
        return text


def why_not():
    if os.geteuid() != 0:
        return "slurmd starts as root only"
    if not os.path.isdir(UNPACKED) and not os.path.exists("/usr/sbin/slurmctld-wlm"):
        return "no Slurm here: scripts/setup.sh full unpacks it"
    if not shutil.which("ip"):
        return "the program 'ip' is missing"
    return None


class Batch(unittest.TestCase):
    def setUp(self):
        self.directory = files.scratch(self)
        self.hosts = netns.Hosts(2)
        self.addCleanup(self.hosts.close)
        self.slurm = Slurm(self.hosts, self.directory)
        if not self.slurm.wait_until_idle():
            print(self.slurm.logs())
            self.skipTest("Slurm did not come up on this machine")

    def submit(self, program, *arguments):
        """Runs configs/train.sbatch with `program` as its `train`; its exit code and its output."""
        path = os.path.join(self.directory, "train")
        with open(path, "w") as f:
            f.write("#!/bin/sh\n" + program)
        os.chmod(path, 0o755)
        output = os.path.join(self.directory, "job.log")
        done = self.slurm.run("sbatch", "--wait", "--output", output, "--chdir", self.directory,
                              os.path.join(SOURCE, "configs/train.sbatch"), *arguments, timeout=150)
        text = ""
        if os.path.exists(output):
            with open(output) as f:
                text = f.read()
        return done.returncode, done.stdout + text

    def test_the_batch_script_runs_4_workers_on_each_of_2_nodes(self):
        code, output = self.submit('echo "rank $RANK of $WORLD_SIZE on $(hostname) got $*"\n',
                                   "--epochs=1")
        self.assertEqual(code, 0, output + self.slurm.logs())
        for rank in range(8):  # in Slurm's order of nodes
            self.assertRegex(output, rf"rank {rank} of 8 on node{rank // 4} got "
                                     r"--checkpoint-dir=checkpoints-\d+ --epochs=1")

    def test_a_failing_worker_fails_the_job_with_its_exit_code(self):
        code, output = self.submit('[ "$RANK" != 5 ] || exit 13\nexec sleep 100\n')
        self.assertEqual(code, 13, output + self.slurm.logs())
        self.assertIn("rank 5", output)

    def test_the_nodes_of_a_step_are_the_jobs(self):
        done = self.slurm.run("srun", "-N2", "--ntasks-per-node=1", os.path.join(BIN, "ddprun"), "--nproc_per_node=2",
                              "--no-python", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE on $(hostname)"')
        self.assertEqual(done.returncode, 0, done.stdout + self.slurm.logs())
        for rank in range(4):
            self.assertIn(f"rank {rank} of 4 on node{rank // 2}", done.stdout)
        self.assertIn("--nnodes=2, those of the Slurm step", done.stdout)

    def test_a_job_that_may_go_on_is_queued_again(self):
        code, output = self.submit('echo "run ${SLURM_RESTART_COUNT:-0} of rank $RANK with $1"\n'
                                   '[ "$SLURM_RESTART_COUNT" = 1 ] || exit 75\n')
        self.assertEqual(code, 0, output + self.slurm.logs())
        directories = set(re.findall(r"run \d of rank \d with (--checkpoint-dir=checkpoints-\d+)$", output, re.M))
        self.assertEqual(len(directories), 1, output)
        self.assertIn("run 0 of rank", output)
        for rank in range(8):
            self.assertIn(f"run 1 of rank {rank} with", output)


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"SKIPPED: {reason}")
        sys.exit(0)
    netns.hosts_or_skip(1).close()
    runner.main()
