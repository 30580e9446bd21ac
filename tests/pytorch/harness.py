# SPDX-License-Identifier: Apache-2.0
"""Runs the jobs of tests/pytorch/jobs under ddprun, on this machine or on hosts of netns.py."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import netns  # noqa: E402
import runner  # noqa: E402
import skips  # noqa: E402

BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(HERE, "../../build/release/bin"))
DDPRUN = os.path.join(BIN, "ddprun")


def job(name):
    return os.path.join(HERE, "jobs", name + ".py")


wanted = {}  # environment variables that all jobs get


def environment(**more):
    """Returns this environment without variables that another launcher or a user's configuration may have set."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "PET_", "SLURM_", "DDPRUN_",
               "OMP_NUM_THREADS", "GLOO_")
    base = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return {**base, "PYTHON_EXEC": sys.executable, "XDG_CONFIG_HOME": "/nonexistent", **wanted, **more}


def require_torch():
    """Ends this test with "SKIPPED: reason" unless this interpreter has PyTorch and ddprun exists."""
    try:
        import torch.distributed  # noqa: F401
    except ImportError as error:
        skips.skip_all(f"no PyTorch in {sys.executable} ({error}): scripts/setup.sh full")
    if not os.path.exists(DDPRUN):
        sys.exit(f"no {DDPRUN}: build it first")


class Job(unittest.TestCase):
    """`run_job` and `run_on_hosts` return completed processes with stdout and stderr as text."""

    maxDiff = None

    def run_job(self, *args, timeout=120, command=(DDPRUN,), cwd=HERE, **more):
        done = subprocess.run([*command, *args], env=environment(**more), timeout=timeout, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, cwd=cwd)
        self.transcript = f"{' '.join(args)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        self.check_warm(done.stderr)
        return done

    def check_warm(self, said):
        """With --warm: checks that all workers of all rounds began warm."""
        if wanted:
            rounds = re.findall(r"round \d+ run; (\d+) of (\d+) began warm", said)
            self.assertTrue(rounds and all(warm == all_ for warm, all_ in rounds) and "--preload:" not in said, said)

    def run_on_hosts(self, hosts, args_of, timeout=120, **more):
        """Runs ddprun on each host at once with the arguments args_of(host)."""
        running = [host.popen([DDPRUN, *args_of(host)], cwd=HERE, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=environment(**more))
                   for host in hosts]
        outputs = []
        for process in running:
            try:
                outputs.append(process.communicate(timeout=timeout)[0])
            except subprocess.TimeoutExpired:
                for host in hosts:
                    host.kill()
                outputs.append("TIMED OUT\n" + process.communicate()[0])
        codes = [process.returncode for process in running]
        self.transcript = f"{codes}\n" + "\n-- next host\n".join(outputs)
        return codes, outputs

    def lines(self, text, containing):
        return sorted(line[line.index(containing):] for line in text.splitlines() if containing in line)


def shown(directory):
    """Returns rank → JSON of the files that jobs/show.py wrote."""
    given = {}
    for name in os.listdir(directory):
        with open(os.path.join(directory, name)) as f:
            given[int(name.split(".")[0])] = json.load(f)
    return given


def scratch():
    return tempfile.TemporaryDirectory(prefix="ddprun-pytorch-")


def main():
    """Runs the tests. With the argument --warm workers start with PyTorch's modules imported (docs/warm.md)."""
    require_torch()
    if "--warm" in sys.argv:
        sys.argv.remove("--warm")
        wanted.update(DDPRUN_PRELOAD="torch.distributed", LOGLEVEL="INFO")
    runner.main()
