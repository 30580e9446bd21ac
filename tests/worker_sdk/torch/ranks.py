# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a worker program without a launcher, with a launcher's environment and store. The store is
PyTorch's own server, in a process of its own on the first host. Python's ranks are forks of one process that has
imported PyTorch.
"""
import atexit
import functools
import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(os.path.join(HERE, "../../..")))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/dev/bin"))
PYTHON = os.path.join(SOURCE, ".venv/bin/python3")
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import skips  # noqa: E402

STORE_SERVER = """
import datetime, sys
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], 0, is_master=True, wait_for_workers=False,
                 timeout=datetime.timedelta(seconds=60))
print(store.port, flush=True)
sys.stdin.read()
"""


class PyTorch:
    """The process of pytorch_forks.py. get() returns the single instance."""

    def __init__(self):
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen([PYTHON, os.path.join(HERE, "pytorch_forks.py")], env=env, text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        atexit.register(self._end)
        self.error = self._answer(60)["error"]  # None: PyTorch can be imported

    def _end(self):
        self._process.kill()  # its children end with it
        return self._process.wait()

    @staticmethod
    @functools.cache
    def get():
        return PyTorch()

    def _answer(self, timeout):
        if select.select([self._process.stdout], [], [], timeout)[0]:
            line = self._process.stdout.readline()
            if line:
                return json.loads(line)
        status = self._process.poll()
        self._end()
        raise AssertionError(f"PyTorch's ranks hang, after {timeout} s" if status is None else
                             f"PyTorch's process ended with {status}")

    def _ask(self, timeout, **command):
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer(timeout)

    def serve(self, address):
        """Starts a store at `address`. Returns its port."""
        return self._ask(60, serve=address)["port"]

    def run(self, argv, environments, timeout):
        """Runs a Python program with each of the environments, all at once. It must succeed. Returns the outputs."""
        with tempfile.TemporaryDirectory(prefix="ddprun-test-") as directory:
            paths = [os.path.join(directory, str(i)) for i in range(len(environments))]
            programs = [{"argv": argv, "env": env, "output": path} for env, path in zip(environments, paths)]
            codes = self._ask(timeout, run=programs)["codes"]
            outputs = []
            for path in paths:
                with open(path, encoding="utf-8", errors="replace") as f:
                    outputs.append(f.read())
        assert codes == [0] * len(codes), f"{argv}: exit status {codes}\n" + "\n".join(outputs)
        return outputs


def skip_without_pytorch():
    why = PyTorch.get().error if os.path.exists(PYTHON) else f"no {PYTHON}"
    if why:
        skips.skip_all(f"PyTorch for Python is not importable: {why}")


class Local:
    """This machine, with the interface of netns.Host."""
    address = "127.0.0.1"

    @staticmethod
    def popen(argv, **kwargs):
        return subprocess.Popen(argv, **kwargs)


class StoreServer:
    """A store server at `port` on `host`; a context manager."""

    def __init__(self, host=Local):
        self.host = host
        self._process = None
        if host is Local:
            self.port = PyTorch.get().serve(host.address)
            return
        self._process = host.popen([PYTHON, "-c", STORE_SERVER, host.address], text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.port = int(self._process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self._process:
            return
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()


def environment(server, world, rank, num_hosts, round_number):
    per_host = world // num_hosts
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "DDPRUN_")
    base = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return {**base, "RANK": str(rank), "LOCAL_RANK": str(rank % per_host),
            "GROUP_RANK": str(rank // per_host), "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(per_host), "GROUP_WORLD_SIZE": str(num_hosts),
            "MASTER_ADDR": server.host.address, "MASTER_PORT": str(server.port),
            "DDPRUN_ROUND": str(round_number), "OMP_NUM_THREADS": "1"}


class Job:
    """`world` ranks of `argv`, shared evenly by `hosts`. Each job at the same server needs a `round_number` of its own.
    `processes` is by rank."""

    def __init__(self, server, world, argv, hosts=(Local,), round_number=1):
        self.processes = []
        for rank in range(world):
            host = hosts[rank * len(hosts) // world]
            env = environment(server, world, rank, len(hosts), round_number)
            env["DDPRUN_NODE_ADDR"] = host.address
            self.processes.append(host.popen(argv, env=env, text=True, stdin=subprocess.DEVNULL,
                                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT))

    def wait(self, timeout=60):
        """Returns exit status and output of each rank. Kills all ranks at the timeout."""
        try:
            outputs = [process.communicate(timeout=timeout)[0] for process in self.processes]
        except subprocess.TimeoutExpired:
            for process in self.processes:
                process.kill()
            outputs = [process.communicate()[0] for process in self.processes]
            raise AssertionError(f"ranks hang; their output:\n{outputs}") from None
        return [process.returncode for process in self.processes], outputs


def run(server, world, argv, hosts=(Local,), round_number=1, timeout=60):
    """Runs a job, which must succeed. Returns the outputs by rank."""
    codes, outputs = Job(server, world, argv, hosts, round_number).wait(timeout)
    assert codes == [0] * world, f"{argv}: exit status {codes}\n" + "\n".join(outputs)
    return outputs


class RanksTest(unittest.TestCase):
    """A base of tests whose ranks meet at one server, each job in its own round. `directory` belongs to the class."""
    server = directory = None
    _rounds = itertools.count(1)

    @classmethod
    def setUpClass(cls):
        cls.server = StoreServer()
        cls.addClassCleanup(cls.server.__exit__)
        directory = tempfile.TemporaryDirectory(prefix="ddprun-test-")
        cls.addClassCleanup(directory.cleanup)
        cls.directory = directory.name

    def scratch(self):
        directory = tempfile.TemporaryDirectory(prefix="ddprun-test-")
        self.addCleanup(directory.cleanup)
        return directory.name

    def start_ranks(self, world, argv):
        return Job(self.server, world, argv, round_number=next(self._rounds))

    @classmethod
    def run_pytorch(cls, world, argv, timeout=120):
        """Runs a Python program on `world` ranks, which must succeed. Returns the outputs by rank."""
        number = next(cls._rounds)
        return PyTorch.get().run(argv, [environment(cls.server, world, rank, 1, number) for rank in range(world)],
                                 timeout)

    def run_ranks(self, world, argv, hosts=(Local,), server=None, timeout=120):
        return run(server or self.server, world, argv, hosts, next(self._rounds), timeout)
