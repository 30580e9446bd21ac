#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ddprun on one node: success, failure, restarts, output, signals, and leftovers."""
import json
import os
import random
import re
import resource
import signal
import socket
import sys
import time
import uuid

import harness


def processes_with(marker):
    """Returns the pids of living processes that have `marker` in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if marker.encode() in f.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def catches(pid, number):
    """Returns whether the process has a handler for the signal."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        mask = re.search(r"^SigCgt:\s*([0-9a-f]+)$", f.read(), re.M)[1]
    return bool(int(mask, 16) >> (number - 1) & 1)


class GpuMemory(harness.Case):
    """Tests with a fake NVML that reads its answers from a file (tests/agent/gpu/fake_nvml.cc)."""

    def test_the_next_round_waits_until_the_memory_of_the_last_one_is_free(self):
        folder = self.scratch()
        held, started = os.path.join(folder, "held"), os.path.join(folder, "started")
        self.write(folder, "held", "")
        script = (f'if [ $DDPRUN_ROUND = 1 ]; then '
                  f'until [ -e {held}.read ]; do sleep 0.01; done; echo "0 $$ 1073741824" >{held}.new; '
                  f'mv {held}.new {held}; exit 3; fi; date +%s%N >{started}')
        process = self.start("--standalone", "--max-restarts=1", "sh", "-c", script, FAKE_NVML_LIST=held,
                             DDPRUN_NVML_LIBRARY=os.path.join(harness.BIN, "libddprun_fake_nvml.so"))

        def worker_is_gone():
            with open(held, encoding="ascii") as f:
                words = f.read().split()
            return len(words) == 3 and not os.path.exists(f"/proc/{words[1]}")

        harness.wait_until(worker_is_gone, "the first round's worker held memory and ended")
        time.sleep(0.3)  # long enough for a new round to start, if it didn't wait
        freed = time.time_ns()
        self.write(folder, "held", "")
        done = self.finish(process, code=0)
        with open(started, encoding="ascii") as f:
            self.assertGreater(int(f.read()), freed, done.text)


class Success(harness.Case):
    def test_two_true(self):
        done = self.ddprun("--standalone", "--nproc_per_node=2", "true")
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.text)

    def test_each_worker_knows_its_place(self):
        done = self.ddprun("--standalone", "--nproc_per_node=3", "sh", "-c", harness.SHOW, code=0)
        workers = harness.parse_shown(done.stdout)
        self.assertEqual([w["rank"] for w in workers], ["0", "1", "2"], done.text)
        for worker in workers:
            self.assertEqual(worker["rank"], worker["local"])
            self.assertEqual((worker["world"], worker["local_world"], worker["groups"]), ("3", "3", "1"))
            self.assertRegex(worker["master"], r"^127\.0\.0\.1:[1-9]\d*$")
            self.assertEqual((worker["restart"], worker["round"]), ("0", "1"))
            self.assertRegex(worker["id"], "^[0-9a-f]{32}$")
        self.assertEqual(len({w["master"] for w in workers}), 1)

    def test_lines_of_several_workers_are_prefixed(self):
        done = self.ddprun("--standalone", "--nproc_per_node=2", "sh", "-c", "echo a; echo b >&2")
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] a", "[1] a"], done.text)
        errors = [line for line in done.stderr.splitlines() if not line.startswith("[ddprun]")]
        self.assertEqual(sorted(errors), ["[0] b", "[1] b"], done.text)

    def test_one_worker_writes_as_it_is(self):
        done = self.ddprun("--standalone", "sh", "-c", "printf 'no newline'")
        self.assertEqual((done.returncode, done.stdout), (0, "no newline"), done.text)

    def test_arguments_pass_through_untouched(self):
        own = ["--nproc_per_node=9", "-m", "--", "", "a b", "--help"]
        done = self.ddprun("--standalone", "sh", "-c", 'for a in "$@"; do echo "<$a>"; done', "x", *own)
        self.assertEqual(done.stdout.splitlines(), [f"<{a}>" for a in own], done.text)

    def test_local_rank_in_an_argument_becomes_the_workers(self):
        given = ["dev${local_rank}", "$local_rank", "${other}", "$$x"]
        for flags, double in (((), "$$x"), (("--no-python",), "$x")):
            done = self.ddprun("--standalone", "--nproc_per_node=2", *flags, "/bin/echo", *given)
            self.assertEqual(sorted(done.stdout.splitlines()),
                             [f"[{r}] dev{r} {r} ${{other}} {double}" for r in (0, 1)], done.text)

    def test_a_script_is_run_by_unbuffered_python_and_a_module_too(self):
        folder = self.scratch()
        script = self.write(folder, "show.py", "import sys; print(sys.argv[1:], sys.stdout.write_through)")
        done = self.ddprun("--standalone", script, "--x", PYTHON_EXEC=sys.executable)
        self.assertEqual(done.stdout, "['--x'] True\n", done.text)
        done = self.ddprun("--standalone", "-m", "show", "y", PYTHON_EXEC=sys.executable,
                           PYTHONPATH=folder)
        self.assertEqual(done.stdout, "['y'] True\n", done.text)

    def test_an_executable_script_and_a_package_are_run_as_torchrun_runs_them(self):
        folder = self.scratch()
        show = ("import sys; print(sys.argv, sys.executable == sys.orig_argv[0], "
                "sys.stdout.write_through)")
        script = self.write(folder, "show.py", "#!/nowhere/python\r\n" + show)
        os.chmod(script, 0o755)
        package = os.path.join(folder, "pkg")
        os.mkdir(package)
        self.write(package, "__main__.py", show)
        for program, name in (("show.py", "show.py"), ("./show.py", "./show.py"), ("pkg", "pkg")):
            done = self.ddprun("--standalone", program, "x", cwd=folder, PYTHON_EXEC=sys.executable)
            self.assertEqual(done.stdout, f"['{name}', 'x'] True True\n", done.text)
            self.assertNotIn("running it by", done.stderr)

    def test_the_python_of_the_environment_in_which_ddprun_lies_is_taken(self):
        folder = self.scratch()
        os.makedirs(os.path.join(folder, "venv", "bin"))
        self.write(os.path.join(folder, "venv"), "pyvenv.cfg", "")
        python = self.write(os.path.join(folder, "venv", "bin"), "python3", "#!/bin/sh\necho mine $@\n")
        os.chmod(python, 0o755)
        alias = os.path.join(folder, "venv", "bin", "torchrun")
        os.symlink(harness.DDPRUN, alias)
        script = self.write(folder, "t.py", "")
        done = self.ddprun("--standalone", script, program=alias)
        self.assertEqual(done.stdout, f"mine -u {script}\n", done.text)

    def test_the_round_has_a_store_at_master_port(self):
        code = ("import os, socket; s = socket.create_connection((os.environ['MASTER_ADDR'],"
                " int(os.environ['MASTER_PORT'])), 10); print('connected')")
        done = self.ddprun("--standalone", "--nproc_per_node=2", sys.executable, "-c", code)
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] connected", "[1] connected"], done.text)

    def test_two_nodes_on_one_machine(self):
        flags = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}", "sh", "-c",
                 harness.SHOW]
        done = [self.finish(p) for p in [self.start(*flags), self.start(*flags)]]
        self.assertEqual([each.returncode for each in done], [0, 0], done[0].text + done[1].text)
        workers = harness.parse_shown("".join(each.stdout for each in done))
        self.assertEqual([(w["rank"], w["group"], w["local"]) for w in workers],
                         [("0", "0", "0"), ("1", "1", "0")])

    def test_the_exit_barrier_and_the_last_call_are_as_long_as_the_user_says(self):
        flags = ["--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}", "--rdzv-id=j",
                 "--shutdown-timeout=1", "--rdzv-conf=exit_barrier_timeout=0.5,last_call_timeout=0.1"]
        self.assertEqual(self.ddprun(*flags, "true", timeout=20).returncode, 0)  # ddprun doesn't wait for 30 s
        flags[0] = "--nnodes=2"
        running = [self.start(*flags, "sh", "-c", "[ $RANK = 0 ] || exec sleep 600") for _ in range(2)]
        for done in [self.finish(process, timeout=20) for process in running]:
            self.assertEqual(done.returncode, 75, done.text)
            self.assertRegex(done.stderr, r"still running 500 ms|still running 0\.5 s")

    def test_garbage_at_its_port_does_not_disturb_a_job_of_two_nodes(self):
        port = harness.free_port()
        go = os.path.join(self.scratch(), "go")
        script = f"echo ready; until [ -e {go} ]; do sleep 0.01; done; echo $RANK done"
        running = [self.start("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "sh", "-c", script)
                   for _ in range(2)]
        for process in running:
            self.assertEqual(process.stdout.readline(), "ready\n")
        upgrade = (b"GET /v1/agent HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                   b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                   b"Sec-WebSocket-Version: 13\r\n\r\n")
        noise = random.Random(7)
        garbage = [b"\xff", b"\x16\x03\x01\x02", b"\0\1\2\3\4\5\6\7", b"\0" + b"\xff" * 5000,
                   b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100_000, b"POST /v1/agent HTTP/1.1\r\n\r\n",
                   upgrade + b"\x81\xff" + b"\xff" * 8, upgrade + b"\x81\x82\0\0\0\0{}",
                   *(noise.randbytes(noise.randrange(1, 3000)) for _ in range(100))]
        for _ in range(20):  # these clients never send anything
            self.addCleanup(socket.create_connection(("127.0.0.1", port), 10).close)
        for bytes_ in garbage:
            with socket.create_connection(("127.0.0.1", port), 10) as hostile:
                try:
                    hostile.sendall(bytes_)
                    hostile.shutdown(socket.SHUT_WR)
                    while hostile.recv(1000):
                        pass
                except TimeoutError:
                    self.fail(f"not closed after {bytes_[:40]!r}")
                except OSError:  # the connection was closed while the test wrote to it
                    pass
        open(go, "w", encoding="ascii").close()
        done = [self.finish(process, timeout=20) for process in running]
        self.assertEqual([each.returncode for each in done], [0, 0], done[0].text + done[1].text)
        self.assertEqual(sorted(each.stdout for each in done), ["0 done\n", "1 done\n"])

    def test_output_with_nobody_to_read_it(self):
        with open("/dev/full", "w") as full:
            process = harness.subprocess.run([harness.DDPRUN, "--standalone", "--nproc_per_node=2",
                                              "echo", "x"], env=harness.environment(), stdout=full,
                                             stderr=harness.subprocess.DEVNULL, timeout=20)
        self.assertEqual(process.returncode, 0)

    def test_closed_standard_streams_are_no_sockets(self):
        """A socket with descriptor 0, 1 or 2 would be the workers' input, or would get their output."""
        out = os.path.join(self.scratch(), "streams")
        closed = harness.subprocess.run(
            ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', harness.DDPRUN, "--standalone",
             "--nproc_per_node=2", "sh", "-c",
             'echo lost; echo lost >&2; [ $RANK = 1 ] || readlink -f /proc/$$/fd/0 /proc/$PPID/fd/0 >$OUT'],
            env=harness.environment(OUT=out), timeout=20)
        self.assertEqual(closed.returncode, 0)
        with open(out, encoding="utf-8") as f:
            self.assertEqual(f.read(), "/dev/null\n" * 2)
        alone = self.finish(self.start("-c", 'exec "$0" --standalone sh -ec "echo lost; exit 0" >&-', harness.DDPRUN,
                                       program="/bin/sh"))
        self.assertEqual((alone.returncode, alone.stderr), (0, ""), alone.text)  # the worker has ddprun's own stdout

    def test_workers_have_the_limit_of_open_files_that_ddprun_was_given(self):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        code = "ulimit -Sn; ulimit -Hn; exit $((1 - TORCHELASTIC_RESTART_COUNT))"
        shown = self.finish(self.start_limited(resource.RLIMIT_NOFILE, (200, hard), "--standalone",
                                               "--max-restarts=1", "sh", "-c", code))
        self.assertEqual(shown.stdout.split(), ["200", str(hard)] * 2, shown.text)

    def test_the_workers_socket_is_in_memory_unless_tmpdir_says_where(self):
        for tmpdir, where in (("", "/dev/shm"), (self.scratch(), None)):
            done = self.ddprun("--standalone", "sh", "-c",
                               'echo "$DDPRUN_AGENT_SOCKET"; test -S "$DDPRUN_AGENT_SOCKET"', TMPDIR=tmpdir, code=0)
            directory = os.path.dirname(done.stdout.strip())
            self.assertEqual(os.path.dirname(directory), where or tmpdir, done.text)
            self.assertFalse(os.path.exists(directory), done.text)

    def test_a_limit_of_file_sizes_is_an_error_with_words(self):
        done = self.finish(self.start_limited(resource.RLIMIT_FSIZE, (64, 64), "--standalone", "true"), code=126)
        self.assertIn("File too large (ulimit -f counts that, too)", done.stderr)

    def test_too_few_open_files_are_said_at_once(self):
        done = self.finish(self.start_limited(resource.RLIMIT_NOFILE, (12, 12), "--standalone", "true"), 20, code=2)
        self.assertEqual(done.stderr, "ddprun: the limit of open files is 12, ddprun needs 32 and more "
                                      "with its workers: raise it (ulimit -Hn)\n")

    def start_limited(self, which, limits, *args):
        return self.start(*args, preexec_fn=lambda: resource.setrlimit(which, limits))

    def test_256_workers_that_end_at_once(self):
        self.ddprun("--standalone", "--nproc_per_node=256", "true", code=0)

    def test_omp_threads_default_is_said(self):
        show = 'echo "threads=$OMP_NUM_THREADS"'
        done = self.ddprun("--standalone", "--nproc_per_node=2", "sh", "-c", show)
        self.assertEqual(done.stdout.count("threads=1\n"), 2, done.text)
        self.assertIn("OMP_NUM_THREADS=1", done.stderr)
        done = self.ddprun("--standalone", "--nproc_per_node=2", "sh", "-c", show, OMP_NUM_THREADS="5")
        self.assertEqual(done.stdout.count("threads=5\n"), 2, done.text)
        self.assertNotIn("OMP_NUM_THREADS", done.stderr)
        done = self.ddprun("--standalone", "sh", "-c", show)
        self.assertEqual(done.stdout, "threads=\n", done.text)


class Failure(harness.Case):
    def test_exit_code_and_report_are_the_first_failing_workers(self):
        done = self.ddprun("--standalone", "--nproc_per_node=2", "sh", "-c",
                           'if [ $RANK = 1 ]; then for i in $(seq 30); do echo "line $i" >&2; done; '
                           'exit 7; fi; exec sleep 600', code=7)
        report = done.stderr[done.stderr.index("FAILED"):]
        self.assertRegex(report, r"rank +1 \(local rank 1\)")
        self.assertRegex(report, r"host +\S+ \(node rank 0\)")
        self.assertRegex(report, r"pid +\d+\n")
        self.assertIn("exit code 7", report)
        shown = re.findall(r"\| (line \d+)", report)
        self.assertEqual(shown, [f"line {i}" for i in range(11, 31)], done.text)
        self.assertIn("ddprun exits with 7", report)

    def test_a_signal_is_named_and_gives_128_more(self):
        done = self.ddprun("--standalone", "--nproc_per_node=2", "sh", "-c",
                           'if [ $RANK = 0 ]; then kill -SEGV $$; fi; exec sleep 600')
        self.assertEqual(done.returncode, 128 + signal.SIGSEGV, done.text)
        self.assertIn("killed by SIGSEGV (signal 11)", done.stderr)

    def test_the_error_file_of_record_is_shown(self):
        code = ("import json, os, sys; json.dump({'message': {'message': 'ValueError: too warm'}},"
                " open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w')); sys.exit(4)")
        folder = self.scratch()
        done = self.ddprun("--standalone", sys.executable, "-c", code, TMPDIR=folder, code=4)
        self.assertIn("ValueError: too warm", done.stderr)
        self.assertEqual(os.listdir(folder), [])

    def test_a_failure_of_ddprun_itself_is_in_its_own_error_file(self):
        own = os.path.join(self.scratch(), "own.json")

        def message():
            with open(own, encoding="utf-8") as f:
                return json.load(f)["message"]

        self.ddprun("--nnodes=0", "--max-restarts=x", "true", TORCHELASTIC_ERROR_FILE=own)
        self.assertEqual(message()["errorCode"], 2)
        self.assertIn("--nnodes", message()["message"])
        self.assertIn("--max-restarts", message()["message"])
        self.ddprun("--nnodes=2", "--rdzv-endpoint=127.0.0.2:1", "--rdzv-conf=is_host=0", "--rendezvous-timeout=0.1",
                    "true", TORCHELASTIC_ERROR_FILE=own)
        self.assertEqual(message()["errorCode"], 69)
        self.assertIn("127.0.0.2:1", message()["message"])
        # A ddprun inside a worker reports its error to the outer ddprun, too.
        done = self.ddprun("--standalone", "sh", "-c", f"{harness.DDPRUN} /no/such/program; exit 3",
                           TORCHELASTIC_ERROR_FILE=own, code=3)
        self.assertIn("program not found", message()["message"])
        self.assertIn("note      /no/such/program", done.stderr.replace("program not found: ", ""), done.text)

    def test_restarts_until_it_works(self):
        done = self.ddprun("--standalone", "--nproc_per_node=2", "--max-restarts=3", "sh", "-c",
                           harness.SHOW + "; " + harness.MEET + '; if [ $RANK = 1 ]; then '
                           '[ $TORCHELASTIC_RESTART_COUNT = 2 ]; exit; fi; '
                           '[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exec sleep 600',
                           MEET=self.scratch(), code=0)
        workers = harness.parse_shown(done.stdout)
        self.assertEqual([(w["round"], w["restart"]) for w in workers],
                         [(str(r + 1), str(r)) for r in range(3) for _ in range(2)], done.text)
        self.assertEqual(len({w["master"] for w in workers}), 3, "a round has a port of its own")
        self.assertNotIn("FAILED", done.stderr)

    def test_restarts_run_out(self):
        done = self.ddprun("--standalone", "--max-restarts=2", "sh", "-c", harness.SHOW + "; exit 5", code=5)
        self.assertEqual(len(harness.parse_shown(done.stdout)), 3, done.text)
        self.assertIn("restarts used: 2 of 2", done.stderr)

    def test_a_fixed_master_port_is_kept_over_a_restart(self):
        port = harness.free_port()
        done = self.ddprun("--master-port", str(port), "--max-restarts=1", "sh", "-c",
                           harness.SHOW + "; [ $TORCHELASTIC_RESTART_COUNT = 1 ]", code=0)
        self.assertEqual({w["master"] for w in harness.parse_shown(done.stdout)}, {f"127.0.0.1:{port}"})


# A worker that waits for SIGTERM without a race, prints it, and ends. With "deaf" it doesn't end.
WAITER = ("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); "
          "print('ready', flush=True); signal.sigwait({signal.SIGTERM}); print('heard', flush=True)")
ANY_SIGNAL = ("import signal; all = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}; "
              "signal.pthread_sigmask(signal.SIG_BLOCK, all); print('ready', flush=True); "
              "print('heard', signal.Signals(signal.sigwait(all)).name, flush=True)")
DEAF = WAITER + "; signal.sigwait({signal.SIGUSR2})"


VALIDATE = b"\0" + (0x3C85F7CE).to_bytes(4, "little")  # each client of a store sends this first

# A worker that connects to the store. After SIGTERM node 0's worker ends at once, node 1's a second after that.
STORE_USER = f"""
import os, signal, socket, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 10)
store.sendall({VALIDATE!r})
own = os.path.join(os.environ["MEET"], "pid" + os.environ["NODE"])
with open(own + "-", "w") as f:
    f.write(str(os.getpid()))
os.rename(own + "-", own)
while not os.path.exists(os.path.join(os.environ["MEET"], "pid0")):
    time.sleep(0.01)
print("ready", flush=True)
signal.sigwait({{signal.SIGTERM}})
if os.environ["NODE"] == "0":
    sys.exit()
pid0 = open(os.path.join(os.environ["MEET"], "pid0")).read()
while os.path.exists("/proc/" + pid0):
    time.sleep(0.01)
store.settimeout(1)
try:
    print("the store is gone", store.recv(1), flush=True)
except TimeoutError:
    print("the store is still there", flush=True)
"""


class Signals(harness.Case):
    def wait_for_line(self, process, text):
        for line in process.stdout:
            if text in line:
                return
        self.fail(f"ddprun ended before it printed {text!r}: {process.stderr.read()}")

    def test_the_first_sigterm_stops_in_order(self):
        process = self.start("--standalone", "--nproc_per_node=2", sys.executable, "-c", WAITER)
        self.wait_for_line(process, "ready")
        self.wait_for_line(process, "ready")
        process.send_signal(signal.SIGTERM)
        done = self.finish(process)
        self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.text)
        self.assertEqual(done.stdout.count("heard"), 2, done.text)
        self.assertIn("got SIGTERM: stopping the workers", done.stderr)

    def test_a_second_signal_forces(self):
        process = self.start("--standalone", "--nproc_per_node=2", sys.executable, "-c", DEAF)
        self.wait_for_line(process, "ready")
        self.wait_for_line(process, "ready")
        process.send_signal(signal.SIGTERM)
        self.wait_for_line(process, "heard")
        process.send_signal(signal.SIGINT)
        done = self.finish(process, timeout=10)  # before the grace of 30 s is over
        self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.text)
        self.assertIn("killing the workers", done.stderr)

    def test_a_signal_that_comes_twice_at_once_is_one(self):
        """A terminal sends ^C to a wrapper and to ddprun, and the wrapper passes it on."""
        code = ("import os, signal; all = {signal.SIGINT, signal.SIGUSR2}; signal.pthread_sigmask(signal.SIG_BLOCK, all); "
                "print('ready', flush=True); signal.sigwait({signal.SIGINT}); print('heard', os.getpid(), flush=True); "
                "signal.sigwait({signal.SIGUSR2}); print('saved', flush=True)")
        process = self.start("--standalone", sys.executable, "-c", code)
        self.wait_for_line(process, "ready")
        process.send_signal(signal.SIGINT)
        pid = int(self.await_line(process, "heard", stream="stdout").split()[1])
        process.send_signal(signal.SIGINT)
        self.await_line(process, "got SIGINT again at once")
        os.kill(pid, signal.SIGUSR2)
        done = self.finish(process)
        self.assertEqual(done.returncode, 128 + signal.SIGINT, done.text)
        self.assertIn("saved", done.stdout)

    def test_a_signal_that_comes_a_third_time_forces(self):
        process = self.start("--standalone", sys.executable, "-c", DEAF)
        self.wait_for_line(process, "ready")
        process.send_signal(signal.SIGTERM)
        self.wait_for_line(process, "heard")
        process.send_signal(signal.SIGTERM)
        self.await_line(process, "got SIGTERM again at once")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(process, timeout=10).returncode, 128 + signal.SIGTERM)

    def test_a_worker_that_handles_control_c_has_the_grace_and_its_end_is_told(self):
        code = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}); print('ready', flush=True); signal.pause()"
        process = self.start("--standalone", "--nproc-per-node=3", "--shutdown-timeout=0.5", sys.executable, "-c",
                             f"import os; os.environ['RANK'] == '1' and exit(); {code}")
        self.wait_for_line(process, "ready")
        self.wait_for_line(process, "ready")
        process.send_signal(signal.SIGINT)
        done = self.finish(process)
        self.assertEqual(done.returncode, 128 + signal.SIGINT, done.text)
        self.assertIn("got SIGINT: stopping the workers (SIGKILL after 0.5 s)", done.stderr)
        self.assertIn("ranks 0, 2 ran on for 0.5 s after the signal to stop: killed now (--shutdown-timeout)\n", done.stderr)

    def test_the_workers_get_the_signal_that_ddprun_got(self):
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            process = self.start("--standalone", "--nproc_per_node=2", sys.executable, "-c", ANY_SIGNAL)
            self.wait_for_line(process, "ready")
            self.wait_for_line(process, "ready")
            process.send_signal(number)
            done = self.finish(process)
            self.assertEqual(done.returncode, 128 + number, done.text)
            self.assertEqual(done.stdout.count(f"heard {number.name}"), 2, done.text)

    def test_control_c_reaches_what_the_workers_started_at_once(self):
        code = ("import os, signal; all = {signal.SIGINT}; signal.pthread_sigmask(signal.SIG_BLOCK, all); child = os.fork(); "
                "child and print('ready', flush=True); signal.sigwait(all); child and os.waitpid(child, 0)")
        process = self.start("--standalone", sys.executable, "-c", code)
        self.wait_for_line(process, "ready")
        process.send_signal(signal.SIGINT)
        done = self.finish(process, timeout=10)  # before half of the grace, 15 s
        self.assertEqual(done.returncode, 128 + signal.SIGINT, done.text)

    def test_a_hangup_that_is_ignored_stays_ignored(self):
        """Runs ddprun as under nohup."""
        process = self.start("--standalone", "sh", "-c", "echo ready; exec sleep 600",
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_line(process, "ready")
        process.send_signal(signal.SIGHUP)  # if not ignored, it would be handled before SIGTERM
        process.send_signal(signal.SIGTERM)
        done = self.finish(process)
        self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.text)

    def test_the_last_output_waits_for_its_reader_until_a_signal_comes(self):
        """The workers' output is more than a pipe holds, and less than the amount that makes workers wait."""
        meet = self.scratch()
        process = self.start("--standalone", "--nproc_per_node=2", "sh", "-c",
                             "head -c 200000 /dev/zero | tr '\\0' x; : >\"$MEET/$RANK\"", MEET=meet)
        harness.wait_until(lambda: len(os.listdir(meet)) == 2, "the workers have written", 30)
        harness.wait_until(lambda: not catches(process.pid, signal.SIGTERM), "their output alone is left", 30)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=5), -signal.SIGTERM)

    def test_bytes_that_a_reader_did_not_take_after_a_signal_are_counted(self):
        process = self.start("--standalone", "--nproc_per_node=2", "sh", "-c",
                             "head -c 500000 /dev/zero | tr '\\0' x; echo ready >&2; sleep 600")
        next(line for line in process.stderr if "ready" in line)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
        self.assertRegex(process.stderr.read(), r"the last \d+ bytes of the workers' output were not taken")

    def test_a_pause_of_ddprun_does_not_end_a_job_of_one_node(self):
        """The pause acts like Ctrl-Z and fg. In a job of several nodes, a node is lost after 5 s of silence."""
        meet = self.scratch()
        process = self.start("--standalone", "sh", "-c",
                             'echo ready; until [ -e "$MEET/go" ]; do sleep 0.01; done', MEET=meet)
        self.wait_for_line(process, "ready")
        process.send_signal(signal.SIGSTOP)
        time.sleep(5.5)  # the silence
        process.send_signal(signal.SIGCONT)
        self.write(meet, "go", "")
        done = self.finish(process, code=0)
        self.assertEqual(done.stderr, "")

    def test_shutdown_timeout_is_heeded_when_another_worker_failed(self):
        process = self.start("--standalone", "--nproc_per_node=2", "--shutdown-timeout=0.3", "sh", "-c",
                             '[ $RANK = 1 ] && exit 3; trap "" TERM; while :; do sleep 600 & wait; done')
        self.assertEqual(self.finish(process, timeout=10).returncode, 3)

    def check_store_outlives_rank_0(self, flags_of):
        """Stops node 0, which serves the store. The other node's worker, which takes longer, must still have it."""
        meet = self.scratch()
        worker = self.write(meet, "worker.py", STORE_USER)
        nodes = [self.start("--nnodes=2", *flags_of(rank), worker, MEET=meet, NODE=str(rank),
                            PYTHON_EXEC=sys.executable) for rank in range(2)]
        for node in nodes:
            self.wait_for_line(node, "ready")
        nodes[0].send_signal(signal.SIGTERM)
        done = [self.finish(node, timeout=20) for node in nodes]
        text = done[0].text + done[1].text
        self.assertEqual([each.returncode for each in done], [128 + signal.SIGTERM] * 2, text)
        self.assertIn("the store is still there", done[1].stdout, text)

    def test_the_rounds_store_outlives_the_workers_of_other_nodes(self):
        endpoint = f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}"
        self.check_store_outlives_rank_0(lambda rank: [endpoint, f"--node-rank={rank}", "--rdzv-id=j"])

    def test_a_static_rounds_store_outlives_the_workers_of_other_nodes(self):
        port = harness.free_port()
        self.check_store_outlives_rank_0(lambda rank: ["--master-addr=127.0.0.1", f"--node-rank={rank}",
                                                       f"--master-port={port}"])

    def test_a_store_that_is_still_used_is_kept_for_the_grace_only(self):
        """The store's only connection belongs to no worker, and its node leaves."""
        process = self.start("--standalone", "--shutdown-timeout=1", sys.executable, "-c",
                             "import os; print(os.environ['MASTER_PORT'], flush=True); " + WAITER)
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline())), 10) as foreign:
            foreign.sendall(VALIDATE)
            self.wait_for_line(process, "ready")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(self.finish(process, timeout=10).returncode, 128 + signal.SIGTERM)

    def test_processes_that_workers_leave_behind_are_named_while_they_are_waited_for(self):
        script = "trap '' TERM; sleep 600 & exit 0"
        done = self.ddprun("--shutdown-timeout=4", "sh", "-c", script, timeout=30, code=0)
        self.assertRegex(done.stderr, r"the workers have ended, but not what they started: .*sleep.*; it is killed in "
                                      r"at most [12] s \(--shutdown-timeout\)")

    def test_a_signal_of_a_worker_to_its_parent_is_ddpruns(self):
        for script in ("kill -TERM $PPID; exec sleep 600",
                       # the sender is a worker's child, which lives on
                       "sh -c 'kill -TERM $0; exec sleep 600' $PPID & exec sleep 600"):
            # Both workers send the signal; ddprun counts it once.
            done = self.ddprun("--nproc-per-node=2", "sh", "-c", script, timeout=30)
            self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.text)
            self.assertIn("got SIGTERM: stopping the workers", done.stderr)
            self.assertNotIn("again", done.stderr)

    def test_a_signal_that_comes_while_workers_are_started_is_ddpruns(self):
        script = "[ $RANK != 0 ] || kill -TERM $PPID; exec sleep 600"
        done = self.ddprun("--nproc-per-node=64", "sh", "-c", script, timeout=30)
        self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.text)

    def test_killing_the_agent_leaves_no_descendant(self):
        marker = "DDPRUN_TEST_MARK_" + uuid.uuid4().hex
        folder = self.scratch()
        process = self.start("--standalone", "--nproc_per_node=2", "sh", "-c",
                             "trap '' TERM HUP; setsid sleep 600 & echo ready; sleep 600",
                             TMPDIR=folder, **{marker: "1"})
        self.wait_for_line(process, "ready")
        self.wait_for_line(process, "ready")
        harness.wait_until(lambda: len(processes_with(marker)) >= 6, "each worker has its two children")
        process.kill()
        process.wait()
        harness.wait_until(lambda: not processes_with(marker), "all descendants are gone", 5)
        harness.wait_until(lambda: os.listdir(folder) == [], "no file is left", 5)

    def test_the_next_ddprun_removes_what_agent_and_warden_killed_together_left(self):
        marker = "DDPRUN_TEST_MARK_" + uuid.uuid4().hex
        folder = self.scratch()
        process = self.start("--standalone", "sh", "-c", "echo $PPID; exec sleep 600", TMPDIR=folder, **{marker: "1"})
        # The warden's environment is empty, so its pid comes from the worker.
        pids = [int(process.stdout.readline()), *processes_with(marker)]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # like a container's end: no process sees another one's end
            for pid in pids:
                os.kill(pid, number)
        process.wait()
        self.assertNotEqual(os.listdir(folder), [])
        self.assertEqual(self.ddprun("--standalone", "true", TMPDIR=folder).returncode, 0)
        self.assertEqual(os.listdir(folder), [])

    def test_nothing_is_left_after_a_normal_end(self):
        marker = "DDPRUN_TEST_MARK_" + uuid.uuid4().hex
        folder = self.scratch()
        self.ddprun("--standalone", "--nproc_per_node=2", "sh", "-c",
                    "setsid sleep 600 >/dev/null 2>&1 & exit 0", TMPDIR=folder, **{marker: "1"}, code=0)
        self.assertEqual(processes_with(marker), [])
        self.assertEqual(os.listdir(folder), [])

    def test_torchruns_cures_for_its_store_and_for_stuck_ranks_mean_nothing(self):
        port = harness.free_port()
        nobody_listens = f"! bash -c '< /dev/tcp/127.0.0.1/{port}' 2>&-"
        done = self.ddprun("--standalone", "sh", "-c", f"sleep 1.5; echo $TORCHELASTIC_USE_AGENT_STORE; {nobody_listens}",
                           TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT="1",
                           TORCHELASTIC_HEALTH_CHECK_PORT=str(port), TORCH_ELASTIC_WORKER_IDENTICAL="1")
        self.assertEqual((done.returncode, done.stdout), (0, "True\n"), done.text)


if __name__ == "__main__":
    harness.main()
