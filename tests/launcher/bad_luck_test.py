#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests bad luck: events in a job that its user did not cause, and the messages about them."""
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import harness

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


class Nodes(harness.Case):
    """Tests with two ddprun whose command lines differ, though they should be equal."""

    def setUp(self):
        self.port = harness.free_port()
        self.flags = [f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=j", "--nnodes=2"]

    def waiting(self, *args):
        first = self.start(*self.flags, *args)
        self.assertIn("waiting for nodes: 1 of 2", first.stderr.readline())
        return first

    def test_different_programs_are_named(self):
        first = self.waiting("true")
        done = self.ddprun(*self.flags, "echo", "x", timeout=20)
        self.assertEqual((done.returncode, self.finish(first).returncode), (0, 0), done.text)
        self.assertRegex(done.stderr, r"this node runs echo, but .* runs true")

    def test_a_signal_while_nodes_are_awaited_speaks_of_no_workers(self):
        first = self.waiting("true")
        first.send_signal(signal.SIGINT)
        done = self.finish(first)
        self.assertEqual(done.returncode, 128 + signal.SIGINT, done.text)
        self.assertIn("got SIGINT: leaving; no worker was started", done.stderr)

    def test_a_waiting_node_is_told_of_one_that_was_refused(self):
        first = self.waiting("true")
        self.ddprun(*self.flags, "--max-restarts=3", "true", timeout=20, code=2)
        told = first.stderr.readline()
        self.assertIn("waiting for nodes: 1 of 2 are here. ", told)
        self.assertIn("was refused: job j: --max-restarts is 3 here, but 0 on", told)
        self.assertEqual(self.ddprun(*self.flags, "true", timeout=20).returncode, 0)
        self.assertEqual(self.finish(first).returncode, 0)

    def test_a_node_that_is_lost_and_started_again_is_waited_for_if_asked(self):
        worker = 'echo "round $DDPRUN_ROUND"; [ $DDPRUN_ROUND = 2 ] || exec sleep 600'
        flags = [*self.flags, "--replacement-timeout=30", "--shutdown-timeout=1", "sh", "-c", worker]
        first = self.waiting(*flags[3:])
        second = self.start(*flags)
        for process in (first, second):
            self.assertEqual(process.stdout.readline(), "round 1\n")
        second.kill()
        second.wait()
        done = self.ddprun(*flags, timeout=20)
        self.assertEqual((done.returncode, done.stdout), (0, "round 2\n"), done.text)
        self.assertEqual(self.finish(first).returncode, 0)

    def test_a_node_that_waits_for_a_rendezvous_is_told_what_is_wrong(self):
        for endpoint, says in ((f"127.0.0.1:{self.port}", "refused"), ("no-such-host.invalid", "no-such-host")):
            with self.subTest(endpoint):
                process = self.start(f"--rdzv-endpoint={endpoint}", "--nnodes=2", "--rdzv-conf=is_host=0",
                                     "--rendezvous-timeout=30", "true")
                line = process.stderr.readline()
                self.assertIn("no answer yet from the rendezvous at", line)
                self.assertIn(says, line.split("): ", 1)[1])
                process.terminate()
                self.assertEqual(self.finish(process, timeout=20).returncode, 128 + signal.SIGTERM)


class Surroundings(harness.Case):
    """Faults of the environment in which ddprun is started."""

    def test_a_warden_that_is_missing_is_said_before_anything_begins(self):
        alone = shutil.copy(harness.DDPRUN, self.scratch())
        done = subprocess.run([alone, "--max-restarts=1", "true"], env=harness.environment(), text=True,
                              capture_output=True, timeout=20)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"^ddprun: \S*/ddprun-warden, a part of ddprun: No such file or "
                                      r"directory; install it beside ddprun")

    def test_a_home_of_another_user_is_no_reason_to_refuse(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        home = self.scratch()
        os.chmod(home, 0o700)
        arguments = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}",
                     "--rdzv-conf=is_host=0", "--rendezvous-timeout=0.5", "true"]
        environment = harness.environment(HOME=home)
        del environment["XDG_CONFIG_HOME"]
        done = subprocess.run([*NOBODY, harness.DDPRUN, *arguments], env=environment, cwd="/", text=True,
                              capture_output=True, timeout=20)
        self.assertEqual(done.returncode, 69, done.stderr)  # ddprun went on, and looked for the rendezvous
        del arguments[1:3]
        done = subprocess.run([*NOBODY, harness.DDPRUN, *arguments], env=environment, cwd="/", text=True,
                              capture_output=True, timeout=20)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(f"Not used: {home}/.config/ddprun/ddprun.toml: no permission to enter its directory",
                      done.stderr)

    def test_a_relative_tmpdir_means_the_same_wherever_a_worker_goes(self):
        folder = self.scratch()
        os.mkdir(os.path.join(folder, "tmp"))
        done = subprocess.run([harness.DDPRUN, "sh", "-c", "echo $TORCHELASTIC_ERROR_FILE"], cwd=folder,
                              env=harness.environment(TMPDIR="tmp"), text=True, capture_output=True, timeout=20)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith(folder + "/tmp/"), done.stdout)

    def test_a_relative_tmpdir_in_a_directory_that_was_removed(self):
        done = subprocess.run(["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$0" true',
                               harness.DDPRUN], cwd=self.scratch(), env=harness.environment(TMPDIR="tmp"),
                              text=True, capture_output=True, timeout=20)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("ddprun: TMPDIR=tmp: is relative, and the current directory is not known", done.stderr)

    def test_a_limit_of_processes_is_named(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to be a user without processes")
        if os.environ.get("DDPRUN_SANITIZE"):
            self.skipTest("a sanitizer's own threads fall under the limit, too")
        for limit in (1, 2):  # 1 stops the warden, 2 the worker
            done = subprocess.run(["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", "prlimit",
                                   f"--nproc={limit}", harness.DDPRUN, "true"], cwd="/", text=True,
                                  env=harness.environment(), capture_output=True, timeout=20)
            self.assertEqual(done.returncode, 126, done.stderr)
            self.assertIn("ulimit -u", done.stderr)

    def test_a_small_stack_is_enough(self):
        if os.environ.get("DDPRUN_SANITIZE"):
            self.skipTest("a sanitizer's own frames are larger")
        for arguments in (["--version"], ["--standalone", "--nproc-per-node=2", "true"]):
            done = subprocess.run(["prlimit", "--stack=262144", harness.DDPRUN, *arguments], text=True,
                                  env=harness.environment(), capture_output=True, timeout=20)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_slurms_time_is_nearly_over(self):
        end = int(time.time()) + 30
        done = self.ddprun("--time-limit=auto", "true", SLURM_JOB_END_TIME=str(end))
        least = end - time.time() - 1
        self.assertEqual(done.returncode, 2, done.text)
        said = re.search(rf"only (\d+) s are left until SLURM_JOB_END_TIME={end}, and the workers would be asked to leave "
                         r"60 s before that", done.stderr)
        self.assertTrue(said and least < int(said[1]) <= 30, done.text)


class Workers(harness.Case):
    def test_a_wrapper_that_swallows_signals_is_killed_with_all_below_it(self):
        folder = self.scratch()
        wrapper = self.write(folder, "wrapper.sh", "#!/bin/sh\ntrap '' TERM INT HUP\n"
                             "sh -c 'echo $$ > pid; echo ready; sleep 600; sleep 600' &\n"
                             "wait; wait; sleep 600\n", mode=0o755)
        process = subprocess.Popen([harness.DDPRUN, "--shutdown-timeout=0.5", wrapper], cwd=folder, text=True,
                                   env=harness.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.addCleanup(self._end, process)
        self.assertEqual(process.stdout.readline(), "ready\n")
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        done = self.finish(process, timeout=20)
        self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.text)
        self.assertGreater(time.monotonic() - begin, 0.4)
        with open(os.path.join(folder, "pid"), encoding="ascii") as f:
            self.assertFalse(os.path.exists(f"/proc/{f.read().strip()}"), "the wrapper's child is gone, too")

    def test_daemons_that_a_worker_leaves_hold_nothing_up_and_do_not_stay(self):
        folder = self.scratch()
        code = ("import os, sys, time\n"
                "if os.fork() == 0:\n"
                "    os.setsid()\n"
                "    if os.fork() == 0:\n"
                "        open('pid' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
                "        os.rename('pid' + os.environ['RANK'], 'ready' + os.environ['RANK'])\n"
                "        time.sleep(600)\n"  # this process holds the worker's stdout and stderr
                "    os._exit(0)\n"
                "while not os.path.exists('ready' + os.environ['RANK']): time.sleep(0.01)\n"
                "print('done')\n")
        for flags in ([], ["--nproc-per-node=2"]):
            with self.subTest(flags):
                done = subprocess.run([harness.DDPRUN, *flags, sys.executable, "-c", code], cwd=folder,
                                      text=True, env=harness.environment(), capture_output=True, timeout=20)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout.count("done"), len(flags) + 1)
                for name in os.listdir(folder):
                    with open(os.path.join(folder, name), encoding="ascii") as f:
                        self.assertFalse(os.path.exists(f"/proc/{f.read()}"), f"the daemon of {name} is gone")
                    os.unlink(os.path.join(folder, name))

    def test_a_program_removed_between_two_rounds_is_named(self):
        """A failure that no restart can repair causes no restart."""
        for ends, code, why in (("rm", 127, "No such file or directory"), ("chmod 000", 126, "Permission denied")):
            with self.subTest(ends):
                if ends == "chmod 000" and os.geteuid() == 0:
                    ends = "chmod 644"
                program = self.write(self.scratch(), "train", f'#!/bin/sh\n{ends} "$0"\nexit 3\n', mode=0o755)
                done = self.ddprun("--max-restarts=9", program, timeout=20, code=code)
                self.assertIn(f"could not exec {program}: {why}; a restart doesn't mend that", done.stderr)
                self.assertIn("restarts used: 1 of 9", done.stderr)


class Shell(harness.Case):
    def test_stopped_with_control_z_and_continued_in_the_foreground(self):
        """Tests as if typed: with a shell's job control, a terminal, and a worker that asks for a line afterwards."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.clear()
            os.environ.update(harness.environment(PS1="$ ", TERM="dumb"))
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.addCleanup(self.end_shell, pid, terminal)
        self.seen = ""
        code = "echo rea''dy; sleep 1; read line; echo got $line"
        os.write(terminal, f"'{harness.DDPRUN}' sh -c \"{code.replace('$', chr(92) + '$')}\"\n".encode())
        self.expect(terminal, "ready")
        os.write(terminal, b"\x1a")
        self.expect(terminal, "Stopped")
        os.write(terminal, b"echo be''tween\n")
        self.expect(terminal, "between")
        os.write(terminal, b"fg\n")
        os.write(terminal, b"typed\n")
        self.expect(terminal, "got typed")
        os.write(terminal, b"echo ended wi''th $?\n")
        self.expect(terminal, "ended with 0")

    def expect(self, terminal, text):
        deadline = time.monotonic() + 20
        while text not in self.seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([terminal], [], [], left)[0]:
                self.fail(f"{text!r} did not come; seen: {self.seen}")
            self.seen += os.read(terminal, 4096).decode()

    @staticmethod
    def end_shell(pid, terminal):
        os.close(terminal)  # all processes of the terminal get a hangup
        os.waitpid(pid, 0)


if __name__ == "__main__":
    harness.main()
