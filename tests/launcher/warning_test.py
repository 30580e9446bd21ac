#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that a warning (--preemption-signals, --time-limit) goes to the workers with a handler for its signal."""
import os
import signal
import sys

import harness

# A worker that prints when it is ready, counts its signal (SIGUSR1 by default), and exits with 75 when $GO exists.
HANDLER = """
import os, signal, sys, time
count = 0
def warned(*_):
    global count
    count += 1
    print("warned", os.environ["RANK"], count, flush=True)
signal.signal(signal.Signals[sys.argv[1] if len(sys.argv) > 1 else "SIGUSR1"], warned)
child = os.fork()  # as a data loader: it has its parent's handler, and is the parent's business
if child == 0:
    signal.signal(signal.SIGUSR1, lambda *_: print("child", flush=True))
    time.sleep(600)
print("ready", os.environ["RANK"], flush=True)
while not os.path.exists(os.environ["GO"]): time.sleep(0.01)
os.kill(child, signal.SIGKILL)
sys.exit(75)
"""
# A worker without a handler: the signal would end it.
PLAIN = 'echo ready $RANK; until [ -e "$GO" ]; do sleep 0.02; done; echo alive $RANK; exit 75'


class Warning_(harness.Case):
    def setUp(self):
        self.folder = self.scratch()
        self.go = os.path.join(self.folder, "go")
        self.script = self.write(self.folder, "handler.py", HANDLER)

    def let_go(self):
        open(self.go, "w").close()

    @staticmethod
    def lines(process, *wanted):
        """Reads stdout until each of these lines has come. Returns all lines, without prefix."""
        seen = []
        missing = set(wanted)
        while missing:
            line = process.stdout.readline()
            if not line:
                raise AssertionError(f"ended without {missing}: {seen}\n{process.stderr.read()}")
            seen.append(line.strip().split("] ")[-1])
            missing.discard(seen[-1])
        return seen

    def test_a_worker_that_handles_it_gets_it_once_and_one_that_does_not_lives(self):
        script = (f'case $RANK in 0) exec {sys.executable} {self.script};; 1) {PLAIN};; '
                  f'2) sh -c "{sys.executable} {self.script}; exit \\$?"; exit $?;; esac')
        process = self.start("--standalone", "--nproc-per-node=3", "sh", "-c", script, GO=self.go)
        self.lines(process, "ready 0", "ready 1", "ready 2")
        process.send_signal(signal.SIGUSR1)
        seen = self.lines(process, "warned 0 1", "warned 2 1")
        process.send_signal(signal.SIGUSR1)  # schedulers repeat the signal
        self.let_go()
        done = self.finish(process, code=75)
        self.assertIn("alive 1", done.stdout)
        everything = "\n".join(seen) + done.stdout
        self.assertNotIn("warned 0 2", everything)
        self.assertNotIn("child", everything)

    def test_the_workers_of_all_nodes_get_the_signal_that_came(self):
        port = harness.free_port()
        nodes = [self.start("--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}",
                            "--preemption-signals=SIGUSR1,SIGUSR2", "--no-python", sys.executable, self.script, "SIGUSR2",
                            GO=self.go) for rank in (0, 1)]
        for rank, node in enumerate(nodes):
            self.lines(node, f"ready {rank}")
        nodes[1].send_signal(signal.SIGUSR2)
        for rank, node in enumerate(nodes):
            self.lines(node, f"warned {rank} 1")
        self.let_go()
        for node in nodes:
            self.assertEqual(self.finish(node).returncode, 75)

    def test_control_z_does_not_cost_the_job_a_node(self):
        port = harness.free_port()
        nodes = [self.start("--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}",
                            "--no-python", "sh", "-c",
                            'echo ready $RANK; until [ -e "$GO" ]; do sleep 0.02; done', GO=self.go) for rank in (0, 1)]
        for rank, node in enumerate(nodes):
            self.lines(node, f"ready {rank}")
        for node in nodes:
            node.send_signal(signal.SIGTSTP)
            self.await_line(node, "got SIGTSTP", "goes on")
        self.let_go()
        for node in nodes:
            self.finish(node, code=0)

    def test_control_z_does_not_cost_a_ddprund_its_job_of_one_node(self):
        _, endpoint = self.ddprund()
        node = self.start(f"--rdzv-endpoint={endpoint}", "sh", "-c",
                          'echo ready; until [ -e "$GO" ]; do sleep 0.02; done', GO=self.go)
        self.lines(node, "ready")
        node.send_signal(signal.SIGTSTP)
        self.await_line(node, "got SIGTSTP", "goes on")
        self.let_go()
        self.finish(node, code=0)

    def test_the_workers_are_warned_before_the_time_limit(self):
        process = self.start("--standalone", "--time-limit=30", "--preemption-notice=29", "--no-python", sys.executable,
                             self.script, GO=self.go)
        self.lines(process, "ready 0", "warned 0 1")
        self.let_go()
        self.assertEqual(self.finish(process).returncode, 124)

    def test_the_workers_of_all_nodes_get_it_once_though_each_node_is_warned(self):
        port = harness.free_port()
        nodes = [self.start("--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}",
                            "--no-python", sys.executable, self.script, GO=self.go) for rank in (0, 1)]
        for rank, node in enumerate(nodes):
            self.lines(node, f"ready {rank}")
        nodes[1].send_signal(signal.SIGUSR1)
        for rank, node in enumerate(nodes):
            self.lines(node, f"warned {rank} 1")
        nodes[0].send_signal(signal.SIGUSR1)  # Slurm signals each task of a step
        self.let_go()
        for rank, node in enumerate(nodes):
            done = self.finish(node, code=75)
            self.assertNotIn(f"warned {rank} 2", done.stdout)


if __name__ == "__main__":
    harness.main()
