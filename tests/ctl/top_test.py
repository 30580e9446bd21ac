#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `ddprunctl top` in tmux's terminal, and without a terminal. It shows a ddprund with a token and a job of two
nodes."""
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launcher"))
import harness  # noqa: E402

# A worker that reports its losses and prints its rank and step. It ends when the test tells it to.
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

# This name could harm a terminal: it would write from right to left, and a character of C1 could move it back.
NAME = "evil\u202e\x9b2Jname"


# A shell like an interactive one: the program is its job in the foreground, which can be stopped.
SHELL = r"""
echo READY
read -r
set -m
sh -c 'echo $$ >"$0.tmp" && mv "$0.tmp" "$0" && exec "$@"' "$@"
code=$?
while [ $code = 147 ] || [ $code = 148 ]; do  # SIGSTOP, SIGTSTP
  echo "STOPPED"
  read -r
  fg >/dev/null
  code=$?
done
printf '\nENDED WITH %s\n' $code
read -r
"""


class Top:
    """`ddprunctl top` on a terminal of its own."""

    def __init__(self, case, *args, columns=80, rows=24, term="tmux-256color", **more):
        self.home = case.scratch()
        pid, raw = os.path.join(self.home, "pid"), os.path.join(self.home, "raw")
        self.environment = harness.environment(**{"LANG": "C.UTF-8", "LC_ALL": "", **more})
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows),
                  "env", f"TERM={term}", "bash", "-c", SHELL, "shell", pid, harness.DDPRUNCTL, "top", *args)
        case.addCleanup(self.tmux, "kill-server")
        self.tmux("pipe-pane", "-O", f"cat >{raw}")
        self.raw = raw
        self.terminal = os.open(self.ask("pane_tty"), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        case.addCleanup(os.close, self.terminal)
        self.wait("READY", "its shell")
        self.modes = termios.tcgetattr(self.terminal)
        self.press("Enter")
        harness.wait_until(lambda: os.path.exists(pid), "it is started")
        with open(pid, encoding="utf-8") as file:
            self.pid = int(file.read())

    def tmux(self, *args):
        return subprocess.run(["tmux", "-u", "-S", os.path.join(self.home, "tmux"), *args], check=True, text=True,
                              stdout=subprocess.PIPE, env=self.environment).stdout

    def ask(self, what):
        return self.tmux("display-message", "-p", f"#{{{what}}}").strip()

    def rows(self):
        return self.tmux("capture-pane", "-p").split("\n")

    def text(self):
        return "\n".join(self.rows())

    def has_screen(self):
        """Returns whether the terminal shows top's screen: not the shell's, and without a cursor."""
        return (self.ask("alternate_on"), self.ask("cursor_flag")) == ("1", "0")

    def wait(self, pattern, what):
        """Waits until the screen shows `pattern`."""
        self.wait_for(lambda: re.search(pattern, self.text()), what)

    def wait_for(self, condition, what, seconds=30):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not there: {what}\n{self.text()}")
            time.sleep(0.02)

    def press(self, *keys):
        self.tmux("send-keys", *keys)

    def resize(self, columns, rows):
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def fill(self):
        """Writes to the terminal, which nobody reads, until it takes no more bytes."""
        is_full = False
        while not is_full:
            try:
                os.write(self.terminal, b"." * 256)
            except BlockingIOError:
                is_full = not select.select([], [self.terminal], [], 0.5)[1]

    def end(self):
        """Waits until the shell has its terminal again. Returns top's exit code."""
        self.wait(r"ENDED WITH \d+", "its end")
        return int(re.search(r"ENDED WITH (\d+)", self.text())[1])


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
        self.assertEqual((top.ask("alternate_on"), top.ask("cursor_flag")), ("0", "1"))
        self.assertEqual(termios.tcgetattr(top.terminal), top.modes)

    def test_a_job_of_two_nodes_behind_a_token(self):
        token = f"--token-file={self.token()}"
        port = harness.free_port()
        daemon, endpoint = self.ddprund(f"--listen=127.0.0.1:{port}", token)
        top = Top(self, f"--rdzv-endpoint={endpoint}", token)
        top.wait("(?m)^no jobs$", "it is connected")
        nodes = self.two_nodes(endpoint, token)
        top.wait(r"RANKS 4: 4 running", "all ranks run")
        top.wait(r"loss +[012]\.\d", "the loss is shown")
        shown = top.text()
        self.assertIn(r"evil\u202e\u009b2Jname  running", shown)
        self.assertIn("2 of 2 nodes", shown)

        top.press("l")
        top.wait(r"OUTPUT of rank 0\b[^\x00]*rank 0 is at step \d+1\n", "what rank 0 prints")
        top.press("3", "Enter")
        top.wait(r"OUTPUT of rank 3\b[^\x00]*rank 3 is at step", "what rank 3 prints, of the other node")
        self.assertNotIn("rank 0 is at step", top.text())
        top.press("Left")
        top.wait(r"OUTPUT of rank 2\b[^\x00]*rank 2 is at step", "what the rank before prints")

        os.kill(self.worker(1, 3), signal.SIGKILL)
        top.press("l")
        top.wait(r"RESTARTS 1\s+round 1 ended after .*rank 3 \(node 1,", "the restart and its cause")
        top.wait(r"RANKS 4: 4 running", "all ranks run again")

        top.press("1", "Enter")
        top.wait(r"OUTPUT of rank 1\b[^\x00]*rank 1 is at step", "what rank 1 prints")
        top.press("n")
        top.wait("nodes by CPU", "nodes are in another order")
        top.press("?")
        top.wait("ETTR: share of the time", "the help")
        top.press("Escape")
        top.wait("n nodes by CPU", "the help is gone")
        for columns, rows, keys in ((40, 10, "q quit"), (100, 30, "q quit .* n nodes by CPU")):
            top.resize(columns, rows)  # meanwhile tmux shows the end of the larger picture, or both pictures
            top.wait(rf"^ddprun top (.*\n){{{rows - 1}}}{keys}.*\n$", f"the picture of {columns}x{rows}")
            self.assertIn("evil", top.text())
            self.assertLessEqual(max(map(len, top.rows())), columns)

        daemon.kill()
        daemon.wait()
        top.wait(r"connection lost – showing state of \d\d:\d\d:\d\d", "that the connection is lost")
        self.assertIn("evil", top.text())
        self.ddprund(f"--listen=127.0.0.1:{port}", token)
        top.wait("^ddprun top .* up ", "it is back")

        top.press("C-z")
        top.wait("STOPPED", "it is stopped")
        self.check_restored(top)
        top.press("Enter")
        top.wait("^ddprun top .* up ", "it goes on")
        self.assertTrue(top.has_screen())
        os.kill(top.pid, signal.SIGSTOP)
        top.wait("STOPPED", "it is stopped with no time to leave")
        top.press("Enter")
        top.wait_for(lambda: "STOPPED" not in top.text() and top.rows()[0].startswith("ddprun top"), "it goes on")
        self.assertTrue(top.has_screen())
        top.press("C-c")
        self.assertEqual(top.end(), 130)
        self.check_restored(top)
        with open(top.raw, "rb") as file:
            raw = file.read()
        self.assertIn(rb"evil\u202e\u009b2Jname", raw)
        for hostile in ("\u202e".encode(), b"\x9b"):
            self.assertNotIn(hostile, raw)
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
                self.assertNotIn("secret", top.text())
                top.press("q")
                self.assertEqual(top.end(), 0)
                job.kill()

    def test_ends_that_leave_the_terminal_as_it_was(self):
        _, endpoint = self.ddprund()
        for how, code in (("q", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131),
                          (signal.SIGSEGV, 139), (signal.SIGABRT, 134)):
            with self.subTest(how=how):
                top = Top(self, f"--rdzv-endpoint={endpoint}")
                top.wait("(?m)^no jobs$", "it is connected")
                self.assertNotEqual(termios.tcgetattr(top.terminal), top.modes)
                self.assertTrue(top.has_screen())
                top.press(how) if isinstance(how, str) else os.kill(top.pid, how)
                self.assertEqual(top.end(), code)
                self.check_restored(top)

    def test_a_terminal_that_takes_nothing_keeps_it_from_nothing(self):
        _, endpoint = self.ddprund()
        top = Top(self, f"--rdzv-endpoint={endpoint}")
        top.wait("(?m)^no jobs$", "it is connected")
        server = int(top.ask("pid"))
        os.kill(server, signal.SIGSTOP)
        try:
            top.fill()
            os.kill(top.pid, signal.SIGTERM)
            harness.wait_until(lambda: not os.path.exists(f"/proc/{top.pid}"), "it has ended")
            self.assertEqual(termios.tcgetattr(top.terminal), top.modes)
        finally:
            os.kill(server, signal.SIGCONT)
        self.assertEqual(top.end(), 143)

    def test_colours_are_those_that_the_user_wants(self):
        _, endpoint = self.ddprund()
        job = self.start(f"--rdzv-endpoint={endpoint}", "--no-python", "sh", "-c", "echo begun; exec sleep 600")
        self.assertIn("begun", job.stdout.readline())
        for more, flags, has_color, sign in (({}, [], True, "▪"), ({"NO_COLOR": "1"}, [], False, "▪"),
                                             ({}, ["--plain"], False, "="), ({"LANG": "C"}, [], True, "="),
                                             ({"LANG": "not_installed.utf8"}, [], True, "▪"),
                                             ({"term": "not-described"}, [], True, "▪")):
            with self.subTest(more=more, flags=flags):
                top = Top(self, f"--rdzv-endpoint={endpoint}", *flags, **more)
                top.wait(f" 0 {sign}", "its rank runs")
                styled = top.tmux("capture-pane", "-p", "-e")
                self.assertEqual(bool(re.search(r"\x1b\[[0-9;]*3[1-7]m", styled)), has_color, styled)
                self.assertIn("\x1b[1m", styled)
                top.press("q")
                self.assertEqual(top.end(), 0)
        job.kill()

    def test_a_wrong_token_ends_it_with_one_line(self):
        _, endpoint = self.ddprund(f"--token-file={self.token()}")
        for flags, what in (([], "wants a token: give this ddprunctl its --token-file"),
                            ([f"--token-file={self.token('another token, as long as it')}"], "its token is another one")):
            with self.subTest(flags=flags):
                top = Top(self, f"--rdzv-endpoint={endpoint}", *flags, columns=200)
                self.assertEqual(top.end(), 2)
                self.check_restored(top)
                self.assertIn(f"ddprunctl: the rendezvous at {endpoint} ", top.text())
                self.assertIn(what, top.text())

    def test_it_is_one_picture_without_escapes_if_there_is_no_terminal(self):
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
        # A terminal of the type "dumb" gets no escapes either.
        top = Top(self, f"--rdzv-endpoint={endpoint}", term="dumb")
        self.assertEqual(top.end(), 0)
        self.assertIn("JOBS 0 live, 1 over", top.text())
        with open(top.raw, "rb") as file:
            self.assertNotIn(b"\x1b", file.read())


if __name__ == "__main__":
    harness.main()
