#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests configs/train.sbatch under a real Slurm (tests/support/slurm.py) of two nodes."""
import importlib.util
import os
import re
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(os.path.join(HERE, "../..")))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/release/bin"))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import netns  # noqa: E402
import runner  # noqa: E402
import files  # noqa: E402
import skips  # noqa: E402
import slurm  # noqa: E402


def fnv1a(text):
    """Returns the hash of common/fnv1a.h, from which ddprun makes a step's port."""
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 % (1 << 64)
    return value


class Batch(unittest.TestCase):
    def setUp(self):
        self.directory = files.scratch(self)
        self.hosts = netns.Hosts(2)
        self.addCleanup(self.hosts.close)
        self.slurm = slurm.Slurm(self.hosts, self.directory)
        if not self.slurm.wait_until_idle():
            print(self.slurm.logs())
            self.skipTest("Slurm did not come up on this machine")

    def submit(self, program, *arguments):
        """Runs configs/train.sbatch with `program` as its `train`. Returns its exit code and its output."""
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

    def step(self, *words, **environment):
        """Starts srun with these words on both nodes."""
        argv = [self.slurm.user_program("srun"), "-N2", "--ntasks-per-node=1", *words]
        process = self.hosts[0].popen(argv, self.directory, env={**self.slurm.environment, **environment}, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def end_of(self, process, seconds):
        """Returns what the step says until its end. If it doesn't end in time, the test fails with what it said."""
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            self.fail(f"no end within {seconds} s: {process.communicate()[0]}{self.slurm.logs()}")

    def made(self):
        """Returns the files in the shared folder."""
        return sorted(name for _, _, names in os.walk(os.path.join(self.directory, "shared")) for name in names)

    def share(self):
        os.mkdir(os.path.join(self.directory, "shared"))
        return {"DDPRUN_SHARED_DIR": os.path.join(self.directory, "shared")}

    def test_a_step_with_a_shared_folder_has_a_token_of_its_own(self):
        go = os.path.join(self.directory, "go")
        process = self.step(os.path.join(BIN, "ddprun"), "--no-python", "sh", "-c",
                            f"env; echo here; until [ -e {go} ]; do sleep 0.05; done", **self.share())
        said = ""
        while said.count("here\n") < 2:
            line = process.stdout.readline()
            self.assertTrue(line, said + self.slurm.logs())
            said += line
        (name,) = self.made()
        folder = os.path.join(self.directory, "shared", f"ddprun-{os.geteuid()}")
        with open(os.path.join(folder, name)) as f:
            token = f.read().strip()
        job, step = re.search(r"slurm-test-(\d+)\.(\d+)-0$", name).groups()
        port = 29400 + fnv1a(f"{job}.{step}") % 3000
        stranger = self.hosts[1].run([os.path.join(BIN, "ddprun"), "--nnodes=2", f"--rdzv-endpoint=node0:{port}",
                                      f"--rdzv-id=slurm-{job}.{step}", "--no-python", "echo", "never"], text=True,
                                     env={"PATH": "/usr/bin:/bin"}, capture_output=True, timeout=30)
        self.assertEqual((stranger.returncode, stranger.stdout), (2, ""), stranger.stderr)
        self.assertIn("wants a token", stranger.stderr)
        with open(go, "w"):
            pass
        said += self.end_of(process, 60)
        self.assertEqual(process.returncode, 0, said + self.slurm.logs())
        self.assertEqual(said.count(f"only users who can read {folder}/{name}"), 1, said)
        self.assertNotIn("trusts the network", said)
        self.assertNotIn(token, said)  # the output has the workers' `env`
        self.assertEqual(set(re.findall(r"MASTER_ADDR=(\S+)", said)), {self.hosts[0].address})
        self.assertEqual(self.made(), [])

    def test_each_ddprun_of_a_step_meets_those_of_its_own_job(self):
        process = self.step("sh", "-c", "for i in 1 2 3 4 5; do ddprun --no-python sh -c \"echo job $i rank \\$RANK\" "
                            "|| exit; done", **self.share())
        said = self.end_of(process, 90)
        self.assertEqual(process.returncode, 0, said + self.slurm.logs())
        for job in range(1, 6):
            for rank in (0, 1):
                self.assertIn(f"job {job} rank {rank}\n", said)
        self.assertEqual(said.count("only users who can read"), 5, said)
        self.assertEqual(self.made(), [])

    def test_a_node_that_cannot_have_the_token_says_why_and_is_refused(self):
        shared = self.share()
        process = self.step("sh", "-c", '[ "$SLURM_NODEID" = 0 ] || export DDPRUN_SHARED_DIR=/nonexistent; '
                            "exec ddprun --rdzv-conf=join_timeout=5 --no-python echo ran", **shared)
        said = self.end_of(process, 60)
        self.assertNotEqual(process.returncode, 0, said)
        self.assertRegex(said, r"has no token of the Slurm step \d+\.\d+: /nonexistent/ddprun-\d+: No such file")
        self.assertIn("wants a token", said)
        self.assertNotIn("ran\n", said)

    def test_a_step_without_a_shared_folder_trusts_the_network(self):
        process = self.step("ddprun", "--no-python", "true", DDPRUN_SHARED_DIR="")
        said = self.end_of(process, 60)
        self.assertEqual((process.returncode, said.count("trusts the network")), (0, 1), said + self.slurm.logs())

    @unittest.skipUnless(importlib.util.find_spec("jax"), "no JAX here: scripts/setup.sh full")
    def test_jax_finds_its_processes_within_a_step(self):
        """JAX itself would take the step's tasks, one on each node, for its processes."""
        for per_node in (1, 2):
            with self.subTest(per_node=per_node):
                done = self.slurm.run("srun", "-N2", "--ntasks-per-node=1", "env", "JAX_PLATFORMS=cpu",
                                      f"PYTHONPATH={os.path.join(SOURCE, 'python')}", os.path.join(BIN, "ddprun"),
                                      f"--nproc_per_node={per_node}", "--no-python", sys.executable,
                                      os.path.join(SOURCE, "tests/python/jax_worker.py"), timeout=100)
                self.assertEqual(done.returncode, 0, done.stdout + self.slurm.logs())
                ranks = [float(rank) for rank in range(2 * per_node)]
                for rank in range(2 * per_node):
                    self.assertIn(f"process {rank} of {2 * per_node}: {ranks}", done.stdout)

    def test_a_batch_script_without_srun_is_told_what_starts_on_all_nodes(self):
        output = os.path.join(self.directory, "job.log")
        done = self.slurm.run("sbatch", "--wait", "-N2", "--output", output, "--chdir", self.directory, "--wrap",
                              os.path.join(BIN, "ddprun") + " --no-python sh -c 'echo world $WORLD_SIZE'", timeout=60)
        with open(output) as f:
            text = f.read()
        self.assertEqual(done.returncode, 0, text + self.slurm.logs())
        self.assertIn("world 1\n", text)
        self.assertRegex(text, r"though Slurm job \d+ has 2 nodes: .* srun --nodes=2 --ntasks-per-node=1 ddprun "
                               r"--no-python sh -c 'echo world \$WORLD_SIZE'")

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
    reason = slurm.why_not()
    if reason:
        skips.skip_all(reason)
    netns.hosts_or_skip(1).close()
    runner.main()
