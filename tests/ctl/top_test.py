#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ddprunctl top` at a terminal, of a ddprund with a token and a job of two nodes, and without a terminal."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launcher"))
import harness  # noqa: E402

# Tells its losses, and who it is; ends when it is told to.
LOOP = """
import os, sys, time
import ddprun
rank, meet, round = int(os.environ["RANK"]), sys.argv[1], os.environ["DDPRUN_ROUND"]
open(f"{meet}/{round}.{rank}.tmp", "w").write(str(os.getpid()))
os.rename(f"{meet}/{round}.{rank}.tmp", f"{meet}/{round}.{rank}")
step = 0
while not os.path.exists(f"{meet}/end"):
    step += 1
    ddprun.step(step)
    ddprun.report(2.5 / (1 + 0.01 * step), 32)
    if step % 10 == 1:
        print(f"rank {rank} is at step {step}", flush=True)
    time.sleep(0.02)
"""

# Hostile as a name: it would write from right to left, and a terminal could go back by a character of C1.
NAME = "evil\u202e\x9b2Jname"


class Screen:
    """What a terminal would show of what it is sent: as far as `top` uses one."""

    def __init__(self):
        self.rows, self.is_other, self.has_cursor, self.raw = {}, False, True, ""
        self.at, self.strange = 1, set()

    def take(self, text):
        self.raw += text
        while match := re.match(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|[^\x1b]+", self.raw):
            self.raw = self.raw[match.end():]
            if not match[3]:
                self.rows[self.at] = self.rows.get(self.at, "") + match[0]
            else:
                self.act(match[1], match[2], match[3])

    def act(self, private, numbers, letter):
        if private:
            if numbers == "1049":
                self.is_other, self.rows, self.at = letter == "h", {}, 1
            self.has_cursor = {"25": letter == "h"}.get(numbers, self.has_cursor)
            if letter not in "hl" or numbers not in ("1049", "25", "7"):
                self.strange.add(private + numbers + letter)
        elif letter == "J":
            self.rows = {}
        elif letter == "H":
            self.at = int(numbers.split(";")[0])
            self.rows[self.at] = ""
        elif letter not in "mK":
            self.strange.add(numbers + letter)

    def text(self):
        return "\n".join(self.rows.get(row, "") for row in range(1, max(self.rows, default=0) + 1))


class Top:
    """`ddprunctl top` on a terminal of its own."""

    def __init__(self, case, *args, columns=80, rows=24, **more):
        self.screen = Screen()
        (told, tells), (begun, begins) = os.pipe(), os.pipe()
        self.leader, self.terminal = pty.fork()
        if self.leader == 0:
            environment = harness.environment(**{"TERM": "xterm", "LANG": "C.UTF-8", **more})
            if "LC_ALL" not in more:
                environment.pop("LC_ALL", None)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.close(begins)
            self.lead([harness.DDPRUNCTL, "top", *args], environment, tells, begun)
        case.addCleanup(self.close)
        os.close(tells)
        self.pid = int(os.read(told, 100))
        self.modes = termios.tcgetattr(self.terminal)
        for end in (told, begun, begins):
            os.close(end)

    @staticmethod
    def lead(argv, environment, tells, begun):
        """As a shell does: in the foreground a group of its own, which can be stopped."""
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(0, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.write(tells, str(os.getpid()).encode())
            os.read(begun, 1)
            os.execve(argv[0], argv, environment)
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) % 256)

    def close(self):
        if self.leader:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.leader, 0)
        os.close(self.terminal)

    def read(self, seconds):
        if not select.select([self.terminal], [], [], seconds)[0]:
            return False
        try:
            self.screen.take(os.read(self.terminal, 65536).decode(errors="replace"))
        except OSError:
            return False
        return True

    def wait(self, pattern, what, seconds=20):
        """Until the screen shows it."""
        self.wait_for(lambda: re.search(pattern, self.screen.text()), what, seconds)

    def wait_for(self, condition, what, seconds=20):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or not self.read(max(deadline - time.monotonic(), 0)):
                raise AssertionError(f"not there: {what}\n{self.screen.text()}")

    def press(self, keys):
        os.write(self.terminal, keys.encode())

    def resize(self, columns, rows):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def is_stopped(self):
        with open(f"/proc/{self.pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(") ", 1)[1][0] == "T"

    def end(self):
        """Its exit code; all that it said was read."""
        while self.read(20):  # until nobody has the terminal open any more
            pass
        _, status = os.waitpid(self.leader, 0)
        self.leader = 0
        return os.waitstatus_to_exitcode(status)


class TopTest(harness.Case):
    def setUp(self):
        self.meet = self.scratch()

    def two_nodes(self, endpoint, *flags, name=NAME):
        flags = ["--nnodes=2", "--nproc_per_node=2", "--max-restarts=3", f"--rdzv-endpoint={endpoint}",
                 f"--rdzv-id={name}", *flags]
        return [self.start(*flags, sys.executable, "-c", LOOP, self.meet,
                           PYTHONPATH=os.path.join(harness.SOURCE, "python")) for _ in range(2)]

    def worker(self, round_number, rank):
        path = os.path.join(self.meet, f"{round_number}.{rank}")
        harness.wait_until(lambda: os.path.exists(path), f"rank {rank} runs in round {round_number}")
        with open(path, encoding="utf-8") as file:
            return int(file.read())

    def check_restored(self, top):
        self.assertEqual((top.screen.is_other, top.screen.has_cursor), (False, True))
        self.assertEqual(termios.tcgetattr(top.terminal), top.modes)
        self.assertEqual(top.screen.strange, set())

    def test_a_job_of_two_nodes_behind_a_token(self):
        token = f"--token-file={self.token()}"
        port = harness.free_port()
        daemon, endpoint = self.ddprund(f"--listen=127.0.0.1:{port}", token)
        top = Top(self, f"--rdzv-endpoint={endpoint}", token)
        top.wait("no job is here", "it is connected")
        nodes = self.two_nodes(endpoint, token)
        top.wait(r"RANKS 4: 4 running", "all ranks run")
        top.wait(r"loss +[012]\.\d", "the loss is shown")
        shown = top.screen.text()
        self.assertIn(r"evil\u202e\u009b2Jname  running", shown)
        self.assertIn("2 of 2 nodes", shown)

        top.press("l")
        top.wait(r"OUTPUT of rank 0\b[^\x00]*rank 0 is at step \d+1\n", "what rank 0 prints")
        top.press("3\r")
        top.wait(r"OUTPUT of rank 3\b[^\x00]*rank 3 is at step", "what rank 3 prints, of the other node")
        self.assertNotIn("rank 0 is at step", top.screen.text())
        top.press("\x1b[D")
        top.wait(r"OUTPUT of rank 2\b[^\x00]*rank 2 is at step", "what the rank before prints")

        os.kill(self.worker(1, 3), signal.SIGKILL)
        top.press("l")
        top.wait(r"RESTARTS 1\s+round 1 ended after .*rank 3 \(node 1,", "the restart and its cause")
        top.wait(r"RANKS 4: 4 running", "all ranks run again")

        top.press("1\r")
        top.wait(r"OUTPUT of rank 1\b[^\x00]*rank 1 is at step", "what rank 1 prints")
        top.press("n")
        top.wait("nodes by CPU", "nodes are in another order")
        top.press("?")
        top.wait("ETTR: share of the time", "the help")
        top.press("\x1b")
        top.resize(40, 10)
        top.wait_for(lambda: "q quit" in top.screen.rows.get(10, ""), "the picture of a small screen")
        self.assertIn("evil", top.screen.text())
        self.assertEqual(max(top.screen.rows), 10)
        self.assertLessEqual(max(map(len, top.screen.rows.values())), 40)
        top.resize(100, 30)
        top.wait_for(lambda: "q quit" in top.screen.rows.get(30, ""), "the picture of a large screen")
        self.assertIn("nodes by CPU", top.screen.text())

        daemon.kill()
        daemon.wait()
        top.wait(r"connection lost – showing state of \d\d:\d\d:\d\d", "that the connection is lost")
        self.assertIn("evil", top.screen.text())
        self.ddprund(f"--listen=127.0.0.1:{port}", token)
        top.wait("^ddprun top .* up ", "it is back")

        top.press("\x1a")
        harness.wait_until(top.is_stopped, "it is stopped")
        while top.read(0):
            pass
        self.check_restored(top)
        os.kill(top.pid, signal.SIGCONT)
        top.wait("^ddprun top .* up ", "it goes on")
        self.assertTrue(top.screen.is_other)
        top.press("\x03")
        self.assertEqual(top.end(), 130)
        self.check_restored(top)
        for node in nodes:
            node.kill()

    def test_output_that_is_not_to_be_seen(self):
        off = ["--watch-output=off"]
        for daemon_flags, job_flags, says in ((off, [], "switched off for all jobs: this ddprund runs with --watch-output=off"),
                                              ([], off, r"switched off for this job: ddprun on \S+ runs with --watch-output=off")):
            with self.subTest(says):
                _, endpoint = self.ddprund(*daemon_flags)
                job = self.start(f"--rdzv-endpoint={endpoint}", *job_flags, "--nproc_per_node=2", "--no-python",
                                 "sh", "-c", "echo secret; exec sleep 600")
                self.assertIn("secret", job.stdout.readline())
                top = Top(self, f"--rdzv-endpoint={endpoint}", columns=120)
                top.wait("RANKS 2: 2 running", "its ranks run")
                top.press("l")
                top.wait(f"OUTPUT of rank 0  {says}", "why it is not seen")
                self.assertNotIn("secret", top.screen.text())
                top.press("q")
                self.assertEqual(top.end(), 0)
                job.kill()

    def test_ends_that_leave_the_terminal_as_it_was(self):
        _, endpoint = self.ddprund()
        for how, code in (("q", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)):
            with self.subTest(how=how):
                top = Top(self, f"--rdzv-endpoint={endpoint}")
                top.wait("no job is here", "it is connected")
                self.assertNotEqual(termios.tcgetattr(top.terminal), top.modes)
                self.assertTrue(top.screen.is_other)
                top.press(how) if isinstance(how, str) else os.kill(top.pid, how)
                self.assertEqual(top.end(), code)
                self.check_restored(top)

    def test_what_does_not_pass_ends_it_with_one_line(self):
        _, endpoint = self.ddprund(f"--token-file={self.token()}")
        for flags, what in (([], "wants a token: give this ddprunctl its --token-file"),
                            ([f"--token-file={self.token('another token, as long as it')}"], "its token is another one")):
            with self.subTest(flags=flags):
                top = Top(self, f"--rdzv-endpoint={endpoint}", *flags)
                self.assertEqual(top.end(), 2)
                self.check_restored(top)
                self.assertIn(f"ddprunctl: the rendezvous at {endpoint} ", top.screen.text())
                self.assertIn(what, top.screen.text().replace("\r\n", " "))

    def test_without_a_terminal_it_is_one_picture_without_escapes(self):
        _, endpoint = self.ddprund()
        done = self.ddprunctl("top", f"--rdzv-endpoint={endpoint}", LC_ALL="C")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.text)
        self.assertRegex(done.stdout, f"^ddprun top {endpoint} .*\nno jobs\n$")
        self.assertTrue(done.stdout.isascii(), done.stdout)
        self.check_one_line(self.ddprunctl("top", "mine", f"--rdzv-endpoint={endpoint}"),
                            f'no job "mine" is at {endpoint}: it has no jobs')
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", "--rdzv-id=mine", "sh", "-c", "exit 9")
        self.assertEqual(done.returncode, 9)
        harness.wait_until(lambda: " 1 over" in self.ddprunctl("top", "--once", f"--rdzv-endpoint={endpoint}").stdout,
                           "it is over")
        done = self.ddprunctl("top", "mine", f"--rdzv-endpoint={endpoint}", COLUMNS="60", LC_ALL="C.UTF-8")
        self.assertRegex(done.stdout, r"(?m)^mine  failed\nexit code 9 · ")
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 60)
        self.assertNotIn("\x1b", done.stdout)
        # A terminal that is dumb is sent no escapes either.
        top = Top(self, f"--rdzv-endpoint={endpoint}", TERM="dumb")
        self.assertEqual(top.end(), 0)
        self.assertIn("JOBS 0 live, 1 over", top.screen.text())
        self.assertFalse(top.screen.is_other)


if __name__ == "__main__":
    harness.main()
