#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests standing agents (docs/nodes.md): a line typed once starts the job on nodes that have room. Other cases are the
queue, slots, cancelling, and kills meanwhile."""
import array
import base64
import contextlib
import ctypes
import fcntl
import getpass
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios

import harness
import journald
import prometheus
import raw_agent

AGENT = os.path.join(harness.BIN, "ddprun-agent")
SH = ["sh", "-c"]


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # before the open, or before the read
        return True


class StandingCase(prometheus.Case):
    def setUp(self):
        self.place = self.scratch()
        self.token_file = self.token()
        self.flags = [f"--token-file={self.token_file}"]

    def queue(self, *args):
        daemon, self.endpoint = self.ddprund(*self.flags, *args)
        return daemon

    def agent(self, name, slots=4, **more):
        agent = self.new_agent(name, slots, **more)
        self.await_line(agent, "connected to")
        return agent

    def new_agent(self, name, slots, *args, **more):
        return self.start(f"--rdzv-endpoint={self.endpoint}", f"--name={name}", f"--slots={slots}",
                          f"--log-dir={self.place}", *self.flags, *args, program=AGENT, **more)

    def submit(self, *args, **more):
        return self.start("--standing-agents", f"--rdzv-endpoint={self.endpoint}", *self.flags, *args, **more)

    def gang_of(self, process):
        """Returns the id of the gang that the process has submitted."""
        return self.await_line(process, "gang ").split("gang ")[1].split()[0]

    def hold(self, name):
        """Returns a file's path and a worker's script, which prints a line and ends when the test makes the file."""
        path = os.path.join(self.place, name)
        return path, f'echo "{name} runs"; until [ -e {path} ]; do sleep 0.02; done; echo "{name} is done"'

    @staticmethod
    def let_go(path):
        with open(path, "w", encoding="utf-8"):
            pass


class OneHost(StandingCase):
    def test_typed_once_it_runs_on_two_nodes_and_its_exit_code_is_the_job_s(self):
        self.queue()
        for name in ("n1", "n2"):
            self.agent(name)
        done = self.finish(self.submit("--nnodes=2", "--nproc_per_node=2", *SH,
                                       harness.SHOW + '; echo "cwd=$PWD mine=$MINE" >&2; ' + harness.MEET +
                                       "; exit $((RANK == 3 ? 7 : 0))",
                                       cwd=self.place, MINE="a b", MEET=self.scratch()), code=7)
        workers = harness.parse_shown(done.stdout)
        self.assertEqual([worker["rank"] for worker in workers], ["0", "1", "2", "3"], done.text)
        self.assertEqual({worker["world"] for worker in workers}, {"4"})
        self.assertEqual({worker["group"] for worker in workers}, {"0", "1"})
        for rank in range(4):
            self.assertIn(f"\n[{rank}] cwd={self.place} mine=a b\n", done.stderr)
        self.assertIn("runs on n1, n2", done.stderr)
        self.assertIn("has ended with 7", done.stderr)
        self.assertIn("[0] rank=0", done.stdout)

    def test_a_file_makes_the_bare_line_a_gang_and_nothing_else(self):
        self.queue()
        self.agent("n1")
        self.agent("n2")
        self.write(self.place, "ddprun/ddprun.toml",
                   f'rdzv_endpoint = "{self.endpoint}"\ntoken_file = "{self.token_file}"\nstanding_agents = true\n')
        done = self.ddprun("--nnodes=2", "--nproc_per_node=2", *SH, "echo $RANK of $WORLD_SIZE",
                           XDG_CONFIG_HOME=self.place, code=0)
        self.assertEqual(sorted(done.stdout.splitlines()), [f"[{rank}] {rank} of 4" for rank in range(4)])
        for more in (["--nnodes=1"], ["--standalone", "--nnodes=1"]):
            done = self.ddprun(*more, *SH, "echo here", XDG_CONFIG_HOME=self.place)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "here\n", ""), done.text)

    def test_first_come_first_served_with_slots_counted(self):
        self.queue()
        self.agent("n1", slots=2)
        first, script = self.hold("first")
        one = self.submit("--nproc_per_node=2", *SH, script)
        self.assertIn("first runs", one.stdout.readline())
        second, script = self.hold("second")
        two = self.submit("--nproc_per_node=2", *SH, script)
        self.await_line(two, "is queued, 0 before it: waits for 1 node of")
        three = self.submit("--nproc_per_node=1", *SH, "echo third")
        self.await_line(three, "is queued, 1 before it")
        self.let_go(first)
        self.assertEqual(self.finish(one).returncode, 0)
        self.assertIn("second runs", two.stdout.readline())
        self.assertIsNone(three.poll())
        self.let_go(second)
        self.assertEqual(self.finish(two).returncode, 0)
        done = self.finish(three)
        self.assertEqual((done.returncode, done.stdout), (0, "third\n"), done.text)

    def test_a_signal_cancels_what_runs_and_what_waits(self):
        self.queue()
        self.agent("n1", slots=1)
        _, script = self.hold("held")
        one = self.submit("--shutdown-timeout=5", *SH, f"echo $$; trap 'echo stopped; exit 9' TERM; {script}")
        pid = int(one.stdout.readline())
        two = self.submit(*SH, "true")
        self.await_line(two, "is queued")
        two.send_signal(signal.SIGTERM)
        done = self.finish(two)
        self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.text)
        self.assertIn("cancelled by", done.stderr)
        one.send_signal(signal.SIGINT)
        done = self.finish(one)
        self.assertEqual(done.returncode, 128 + signal.SIGINT, done.text)
        self.assertIn("stopped", done.stdout)
        self.assertTrue(gone(pid))

    def test_a_signal_that_comes_twice_at_once_stops_an_agents_jobs_in_order(self):
        self.queue()
        agent = self.agent("n1", slots=1)
        path, _ = self.hold("held")
        one = self.submit(*SH, f"trap 'echo heard; until [ -e {path} ]; do sleep 0.02; done; echo saved; exit' TERM; "
                               "echo ready; while :; do sleep 0.02; done")
        self.await_line(one, "ready", stream="stdout")
        agent.terminate()
        self.await_line(one, "heard", stream="stdout")
        agent.terminate()
        self.await_line(agent, "got SIGTERM again at once")
        self.let_go(path)
        self.assertIn("saved", self.finish(one).stdout)

    def test_signals_that_come_as_one_cancel_and_a_later_one_leaves(self):
        self.queue()
        self.agent("n1", slots=1)
        path, script = self.hold("held")
        one = self.submit(*SH, script)
        self.assertEqual(one.stdout.readline(), "held runs\n")
        two = self.submit(*SH, "true")
        self.await_line(two, "is queued")
        os.kill(two.pid, signal.SIGSTOP)  # so that it finds both signals when it runs again
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            os.kill(two.pid, number)
        done = self.finish(two)
        self.assertIn("cancelled by", done.stderr)
        self.let_go(path)
        self.assertEqual(self.finish(one).returncode, 0)

    def test_a_signal_ends_the_wait_for_a_ddprund_that_is_not_there(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # nobody listens there
            self.endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
            job = self.submit(*SH, "true")
            self.await_line(job, "the ddprund is away", "trying on")
            job.terminate()
            done = self.finish(job)
        self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.text)

    def test_an_agent_whose_output_can_not_be_kept_says_so(self):
        self.queue()
        agent = self.start(f"--rdzv-endpoint={self.endpoint}", "--log-dir=/dev/null", *self.flags, program=AGENT)
        done = self.finish(agent, code=2)
        self.assertIn("can't make /dev/null/gangs: Not a directory (--log-dir", done.stderr)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", self.place], stderr=subprocess.DEVNULL,
                          check=False).returncode != 0:
            self.skipTest("no small disk can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "--lazy", self.place], check=False)
        self.agent("n1")
        with open(os.path.join(self.place, "full"), "wb", buffering=0) as full:
            with contextlib.suppress(OSError):
                while True:
                    full.write(bytes(1024))
        done = self.finish(self.submit(*SH, "echo a; exit 3", cwd="/"))
        self.assertNotEqual(done.returncode, 0, done.text)
        self.assertIn(self.place, done.stderr)
        os.unlink(os.path.join(self.place, "full"))
        fills = f"head -c 1m /dev/zero >{self.place}/full; echo lost; exit 0"
        job = self.finish(self.submit(*SH, fills, cwd="/"))
        self.assertEqual(job.returncode, 0, job.text)  # the program's own code
        self.assertRegex(job.stderr, r"has ended with 0: n1: ddprun ended with 0, what it printed may be lost: no space is "
                                     rf"left on the disk of {self.place}; \d+ bytes are kept\n")

    def test_old_output_is_removed_and_what_runs_is_kept(self):
        self.queue()
        agent = self.agent("n1", slots=1)
        self.assertEqual(self.finish(self.submit(*SH, "echo first")).returncode, 0)
        first, = os.listdir(os.path.join(self.place, "gangs"))
        path, script = self.hold("held")
        held = self.submit(*SH, script)
        self.assertEqual(held.stdout.readline(), "held runs\n")
        second, = set(os.listdir(os.path.join(self.place, "gangs"))) - {first}
        for gang in (first, second):
            for name in ("stdout", "stderr"):
                os.utime(os.path.join(self.place, "gangs", gang, "n1", name), (1, 1))
        self.agent("n2", slots=1)
        self.assertEqual(self.finish(self.submit(*SH, "echo third")).returncode, 0)
        self.assertIn(first, os.listdir(os.path.join(self.place, "gangs")))  # this folder belongs to another agent
        self.let_go(path)
        self.assertEqual(self.finish(held).returncode, 0)
        os.utime(os.path.join(self.place, "gangs", second, "n1", "stdout"), None)
        agent.terminate()
        self.finish(agent)
        self.agent("n1", slots=1)
        left = os.listdir(os.path.join(self.place, "gangs"))
        self.assertNotIn(first, left)
        self.assertIn(second, left)

    def test_a_killed_agent_leaves_nothing_behind(self):
        self.queue()
        agent = self.agent("n1", slots=1)
        _, script = self.hold("held")
        job = self.submit(*SH, f"echo $$; {script}")
        pid = int(job.stdout.readline())
        agent.kill()
        harness.wait_until(lambda: gone(pid), "the worker is gone")
        agent.wait()
        self.agent("n1", slots=1)
        done = self.finish(job, code=75)
        self.assertIn("n1: its agent was started anew", done.stderr)
        done = self.finish(self.submit(*SH, "echo next"))
        self.assertEqual((done.returncode, done.stdout), (0, "next\n"), done.text)

    def warm_helpers(self):
        """Processes of this test that have imported what workers will."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as title, open(f"/proc/{pid}/environ") as environment:
                if re.match(r"ddprun-warm: \d+ modules", title.read()) and self.place in environment.read():
                    found.append(pid)
        return found

    def test_a_warm_helper_is_one_job_s_and_ends_with_it(self):
        """Also where a file wants it for all jobs of the user."""
        self.write(self.place, "ddprun/ddprun.toml", 'preload = "colorsys"\n')
        script = self.write(self.place, "script.py", "import sys\nprint('colorsys' in sys.modules, flush=True)\nopen(sys.argv[1]).close()\n")
        self.queue()
        agent = self.agent("n1")
        pipes = [os.path.join(self.place, name) for name in ("one", "two")]
        jobs = []
        for pipe in pipes:
            os.mkfifo(pipe)
            jobs.append(self.submit("--no-python", sys.executable, "-u", script, pipe, XDG_CONFIG_HOME=self.place, PLACE=self.place))
            self.assertEqual(jobs[-1].stdout.readline(), "True\n")
        for num_left in (2, 1):
            self.assertEqual(len(self.warm_helpers()), num_left)
            self.let_go(pipes[-num_left])
            self.finish(jobs[-num_left], code=0)
            harness.wait_until(lambda: len(self.warm_helpers()) < num_left, "the job's helper has ended")  # noqa: B023
        self.assertIsNone(agent.poll())

    def test_a_killed_ddprund_keeps_its_queue(self):
        state = f"--state-dir={self.place}/state"
        daemon = self.queue(state)
        self.agent("n1", slots=1)
        first, script = self.hold("first")
        one = self.submit(*SH, script)
        self.assertIn("first runs", one.stdout.readline())
        two = self.submit(*SH, "echo second")
        self.await_line(two, "is queued")
        daemon.kill()
        daemon.wait()
        self.let_go(first)  # the job ends while no ddprund runs
        self.ddprund_again(state)
        done = self.finish(one, code=0)
        self.assertIn("first is done", done.stdout)
        done = self.finish(two)
        self.assertEqual((done.returncode, done.stdout), (0, "second\n"), done.text)

    def test_a_ddprund_that_has_forgotten_a_gang_is_said_to(self):
        daemon = self.queue()  # this ddprund has no --state-dir
        self.agent("n1", slots=1)
        _, script = self.hold("held")
        own = os.path.join(self.place, "own.json")
        job = self.submit(*SH, script, TORCHELASTIC_ERROR_FILE=own)
        self.assertIn("held runs", job.stdout.readline())
        gang = self.gang_of(job)
        daemon.kill()
        daemon.wait()
        self.ddprund_again()
        done = self.finish(job, code=75)
        said = f"the ddprund no longer knows job nodes:{gang}"
        with open(own, encoding="utf-8") as f:
            self.assertIn(said, f.read())
        self.assertIn(said, done.stderr)
        self.assertNotIn("left to itself", done.stderr)

    def test_a_server_that_is_no_ddprund_at_an_agent_s_begin_is_outlasted(self):
        """A proxy whose ddprund is down, another protocol or garbage answers. The agent says so once, and tries on."""
        certs = self.certs()
        for flags in ([], [f"--tls-ca={certs}/ca.pem"]):
            with self.subTest(flags), socket.create_server(("127.0.0.1", 0)) as other:
                other.settimeout(20)
                self.endpoint = f"127.0.0.1:{other.getsockname()[1]}"
                agent = self.new_agent("n1", 1, *flags)
                for answer in (b"HTTP/1.1 502 X\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"\0\xff" * 999,
                               b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"):
                    connection, _ = other.accept()
                    with connection, contextlib.suppress(OSError):  # the agent may have closed the connection before
                        connection.recv(4096)
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(4096):
                            pass
                other.close()
                self.await_line(agent, "is away: ", "is TLS on" if flags else "(it answered HTTP 502)", "; trying on")
                self.ddprund_again(*(self.tls_server(certs) if flags else []))
                self.assertIn("connected to", agent.stderr.readline())

    def test_a_ddprun_that_follows_a_gang_is_a_service_of_systemd_and_outlives_warnings(self):
        self.queue()
        self.agent("n1", slots=1)
        path = os.path.join(self.place, "notify")
        _, script = self.hold("held")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(20)
            job = self.submit(*SH, script, NOTIFY_SOCKET=path, WATCHDOG_USEC="2000000")
            said = manager.recv(4096).decode()
            self.assertTrue(said.startswith("READY=1\n"), said)
            while ": running" not in said:
                said = manager.recv(4096).decode()
            for _ in range(2):
                self.assertEqual(manager.recv(4096).decode(), "WATCHDOG=1")
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                job.send_signal(number)
                self.await_line(job, f"got {number.name}: gang ", "is not preempted by it")
            job.terminate()
            while "STOPPING=1" not in said:
                said = manager.recv(4096).decode()
            self.assertEqual(self.finish(job).returncode, 128 + signal.SIGTERM)

    def ddprund_again(self, *args):
        return self.ddprund(*self.flags, *args, f"--listen={self.endpoint}")

    def test_a_stopped_agent_ends_its_jobs_in_order(self):
        self.queue()
        agent = self.agent("n1", slots=1)
        _, script = self.hold("held")
        job = self.submit(*SH, f"trap 'echo saved; exit 0' TERM; {script}")
        self.assertIn("held runs", job.stdout.readline())
        agent.terminate()
        self.assertEqual(self.finish(agent).returncode, 0)
        done = self.finish(job)
        self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.text)
        self.assertIn("saved", done.stdout)

    def mount_silent(self, directory):
        """Mounts a file system that never answers, like that of a dead file server: FUSE without a server."""
        try:
            device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as missing:
            self.skipTest(str(missing))
        self.addCleanup(os.close, device)  # frees all processes that wait for it
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"silent", directory.encode(), b"fuse", 0, options) != 0:
            self.skipTest(f"mount of FUSE: {os.strerror(ctypes.get_errno())}")
        self.addCleanup(libc.umount2, directory.encode(), 2)  # MNT_DETACH

    def test_a_directory_that_never_answers_holds_up_no_other_gang(self):
        self.queue()
        silent = self.scratch()
        stuck = self.submit(*SH, "true", cwd=silent)
        self.await_line(stuck, "is queued")
        cancelled = self.submit(*SH, "true", cwd=silent)
        self.await_line(cancelled, "is queued")
        self.mount_silent(silent)
        self.agent("n1")
        done = self.finish(self.submit(*SH, "echo other"))
        self.assertEqual((done.returncode, done.stdout), (0, "other\n"), done.text)
        self.assertIsNone(stuck.poll())
        cancelled.terminate()
        done = self.finish(cancelled)
        self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.text)
        done = self.finish(stuck, code=2)
        self.assertIn(f"can't enter {silent}: no answer within 10 s", done.stderr)

    def test_much_output_comes_whole_and_a_reader_that_stands_still_keeps_no_signal_out(self):
        self.queue()
        self.agent("n1", slots=1)
        last = 300_000
        path, script = self.hold("held")
        job = self.submit(*SH, f"seq {last}; : >{path}.said; {script}")
        line = job.stdout.readline()  # reads no further line: the pipe is full, and pages are longer
        harness.wait_until(lambda: self.is_full(job.stdout), "the pipe is full")
        harness.wait_until(lambda: os.path.exists(f"{path}.said"), "all of it is said")
        job.terminate()
        self.await_line(job, "is cancelled")
        text = line + "".join(job.stdout)
        self.assertTrue(text.startswith("".join(f"{i}\n" for i in range(1, last + 1))), text[-200:])
        self.assertEqual(self.finish(job).returncode, 128 + signal.SIGTERM)

    @staticmethod
    def is_full(pipe):
        held = array.array("i", [0])
        fcntl.ioctl(pipe, termios.FIONREAD, held)
        return held[0] > fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) // 2  # the pipe's pages needn't be full

    def test_a_full_disk_behind_its_stdout_is_said(self):
        self.queue()
        self.agent("n1", slots=1)
        done = self.finish(self.start("-c", f'exec {harness.DDPRUN} "$@" >/dev/full', "sh", "--standing-agents",
                                      f"--rdzv-endpoint={self.endpoint}", *self.flags, *SH, "echo lost; exit 4",
                                      program="/bin/sh"), code=4)
        self.assertIn("stdout: No space left on device; what the gang prints from here on", done.stderr)

    def test_files_that_are_named_from_the_agent_s_directory_are_its_jobs_too(self):
        self.queue()
        self.flags = [f"--token-file={os.path.basename(self.token_file)}"]
        self.agent("n1", cwd=os.path.dirname(self.token_file))
        self.flags = [f"--token-file={self.token_file}"]
        done = self.finish(self.submit(*SH, "echo found", cwd=self.place))
        self.assertEqual((done.returncode, done.stdout), (0, "found\n"), done.text)

    def test_an_agent_as_a_service_of_systemd_speaks_for_itself_alone(self):
        self.queue()
        path = os.path.join(self.place, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(20)
            agent = self.agent("n1", slots=3, NOTIFY_SOCKET=path, WATCHDOG_USEC="1000000", INVOCATION_ID="1")
            said = manager.recv(4096).decode()
            self.assertIn("READY=1", said)
            while f"connected to {self.endpoint}; 0 of 3 slots in use" not in said or "WATCHDOG=1" not in said:
                said = manager.recv(4096).decode()
            done = self.finish(self.submit(*SH, "env"), code=0)
            for name in ("NOTIFY_SOCKET", "WATCHDOG_", "INVOCATION_ID"):
                self.assertNotIn(name, done.stdout)
            agent.send_signal(signal.SIGHUP)
            while "RELOADING=1\nMONOTONIC_USEC=" not in said:
                said = manager.recv(4096).decode()
            while "READY=1" not in said:
                said = manager.recv(4096).decode()
            agent.terminate()
            while "STOPPING=1" not in said:
                said = manager.recv(4096).decode()

    def test_its_metrics_are_there_before_any_ddprund_and_tell_of_slots_gangs_and_connections(self):
        self.endpoint = f"127.0.0.1:{harness.free_port()}"
        agent = self.new_agent("n1", 2, "--metrics=127.0.0.1:0")
        port = int(self.await_line(agent, "metrics at http://127.0.0.1:").split(":")[-1].split("/")[0])
        status, kind, text = prometheus.page(port)
        self.assertEqual((status, kind), (200, "text/plain; version=0.0.4; charset=utf-8"))
        found = prometheus.samples(text)
        self.assertEqual(found[f'ddprun_standing_agent_info{{node="n1",user="{getpass.getuser()}"}}'], 1)
        self.assertEqual(found["ddprun_slots"], 2)
        self.assertGreater(found["ddprun_node_memory_bytes"], 0)
        self.await_page(port, connected=0, reconnects=0, used=0, running=0, begun=0)
        daemon, _ = self.ddprund_again()
        self.await_line(agent, "connected to")
        path, script = self.hold("held")
        job = self.submit("--nproc_per_node=2", *SH, f"{script}; exit 3")
        self.assertIn("held runs", job.stdout.readline())
        self.await_page(port, connected=1, reconnects=0, used=2, running=1, begun=1, failure=0)
        if prometheus.PROMTOOL:
            self.check(port)
        folder = tempfile.mkdtemp()
        nowhere = self.submit(*SH, "true", cwd=folder)
        self.await_line(nowhere, "is queued")
        os.rmdir(folder)
        self.let_go(path)
        self.assertEqual((self.finish(job).returncode, self.finish(nowhere).returncode), (3, 2))
        self.assertEqual(self.finish(self.submit(*SH, "true")).returncode, 0)
        self.await_page(port, used=0, running=0, begun=2, success=1, failure=1, stopped=0, refused=1)
        daemon.kill()
        daemon.wait()
        self.await_page(port, connected=0)
        self.ddprund_again()
        self.await_page(port, connected=1, reconnects=1)
        agent.terminate()
        self.finish(agent)
        self.assertFalse(prometheus.answers(port))

    def await_page(self, port, **wanted):
        names = {"connected": "ddprun_rendezvous_connected", "reconnects": "ddprun_rendezvous_reconnects_total",
                 "used": "ddprun_slots_used", "running": 'ddprun_gangs{state="running"}',
                 "begun": "ddprun_gangs_begun_total"}
        series = {names.get(name, f'ddprun_gangs_ended_total{{result="{name}"}}'): value
                  for name, value in wanted.items()}
        harness.wait_until(lambda: series.items() <= prometheus.samples(prometheus.page(port)[2]).items(), series)

    def test_a_port_for_metrics_that_can_not_be_had_is_one_line(self):
        self.endpoint = "127.0.0.1:1"
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for value, what in ((f"127.0.0.1:{port}", "in use by"), ("192.0.2.1:1", "is not an address of this machine"),
                                ("127.0.0.1", "wants HOST:PORT"), ("9410", "wants HOST:PORT"), ("", "PORT|off missing")):
                with self.subTest(value):
                    done = self.finish(self.new_agent("n1", 1, f"--metrics={value}"))
                    self.check_one_line(done, "ddprun-agent: --metrics", value, what)

    def test_its_lines_in_a_unit_have_priorities(self):
        place = journald.Journald(self)
        self.queue()
        agent = place.start(AGENT, f"--rdzv-endpoint={self.endpoint}", "--name=n1", "--slots=1",
                            f"--log-dir={self.place}", *self.flags, env=harness.environment())
        job = self.submit(*SH, "exit 3")
        gang = self.gang_of(job)
        self.assertEqual(self.finish(job).returncode, 3)
        agent.terminate()
        self.assertEqual(agent.wait(harness.TIMEOUT), 0)
        told = [entry["MESSAGE"] for entry in place.entries("_TRANSPORT=stdout", "PRIORITY=6")]
        self.assertIn("ddprun-agent: node n1 of ", told[0])
        about = [line for line in told if f"gang {gang} " in line]
        self.assertEqual(about, [f"ddprun-agent: gang {gang} begins, 1 slot", f"ddprun-agent: gang {gang} has ended with 3"])
        refused = place.start(AGENT, "--slots=none", f"--rdzv-endpoint={self.endpoint}", env=harness.environment())
        self.assertEqual(refused.wait(harness.TIMEOUT), 2)
        self.assertIn("--slots=none", place.entries("_TRANSPORT=stdout", "PRIORITY=3")[-1]["MESSAGE"])

    def replace(self, path, by):
        shutil.copy(by, path + ".new")
        os.replace(path + ".new", path)

    def test_sighup_reads_its_token_and_certificates_again_and_ends_no_gang(self):
        certs, newer = self.certs(), self.certs()
        ca = os.path.join(self.place, "ca.pem")
        shutil.copy(f"{certs}/ca.pem", ca)
        daemon = self.queue(*self.tls_server(certs))
        self.flags.append(f"--tls-ca={ca}")
        agent = self.agent("n1", slots=1)
        path, script = self.hold("held")
        job = self.submit(*SH, script)
        self.assertEqual(job.stdout.readline(), "held runs\n")
        agent.send_signal(signal.SIGHUP)
        self.await_line(agent, "got SIGHUP: the token and the certificates are read again")
        self.let_go(path)
        self.assertEqual(self.finish(job).returncode, 0)  # over the earlier connection
        token = self.token("another token, as long as that")
        daemon.kill()
        daemon.wait()
        self.await_line(agent, "is away")
        self.ddprund(*self.tls_server(newer), f"--token-file={token}", f"--listen={self.endpoint}")
        self.replace(ca, f"{newer}/ca.pem")
        self.replace(self.token_file, token)
        agent.send_signal(signal.SIGHUP)
        self.await_line(agent, "connected to")
        done = self.finish(self.submit(*SH, "echo again"))
        self.assertEqual((done.returncode, done.stdout), (0, "again\n"), done.text)

    def test_a_file_that_can_not_be_used_changes_nothing(self):
        self.queue()
        agent = self.agent("n1", slots=1)
        os.rename(self.token_file, self.token_file + ".away")
        agent.send_signal(signal.SIGHUP)
        line = self.await_line(agent, "SIGHUP")
        self.assertRegex(line, f"got SIGHUP: --token-file: can't take the secret in {self.token_file}: .*"
                               "; what was read before stays in force\n$")
        os.rename(self.token_file + ".away", self.token_file)
        done = self.finish(self.submit(*SH, "echo still"))
        self.assertEqual((done.returncode, done.stdout), (0, "still\n"), done.text)

    def test_sighup_without_files_is_one_line(self):
        self.flags = []
        self.queue()
        agent = self.agent("n1", slots=1)
        agent.send_signal(signal.SIGHUP)
        self.await_line(agent, "got SIGHUP: no file to read again; standing on")
        self.assertIsNone(agent.poll())

    def test_signals_that_warn_all_processes_end_no_gang(self):
        self.queue()
        agent = self.agent("n1", slots=1)
        path, script = self.hold("held")
        job = self.submit(*SH, script)
        self.assertEqual(job.stdout.readline(), "held runs\n")
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            agent.send_signal(number)
            self.await_line(agent, f"got {number.name}: standing on")
        self.let_go(path)
        self.assertEqual(self.finish(job).returncode, 0)

    def test_a_node_that_can_begin_nothing_does_not_empty_the_queue(self):
        self.queue()
        logs = self.scratch()
        broken = self.start(f"--rdzv-endpoint={self.endpoint}", "--name=broken", "--slots=1", f"--log-dir={logs}",
                            *self.flags, program=AGENT)
        self.await_line(broken, "connected to")
        shutil.rmtree(os.path.join(logs, "gangs"))
        self.write(logs, "gangs", "no directory")
        first = self.submit(*SH, "true")
        self.await_line(broken, "which is this node's fault")
        self.agent("n1", slots=1)
        for _ in range(3):
            done = self.finish(self.submit(*SH, "echo runs"))
            self.assertEqual((done.returncode, done.stdout), (0, "runs\n"), done.text)
        done = self.finish(first, code=75)
        self.assertIn("Not a directory", done.stderr)

    def test_a_signal_that_was_ignored_stays_so(self):
        self.queue()
        self.agent("n1", slots=1)
        path, script = self.hold("held")
        job = self.submit(*SH, script, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # like nohup
        self.assertEqual(job.stdout.readline(), "held runs\n")
        job.send_signal(signal.SIGHUP)
        self.let_go(path)
        done = self.finish(job)
        self.assertEqual((done.returncode, done.stdout), (0, "held is done\n"), done.text)

    def test_a_stranger_at_the_port_for_a_while_ends_no_follower(self):
        state = self.scratch()
        daemon = self.queue(f"--state-dir={state}")
        self.agent("n1", slots=1)
        path, script = self.hold("held")
        job = self.submit(*SH, script)
        self.assertEqual(job.stdout.readline(), "held runs\n")
        daemon.kill()
        daemon.wait()
        host, port = self.endpoint.split(":")
        with socket.create_server((host, int(port))) as other:
            asked, _ = other.accept()
            with asked:
                asked.recv(65536)
                asked.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        self.queue(f"--state-dir={state}", f"--listen={self.endpoint}")
        self.let_go(path)
        done = self.finish(job, code=0)
        self.assertIn("held is done", done.stdout)

    def test_a_gang_that_can_not_begin_says_why(self):
        self.queue()
        self.agent("n1")
        self.agent("n2")
        place = self.scratch()
        job = self.submit("--nnodes=2", "./no-such-program", cwd=place)
        done = self.finish(job, code=2)
        self.assertIn("no-such-program", done.stderr)

    def test_an_agent_s_text_that_can_not_be_printed_is_told(self):
        for flag in ("--help", "--version", "--print-man"):
            with self.subTest(flag), open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([AGENT, flag], stdout=full, stderr=subprocess.PIPE, text=True, timeout=20)
                self.assertEqual((done.returncode, done.stderr),
                                 (74, "ddprun-agent: can't write to stdout: No space left on device\n"))

    def test_too_few_descriptors_are_said_in_one_line(self):
        """Each program gets too few descriptors, by one or by more."""
        self.queue()
        self.agent("n1")
        at = [f"--rdzv-endpoint={self.endpoint}", *self.flags]
        for program, *words in ((AGENT, *at, f"--log-dir={self.place}"), (harness.DDPRUNCTL, "jobs", *at),
                                (harness.DDPRUN, "--standing-agents", *at, *SH, "true")):
            codes = []
            for most in range(4, 9):
                with self.subTest(program=program, most=most):
                    # LeakSanitizer, if built in, needs descriptors of its own.
                    process = self.start(*words, program=program, ASAN_OPTIONS="detect_leaks=0",
                                         preexec_fn=lambda most=most: resource.setrlimit(
                                             resource.RLIMIT_NOFILE, (most, most)))
                    done = self.finish(process)
                    codes.append(done.returncode)
                    if done.returncode != 0:
                        self.assertEqual(done.returncode, 2, done.text)
                        *before, last = done.stderr.splitlines()  # earlier lines, [ddprun] …, tell how far it got
                        self.assertRegex(last, r"^ddprun.*ulimit -", done.text)
                        self.assertTrue(all(line.startswith("[ddprun]") for line in before), done.text)
            self.assertIn(2, codes, program)

    def test_a_number_of_slots_that_cannot_be_names_its_flag_alone(self):
        done = self.finish(self.start("--rdzv-endpoint=127.0.0.1:1", "--slots=0", program=AGENT))
        self.check_one_line(done, "ddprun-agent: --slots=0: wants a number from 1 to ")
        self.assertNotIn("nproc", done.stderr)

    def test_an_agent_tells_all_values_that_cannot_be(self):
        flags = ["--rdzv-endpoint=:::", "--slots=0", "--name=a b", "--keep-output=x", "--metrics=:99999"]
        done = self.finish(self.start(*flags, program=AGENT), code=2)
        self.assertEqual([line.split(": ")[1] for line in done.stderr.splitlines()], flags, done.stderr)

    def test_an_agent_names_the_flag_of_a_bad_token_and_all_bad_keys_of_a_file(self):
        done = self.finish(self.start("--rdzv-endpoint=127.0.0.1:1", "--token-file=/none", program=AGENT))
        self.check_one_line(done, "ddprun-agent: --token-file: can't take the secret in /none: ")
        bad = self.write(self.place, "bad.toml", "zz = 1\nhosts = 3\n")
        done = self.finish(self.start("--rdzv-endpoint=127.0.0.1:1", f"--config={bad}", program=AGENT), code=2)
        self.assertEqual(done.stderr, f"ddprun-agent: {bad}:1: unknown key zz\n"
                                      f'ddprun-agent: {bad}:2: hosts wants ["host1", "host2"]\n')

    def test_options_that_mean_nothing_are_refused(self):
        self.endpoint = "127.0.0.1:1"
        for flag, nnodes in (("--rdzv-id=mine", 2), ("--node-rank=0", 2), ("--standalone", 1)):
            with self.subTest(flag):
                done = self.finish(self.submit(f"--nnodes={nnodes}", flag, *SH, "true"))
                self.check_one_line(done, flag, "--standing-agents")
        done = self.ddprun("--standing-agents", *SH, "true")
        self.check_one_line(done, "where is the ddprund?")


class Strangers(StandingCase):
    """Tests which users may run commands, and as which user these run."""

    def request(self, method, target, body=None):
        host, port = self.endpoint.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        connection.request(method, target, body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def spec(self, **more):
        return json.dumps({"id": "stranger", "user": getpass.getuser(), "uid": os.getuid(), "directory": "/",
                           "arguments": ["--", "sh", "-c", "true"], **more})

    def test_nothing_is_submitted_and_no_agent_taken_without_the_token(self):
        self.queue()
        self.assertEqual(self.request("POST", "/v1/gangs", self.spec())[0], 401)
        self.assertEqual(self.request("DELETE", "/v1/gangs/x")[0], 401)
        other = self.token("another token, as long as that")
        agent = self.start(f"--rdzv-endpoint={self.endpoint}", f"--token-file={other}", f"--log-dir={self.place}",
                           program=AGENT)
        done = self.finish(agent, code=2)
        self.assertIn("its token is another one", done.stderr)

    def test_an_open_port_beyond_loopback_has_no_gangs(self):
        self.flags = []
        daemon = self.start("--insecure", "--listen=0.0.0.0:0", program=harness.DDPRUND)
        self.endpoint = "127.0.0.1:" + self.await_line(daemon, "listening on").split(":")[-1].strip()
        status, text = self.request("POST", "/v1/gangs", self.spec())
        self.assertEqual(status, 403, text)
        self.assertIn("give it --token-file", text)
        done = self.finish(self.submit(*SH, "true"))
        self.check_one_line(done, "without a token", "--token-file")
        agent = self.start(f"--rdzv-endpoint={self.endpoint}", f"--log-dir={self.place}", program=AGENT)
        done = self.finish(agent, code=2)
        self.assertIn("without a token", done.stderr)

    def test_the_kernel_says_on_loopback_who_it_is(self):
        self.flags = []
        self.queue()
        self.agent("n1")
        done = self.finish(self.submit(*SH, "echo mine"))
        self.assertEqual((done.returncode, done.stdout), (0, "mine\n"), done.text)
        if os.getuid() != 0:
            status, text = self.request("POST", "/v1/gangs", self.spec(uid=0, user="root"))
            self.assertEqual(status, 403, text)
            return
        # Another user's process asks for a job of ours. We are root, and may ask for any user. That user has no agent
        # here.
        asked = subprocess.run(["setpriv", "--reuid=12345", "--clear-groups", "/usr/bin/python3", "-c",
                                "import http.client,sys\n"
                                "c=http.client.HTTPConnection(sys.argv[1],timeout=20)\n"
                                "c.request('POST','/v1/gangs',sys.argv[2])\n"
                                "a=c.getresponse(); print(a.status, a.read().decode())",
                                self.endpoint, self.spec()], text=True, capture_output=True, timeout=60, check=False,
                               cwd="/")
        if asked.returncode != 0:
            self.skipTest("no process of another user can be made: " + asked.stderr)
        self.assertTrue(asked.stdout.startswith("403 "), asked.stdout)

    def test_a_node_s_gang_is_heard_through_that_node_s_agent_alone(self):
        self.flags = []
        self.queue()
        self.agent("n1", slots=1)
        stranger = raw_agent.RawAgent(self.endpoint, path="/v1/node")
        self.addCleanup(stranger.socket.close)
        stranger.tell({"type": "hello", "protocol": 1, "version": "1", "instance": "0" * 32, "node": "n2", "slots": 1,
                       "user": getpass.getuser(), "uid": os.getuid(), "gangs": []})
        stranger.message("welcome")
        path, script = self.hold("held")
        job = self.submit(*SH, script)
        self.assertEqual(job.stdout.readline(), "held runs\n")
        gang, = json.loads(self.request("GET", "/v1/gangs", None)[1])["gangs"]
        for place in ("-1", str(2**63)):  # an agent couldn't read these
            self.assertEqual(self.request("GET", f"/v1/gangs/{gang['id']}/logs?from=n1:{place}:0", None)[0], 404)
        with contextlib.closing(http.client.HTTPConnection(self.endpoint, timeout=20)) as asked:
            asked.request("GET", f"/v1/gangs/{gang['id']}/logs?from=n1:10:0&seen={gang['changes']}&wait_ms=5000")
            for _ in range(20):  # after so many round trips n1 must have been asked
                self.assertIs(stranger.lives(), True)
            for request in range(1, 200):  # requests are numbered from 1 on
                stranger.tell({"type": "output", "request": request, "out": base64.b64encode(b"forged\n").decode(),
                               "err": "", "out_next": 17, "err_next": 0, "reason": ""})
            self.assertIs(stranger.lives(), True)
            self.let_go(path)
            output, = json.load(asked.getresponse())["output"]
        self.assertEqual(base64.b64decode(output["out"]), b"held is done\n")
        done = self.finish(job)
        self.assertEqual((done.returncode, done.stdout), (0, "held is done\n"), done.text)

    def raw_queue(self):
        """Starts a ddprund to which many connections can be made."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        self.queue()

    def raw(self, node, token=None, **more):
        agent = raw_agent.RawAgent(self.endpoint, token=token, path="/v1/node")
        self.addCleanup(agent.socket.close)
        agent.tell({"type": "hello", "protocol": 1, "version": "1", "instance": "%032x" % 7, "node": node, "slots": 1,
                    "user": getpass.getuser(), "uid": os.getuid(), "gangs": [], **more})
        return agent

    def test_a_known_agent_comes_back_where_no_place_is_left(self):
        self.raw_queue()
        with open(self.token_file, "rb") as file:
            token = file.read().strip()
        first = self.raw("n0", token)
        first.message("welcome")
        for number in range(1, 1024):
            self.raw(f"n{number}", token).message("welcome")
        first.socket.close()
        self.raw("n0", token).message("welcome")
        self.assertIn("1024 standing agents", self.raw("new", token).message("refused")["reason"])

    def test_one_user_s_agents_leave_places_to_others_without_a_token(self):
        self.flags = []
        self.raw_queue()
        for number in range(512):
            self.raw(f"n{number}").message("welcome")
        self.assertIn("512 standing agents of " + getpass.getuser(), self.raw("more").message("refused")["reason"])
        if os.getuid() != 0:
            self.skipTest("only root has agents of other users")
        self.raw("more", user="somebody", uid=12345).message("welcome")

    def test_an_agent_takes_its_own_user_s_gangs_alone(self):
        self.flags = []
        self.queue()
        self.agent("n1")
        if os.getuid() != 0:
            self.skipTest("only root submits for somebody else")
        status, text = self.request("POST", "/v1/gangs", self.spec(user="somebody", uid=12345))
        self.assertEqual(status, 201, text)
        gang = json.loads(text)["gang"]
        self.assertEqual(gang["phase"], "queued")
        self.assertIn("node of somebody with 1 slot free", gang["reason"])
        self.assertEqual(self.request("DELETE", "/v1/gangs/stranger")[0], 200)

    def test_an_invalid_gang_is_refused_with_the_reason(self):
        self.flags = []
        self.queue()
        for body, status, why in ((self.spec(id="../x"), 400, '"id"'), ("{", 400, "no gang"),
                                  (self.spec(directory="here"), 400, '"directory"'),
                                  (self.spec(workers=[]), 400, "no gang")):
            with self.subTest(body):
                got, text = self.request("POST", "/v1/gangs", body)
                self.assertEqual(got, status, text)
                self.assertIn(why, text)
        self.assertEqual(self.request("GET", "/v1/gangs/none")[0], 404)
        self.assertEqual(self.request("PUT", "/v1/gangs", "{}")[0], 405)
        status, text = self.request("POST", "/v1/gangs", self.spec(environment=["SECRET=hidden"]))
        self.assertEqual(status, 201, text)
        self.assertEqual(self.request("POST", "/v1/gangs", self.spec(environment=["SECRET=hidden"]))[0], 200)
        self.assertEqual(self.request("POST", "/v1/gangs", self.spec(name="another"))[0], 409)
        self.assertNotIn("hidden", self.request("GET", "/v1/gangs")[1])
        self.assertEqual(self.request("DELETE", "/v1/gangs/stranger")[0], 200)


if __name__ == "__main__":
    harness.main()
