#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests python/ddprun/progress.py in real worker processes, with a fake agent and under ddprun."""
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(os.path.dirname(__file__), "../..")
BIN = os.environ.get("DDPRUN_BIN_DIR", "")
MODULE = os.path.join(SOURCE, "python")
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import files  # noqa: E402
import package  # noqa: E402
import runner  # noqa: E402


def worker_environment(**more):
    return package.environment(PYTHONPATH=MODULE, **more)


class Agent:
    """A fake agent."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "agent.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.settimeout(20)
        self.listener.bind(self.path)
        self.listener.listen()
        self.memory = os.memfd_create("page")
        os.truncate(self.memory, 4096)
        self.page = mmap.mmap(self.memory, 4096)
        self.page[:8] = b"DDPRUNPG"
        self.page[8] = 1

    def close(self):
        self.page.close()
        os.close(self.memory)
        self.listener.close()

    def word(self, offset):
        return struct.unpack_from("<Q", self.page, offset)[0]

    def take(self):
        connection, _ = self.listener.accept()
        connection.settimeout(20)
        lines = connection.makefile("r")
        hello = json.loads(lines.readline())
        connection.sendmsg([b'{"type":"welcome","version":1}\n'],
                           [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", self.memory))])
        return connection, lines, hello


class Module(unittest.TestCase):
    def setUp(self):
        self.agent = Agent(files.scratch(self))
        self.addCleanup(self.agent.close)

    def take(self):
        """The lines and the hello of a worker that comes."""
        connection, lines, hello = self.agent.take()
        self.addCleanup(connection.close)
        self.addCleanup(lines.close)
        return lines, hello

    def worker(self, code, **more):
        worker = subprocess.Popen([sys.executable, "-c", code], env=worker_environment(
            DDPRUN_AGENT_SOCKET=self.agent.path, DDPRUN_ROUND="3", LOCAL_RANK="2", **more),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(worker.communicate)
        self.addCleanup(worker.kill)
        return worker

    def test_its_own_local_rank_is_in_the_hello_if_every_worker_is_local_rank_0(self):
        self.worker("import ddprun; ddprun.step(1); input()", DDPRUN_LOCAL_RANK="5")
        _, hello = self.take()
        self.assertEqual(hello["local_rank"], 5)

    def test_steps_and_phases_land_in_the_page_and_the_first_step_is_said_once(self):
        worker = self.worker(
            "import ddprun\n"
            "ddprun.step(41); print('begun', flush=True); input()\n"
            "ddprun.step(42); ddprun.report(0.5, 64); ddprun.step(43); ddprun.log(loss=0.25, num_samples=60)\n"
            "ddprun.step_parts(step=1.5, forward=0.5, bytes=1000)\n"
            "ddprun.step_parts(1, 0.25, 0.125, 0.0625, 0.5, 2, 24)\n"
            "print('two done', flush=True); input()\n"
            "ddprun.phase('checkpoint'); print('checkpoint', flush=True); input()\n")
        lines, hello = self.take()
        self.assertEqual(hello, {"type": "hello", "version": 1, "round": 3, "local_rank": 2})
        self.assertEqual(worker.stdout.readline(), "begun\n")
        self.assertEqual([self.agent.word(o) for o in (64, 72, 80)], [1, 41, 0])
        print(file=worker.stdin, flush=True)
        self.assertEqual(worker.stdout.readline(), "two done\n")
        self.assertEqual([self.agent.word(o) for o in (64, 72, 80)], [1, 43, 42])
        self.assertEqual([self.agent.word(o) for o in (768, 784)], [2, 124])
        self.assertEqual(struct.unpack_from("<d", self.agent.page, 776)[0], 0.25)
        self.assertEqual([self.agent.word(o) for o in range(792, 864, 8)],
                         [2, 2, 2_500_000_000, 750_000_000, 125_000_000, 62_500_000, 500_000_000, 2_000_000_000, 1024])
        print(file=worker.stdin, flush=True)
        self.assertEqual(worker.stdout.readline(), "checkpoint\n")
        self.assertEqual(self.agent.word(64), 2)
        print(file=worker.stdin, flush=True)
        self.assertEqual(worker.wait(20), 0)
        self.assertEqual([json.loads(line) for line in lines], [{"type": "first_step", "step": 41}])

    def test_requests_arrive_and_a_stop_request_is_seen(self):
        worker = self.worker(
            "import ddprun\n"
            "assert ddprun.connected() and not ddprun.stop_requested()\n"
            "assert ddprun.exclude_node('bad \"ECC\"')\n"
            "assert ddprun.stop_job('\\u8aa4\\ud800' * 9000, exit_code=9)\n"
            "print('said', flush=True); input()\n"
            "assert ddprun.stop_requested()\n")
        lines, _ = self.take()
        self.assertEqual(worker.stdout.readline(), "said\n")
        self.assertEqual(json.loads(lines.readline()),
                         {"type": "exclude_node", "reason": 'bad "ECC"'})
        stop = lines.readline()
        self.assertLessEqual(len(stop), 4096)
        self.assertEqual(json.loads(stop)["exit_code"], 9)
        struct.pack_into("<Q", self.agent.page, 128, 1)
        print(file=worker.stdin, flush=True)
        self.assertEqual(worker.wait(20), 0)

    def test_a_forked_child_has_a_connection_of_its_own(self):
        self.worker("import ddprun, os\n"
                    "ddprun.connected()\n"
                    "child = os.fork()\n"
                    "if child == 0: ddprun.exclude_node('child'); os._exit(0)\n"
                    "os.waitpid(child, 0)\n")
        lines, _ = self.take()
        child_lines, _ = self.take()
        self.assertEqual(json.loads(child_lines.readline())["reason"], "child")
        self.assertEqual(lines.readline(), "")

    def test_all_ranks_leave_at_one_boundary(self):
        # Both ranks are in one process, so a dictionary is their store.
        code = ("import ddprun, os\n"
                "class Store:\n"
                "    def __init__(self): self.keys = {}\n"
                "    def add(self, key, n): self.keys[key] = self.keys.get(key, 0) + n; return self.keys[key]\n"
                "    def check(self, keys): return all(k in self.keys for k in keys)\n"
                "    def get(self, key): return str(self.keys[key]).encode()\n"
                "store = Store()\n"
                "assert not ddprun.should_stop(5, store); print('begun', flush=True); input()\n"
                "assert not ddprun.should_stop(6, store)\n"
                "assert not ddprun.should_stop(7, store)\n"
                "store.add('ddprun/3/stop/posted', 1); store.add('ddprun/3/stop/boundary', 9)\n"
                "assert not ddprun.should_stop(8, store)\n"
                "assert ddprun.should_stop(9, store)\n"
                "assert store.keys['ddprun/3/stop/posted'] == 2\n"
                "print('left', flush=True); input()\n")
        worker = self.worker(code, WORLD_SIZE="2")
        lines, _ = self.take()
        self.assertEqual(worker.stdout.readline(), "begun\n")
        struct.pack_into("<Q", self.agent.page, 128, 1)
        print(file=worker.stdin, flush=True)
        self.assertEqual(worker.stdout.readline(), "left\n")
        self.assertEqual([self.agent.word(o) for o in (72, 80)], [8, 8])
        print(file=worker.stdin, flush=True)
        self.assertEqual(worker.wait(20), 0)

    def test_an_agent_that_was_silent_is_joined_at_a_later_step(self):
        worker = self.worker(
            "import ddprun, sys, time\n"
            "sys.stderr = sys.stdout\n"
            "ddprun.step(6); assert not ddprun.connected(); print('trains', flush=True); input()\n"
            "ddprun.step_parts(step=1, bytes=7)\n"
            "begun, step = time.monotonic(), 7\n"
            "while not ddprun.connected() and time.monotonic() < begun + 20:\n"
            "    before = time.monotonic(); ddprun.step(step); step += 1\n"
            "    assert time.monotonic() - before < 1\n"
            "    time.sleep(0.01)\n"
            "ddprun.step(900); ddprun.step(901); print('done', flush=True); input()\n")
        self.assertIn("no progress is reported", worker.stdout.readline())
        self.assertEqual(worker.stdout.readline(), "trains\n")
        lines, hello = self.take()
        self.assertEqual(hello["local_rank"], 2)
        print(file=worker.stdin, flush=True)
        self.assertEqual(worker.stdout.readline(), "done\n")
        self.assertEqual([self.agent.word(o) for o in (64, 72, 80)], [1, 901, 900])
        self.assertEqual([self.agent.word(o) for o in (792, 800, 808, 856)], [1, 1, 1_000_000_000, 7])
        self.assertEqual(json.loads(lines.readline())["type"], "first_step")
        print(file=worker.stdin, flush=True)
        self.assertEqual(worker.wait(20), 0)

    def test_a_store_that_fails_or_is_silent_costs_the_agreement_not_the_step(self):
        fails = "def add(self, key, n): raise RuntimeError('Connection reset by peer')\n"
        silent = "def add(self, key, n): threading.Event().wait()\n"
        # MASTER_ADDR isn't set, so the module can't make its own store. torch is imported before the time is measured,
        # because a program with a store has imported it, too. Without torch the module fails at its import.
        no_store = "try: import torch.distributed\n    except ImportError: pass\n"
        for store, argument in ((fails, "Store()"), (silent, "Store()"), (no_store, "None")):
            with self.subTest(store):
                worker = self.worker(
                    "import ddprun, sys, threading, time\n"
                    "sys.stderr = sys.stdout\n"
                    "class Store:\n    " + store +
                    "assert not ddprun.should_stop(1); print('begun', flush=True); input()\n"
                    "begun = time.monotonic()\n"
                    "for step in (2, 3, 4): assert not ddprun.should_stop(step, " + argument + ")\n"
                    "assert time.monotonic() - begun < 4\n"
                    "print('trained', flush=True); input()\n", WORLD_SIZE="2")
                lines, _ = self.take()
                self.assertEqual(worker.stdout.readline(), "begun\n")
                soon = time.monotonic_ns() + 500_000_000
                struct.pack_into("<QQ", self.agent.page, 128, 1, soon)
                print(file=worker.stdin, flush=True)
                out = []
                while "trained\n" not in out:
                    out.append(worker.stdout.readline())
                    self.assertTrue(out[-1], out)
                self.assertTrue(all("can't agree on a step" in line for line in out[:-1]), out)
                self.assertIn(len(out), (2, 3))
                self.assertEqual(self.agent.word(72), 4)
                print(file=worker.stdin, flush=True)
                self.assertEqual(worker.wait(20), 0)
                struct.pack_into("<QQ", self.agent.page, 128, 0, 0)

    def test_every_call_works_without_an_agent(self):
        code = ("import ddprun\n"
                "ddprun.step(1); ddprun.step_parts(step=1); ddprun.step_done(); ddprun.phase('evaluate')\n"
                "assert not ddprun.connected() and not ddprun.stop_requested()\n"
                "assert not ddprun.exclude_node('x') and not ddprun.stop_job('x')\n")
        for more in ({}, {"DDPRUN_AGENT_SOCKET": "/nowhere/agent.sock"}):
            done = subprocess.run([sys.executable, "-c", code], env=worker_environment(**more),
                                  timeout=20, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("no progress is reported" in done.stderr, bool(more))


@unittest.skipUnless(os.path.exists(os.path.join(BIN, "ddprun")), "ddprun is not built")
class UnderDdprun(unittest.TestCase):
    def test_each_worker_reaches_its_agent(self):
        code = "import ddprun; ddprun.step(1); ddprun.step(2); assert ddprun.connected()"
        done = self.job(code, "--nproc-per-node=3")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @staticmethod
    def command(code, *flags):
        return [os.path.join(BIN, "ddprun"), "--standalone", "--nproc-per-node=2", *flags, "--no-python", sys.executable, "-c", code]

    def job(self, code, *flags):
        return subprocess.run(self.command(code, *flags), env=worker_environment(), timeout=40, capture_output=True, text=True)

    def test_a_worker_ends_the_job_with_its_reason_and_its_code(self):
        code = ("import ddprun, os, time\n"
                "if os.environ['RANK'] == '1': ddprun.stop_job('loss is nan', exit_code=9)\n"
                "time.sleep(30)")
        done = self.job(code, "--max-restarts=3")
        self.assertEqual(done.returncode, 9, done.stderr)
        self.assertIn("rank 1 on ", done.stderr)
        self.assertIn("asked to stop the job: loss is nan", done.stderr)

    def test_a_worker_s_request_comes_before_the_news_of_its_end(self):
        code = ("import ddprun, os, time\n"
                "if os.environ['RANK'] == '1': ddprun.stop_job('bye', exit_code=9); os._exit(3)\n"
                "time.sleep(30)")
        for _ in range(5):
            done = self.job(code, "--max-restarts=3")
            self.assertEqual(done.returncode, 9, done.stderr)

    def test_a_worker_s_request_before_it_ends_well_is_heard(self):
        code = ("import ddprun, json, socket\n"
                "for _ in range(18): ddprun.progress._agent().say({'type': 'news', 'filler': 'x' * 3000})\n"
                "ddprun.stop_job('bye', exit_code=9)\n")
        for _ in range(5):
            done = self.job(code)
            self.assertEqual(done.returncode, 9, done.stderr)

    def test_steps_that_a_restart_does_again_are_told_as_lost(self):
        code = ("import ddprun, os, time\n"
                "first = 1 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 6\n"
                "for step in range(first, 12):\n"
                "    ddprun.step(step); time.sleep(0.02)\n"
                "ddprun.step_done()\n"
                "if first == 1: time.sleep(0.2 if os.environ['RANK'] == '0' else 20); os._exit(3)\n")
        done = self.job(code, "--max-restarts=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"2 rounds; .* s until the first step, .* s in steps that were done again")

    def test_restarts_without_progress_end_with_76(self):
        code = "import ddprun, os; ddprun.step(1); os._exit(3)"
        done = self.job(code, "--max-restarts=9", "--no-progress-restarts=2", "--max-restart-delay=0")
        self.assertEqual(done.returncode, 76, done.stderr)
        self.assertIn("2 rounds in a row ended without a finished step", done.stderr)

    def preempted_job(self, *flags, warn):
        """Runs a gloo job of two ranks that is warned while it trains. Returns its output."""
        code = ("import ddprun, os, sys, time, torch\n"
                "import torch.distributed as dist\n"
                "dist.init_process_group('gloo')\n"
                "for step in range(1, 10000):\n"
                "    if ddprun.should_stop(step): print('left at', step, flush=True); sys.exit(75)\n"
                "    dist.all_reduce(torch.ones(1)); time.sleep(0.001 * (1 + dist.get_rank()))\n"
                "    if step == 3: print('trains', flush=True)\n")
        job = subprocess.Popen(self.command(code, *flags), text=True, env=worker_environment(), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        self.addCleanup(job.kill)
        out = ""
        while "trains" not in out:
            line = job.stdout.readline()
            if not line:
                self.fail(job.communicate()[1])
            out += line
        job.send_signal(warn)
        rest, err = job.communicate(timeout=60)
        return job.returncode, out + rest, err

    def test_a_preempted_pytorch_job_leaves_at_one_step(self):
        try:
            import torch.distributed  # noqa: F401
        except ImportError:
            self.skipTest("no PyTorch here")
        for flags, warn in ((), signal.SIGUSR1), (("--preemption-signals=TERM",), signal.SIGTERM):
            with self.subTest(flags):
                returncode, out, err = self.preempted_job(*flags, warn=warn)
                self.assertEqual(returncode, 75, err)
                steps = [line.split()[-1] for line in out.splitlines() if "left at" in line]
                self.assertEqual(len(steps), 2, out)
                self.assertEqual(steps[0], steps[1], out)
                self.assertIn("at step %d" % (int(steps[0]) - 1), err)

    def test_excluding_the_only_node_ends_the_job(self):
        code = ("import ddprun, os, time\n"
                "if os.environ['RANK'] == '0': ddprun.exclude_node('ECC errors'); os._exit(3)\n"
                "time.sleep(30)")
        done = self.job(code, "--max-restarts=3")
        self.assertEqual(done.returncode, 75, done.stderr)
        self.assertIn("is excluded: rank 0 asked for it: ECC errors", done.stderr)


if __name__ == "__main__":
    runner.main()
