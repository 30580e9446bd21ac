#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests other users of a job's port: a second job, a worker's own ddprun, unused spares, other jobs' nodes, and
strangers."""
import os
import signal
import socket
import subprocess

import harness


class Base(harness.Case):
    def setUp(self):
        self.port = harness.free_port()
        self.endpoint = f"--rdzv-endpoint=127.0.0.1:{self.port}"


class SharedPort(Base):
    def hold(self, *flags, **more):
        """Starts a job that runs until it is told to end."""
        process = self.start(*flags, "sh", "-c", "echo ready; exec sleep 600", **more)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def refused(self, first, *flags, **more):
        """Starts a second job beside `first`. Its program never runs. Returns the message."""
        done = self.ddprun(*flags, "echo", "never", timeout=20, **more)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.text)
        self.assertIn(f"pid {first.pid} on ", done.stderr)
        self.assertIn("which runs sh", done.stderr)
        self.assertIsNone(first.poll(), "the first job is not disturbed")
        return done.stderr

    def test_a_second_job_on_a_fixed_port_is_refused(self):
        flag = f"--master-port={self.port}"
        said = self.refused(self.hold(flag), "--nproc-per-node=4", flag)
        self.assertIn(f"port {self.port} is in use by ddprun, pid ", said)
        self.assertIn("(job none); give this job another --master-port", said)

    def test_a_second_job_of_another_user_is_refused(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        flags = [self.endpoint, "--rdzv-id=j", "--nnodes=1:1"]
        first = self.hold(*flags)
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", harness.DDPRUN,
                               *flags, "sh", "-c", "echo never"], env=harness.environment(), cwd="/",
                              text=True, capture_output=True, timeout=20)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn("serves programs of its own user and root alone: take another port", done.stderr)
        self.assertIsNone(first.poll(), "the first job is not disturbed")

    def test_a_second_job_of_one_node_under_the_same_id_is_refused(self):
        flags = [self.endpoint, "--rdzv-id=j"]
        said = self.refused(self.hold(*flags), *flags)
        self.assertIn("job j already has 1 of 1 node", said)
        self.assertIn("give another --rdzv-id", said)

    def test_two_jobs_of_one_node_on_one_port_do_not_need_each_other(self):
        first = self.hold(self.endpoint, "--rdzv-id=A")
        for flags in (["--rdzv-id=B"], []):  # each job without a name gets a new one
            with self.subTest(flags=flags):
                go = os.path.join(self.scratch(), "go")
                second = self.start(self.endpoint, *flags, "sh", "-c",
                                    f"echo ready; until [ -e {go} ]; do sleep 0.01; done; echo went on")
                self.assertEqual(second.stdout.readline(), "ready\n")
                self.assertIn(f"another job has its rendezvous at 127.0.0.1:{self.port}: this one has its own",
                              second.stderr.readline())
                first.terminate()
                # The first job ends at once.
                self.assertEqual(self.finish(first, timeout=10).returncode, 128 + signal.SIGTERM)
                open(go, "w", encoding="ascii").close()
                done = self.finish(second)
                self.assertEqual((done.returncode, done.stdout), (0, "went on\n"), done.text)
                first = self.hold(self.endpoint, "--rdzv-id=A")

    def test_two_nodes_that_are_given_one_rank_are_told_so(self):
        flags = ["--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={self.port}"]
        first = self.start(*flags, "true")
        self.assertIn("waiting for nodes: 1 of 2", first.stderr.readline())
        done = self.ddprun(*flags, "true", timeout=20, code=2)
        self.assertIn("--node-rank=0 is already taken by", done.stderr)
        self.assertIn("give each node its own", done.stderr)

    def test_a_ddprun_that_a_worker_starts_never_waits_for_that_worker(self):
        """The cluster's variables would make it a node of the job in which it runs."""
        inner = f'"{harness.DDPRUN}" sh -c "echo inner"; echo "inner ended with $?"'
        for name, variables in (
                ("fixed ranks", {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(self.port)}),
                ("one node", {"PET_RDZV_ENDPOINT": f"127.0.0.1:{self.port}", "PET_RDZV_ID": "j"}),
                ("room for more", {"PET_RDZV_ENDPOINT": f"127.0.0.1:{self.port}", "PET_RDZV_ID": "j",
                                   "PET_NNODES": "1:2", "PET_RDZV_CONF": "last_call_timeout=0.1"})):
            with self.subTest(name):
                done = self.ddprun("sh", "-c", inner, timeout=20, code=0, **variables)
                self.assertEqual(done.stdout, "inner ended with 2\n", done.text)
        self.assertIn("a worker of job j started this ddprun", done.stderr)

    def test_a_spare_that_nobody_needed_says_that_it_never_ran(self):
        for code in (0, 7):
            with self.subTest(code):
                go = os.path.join(self.scratch(), "go")
                flags = ["--nnodes=2", "--spares=1", self.endpoint, "--rdzv-id=j", "--shutdown-timeout=1",
                         "sh", "-c", f"echo ready; until [ -e {go} ]; do sleep 0.01; done; exit {code}"]
                running = [self.start(*flags), self.start(*flags)]
                for process in running:
                    self.assertEqual(process.stdout.readline(), "ready\n")
                spare = self.start(*flags)
                self.assertIn("ready as spare (1 of 1)", spare.stderr.readline())
                open(go, "w", encoding="ascii").close()
                done = self.finish(spare)
                self.assertEqual((done.returncode, done.stdout), (code, ""), done.text)
                self.assertIn("its workers never ran: it was a spare of job j", done.stderr)
                self.assertNotIn("sh FAILED", done.stderr)
                self.assertEqual([self.finish(each).returncode for each in running], [code] * 2)


class OtherJobs(Base):
    """Cases in which the rendezvous of a job serves another job, too."""

    def test_a_job_s_last_words_do_not_wait_for_another_jobs_end(self):
        go = os.path.join(self.scratch(), "go")
        for code in (0, 5):
            with self.subTest(code):
                first = self.start("--rdzv-id=A", self.endpoint, "sh", "-c",
                                   f"echo ready; until [ -e {go}{code} ]; do sleep 0.01; done; exit {code}")
                self.assertEqual(first.stdout.readline(), "ready\n")
                flags = ["--nnodes=2", "--rdzv-id=B", self.endpoint]
                others = [self.start(*flags, "sh", "-c", "echo ready; exec sleep 600") for _ in range(2)]
                for other in others:
                    self.assertEqual(other.stdout.readline(), "ready\n")
                open(f"{go}{code}", "w", encoding="ascii").close()
                said = ""
                while "other jobs have their rendezvous here: B" not in said:
                    line = first.stderr.readline()
                    self.assertTrue(line, said)
                    said += line
                self.assertEqual("ddprun exits with 5" in said, code == 5, said)
                self.assertNotIn("but the job goes on", said)
                self.assertIsNone(first.poll())
                others[0].send_signal(signal.SIGTERM)
                self.assertEqual([self.finish(each).returncode for each in others], [143, 143])
                done = self.finish(first)
                self.assertEqual((done.returncode, done.stderr), (code, ""), done.text)


class Strangers(Base):
    def test_a_flood_of_strangers_floods_no_terminal_and_stops_nothing(self):
        """This also holds if nobody reads the messages about the strangers. Keep-alives prove that the agents live."""
        go = os.path.join(self.scratch(), "go")
        flags = ["--nnodes=2", self.endpoint, "--keep-alive-timeout=2", "sh", "-c",
                 f"echo ready; until [ -e {go} ]; do sleep 0.01; done"]
        full_pipe = os.pipe()
        self.addCleanup(os.close, full_pipe[0])
        os.set_blocking(full_pipe[1], False)
        try:
            while True:
                os.write(full_pipe[1], b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(full_pipe[1], True)
        unread = subprocess.Popen([harness.DDPRUN, *flags], env=harness.environment(), text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=full_pipe[1])
        os.close(full_pipe[1])
        self.addCleanup(unread.stdout.close)
        self.addCleanup(lambda: unread.poll() is None and unread.kill())
        harness.wait_until(lambda: self.connects(), "it serves")
        other = self.start(*flags)
        for process in (unread, other):
            self.assertEqual(process.stdout.readline(), "ready\n")
        self.pester(200)
        open(go, "w", encoding="ascii").close()
        self.finish(other, code=0)
        while os.read(full_pipe[0], 65536):  # reads its last lines, and its end
            pass
        self.assertEqual(unread.wait(20), 0)

    def test_the_number_of_dropped_lines_about_strangers_is_said(self):
        go = os.path.join(self.scratch(), "go")
        process = self.start(self.endpoint, "sh", "-c", f"echo ready; until [ -e {go} ]; do sleep 0.01; done")
        self.assertEqual(process.stdout.readline(), "ready\n")
        self.pester(400)
        open(go, "w", encoding="ascii").close()
        done = self.finish(process)
        lines = done.stderr.splitlines()
        self.assertLess(len(lines), 60, done.text)
        self.assertIn("it speaks neither HTTP nor the store's protocol", lines[0])
        self.assertRegex(done.stderr, r"\d{3} line\(s\) of ddprun's log were dropped")

    def connects(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
            return True
        except OSError:
            return False

    def pester(self, times):
        """Makes `times` connections at once. Returns when all of them have been refused."""
        strangers = []
        for _ in range(times):
            strangers.append(socket.create_connection(("127.0.0.1", self.port), 20))
            strangers[-1].sendall(b"\xff" * 8)
        for stranger in strangers:
            with stranger:
                try:
                    self.assertEqual(stranger.recv(1), b"")
                except ConnectionResetError:
                    pass


if __name__ == "__main__":
    harness.main()
