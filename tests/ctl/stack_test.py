#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `ddprunctl stack`, which shows where the ranks of real jobs are. Workers are plain Python programs."""
import contextlib
import http.client
import json
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launcher"))
import harness  # noqa: E402
import files  # noqa: E402  (harness says where it lies)

# A worker: rank 3 loads data, the others train. Each prints this, and ends when the test tells it to.
WORKER = """
import os, signal, sys, time, traceback

def is_here():
    frames = [f"    {each.name} (train.py:{each.lineno})\\n" for each in reversed(traceback.extract_stack()[:-1])]
    with open(f"{sys.argv[1]}/{os.getpid()}", "w") as file:
        file.write('Thread 1 (idle): "MainThread"\\n' + "".join(frames))
    print("rank", os.environ["RANK"], "is there", flush=True)

def loads_data():
    is_here()
    time.sleep(600)

def trains():
    is_here()
    signal.pause()

if os.environ["RANK"] == os.environ.get("ENDS"):
    sys.exit(0)
loads_data() if os.environ["RANK"] == "3" else trains()
"""

# A fake py-spy. It prints the real frames, which the worker has written into a file.
SPY = '#!/bin/sh\ncat "$MEET/$4"\n'


def sleeps(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rsplit(") ", 1)[1].startswith("S")


class Stacks(harness.Case):
    def job(self, endpoint, *flags, nodes=2, num_there=4, spy=SPY, **more):
        """Starts a job of nodes with two workers each. Returns the nodes when `num_there` workers wait at a place."""
        home = self.scratch()
        program = files.write(home, "train.py", WORKER)
        if spy:
            files.write(home, "py-spy", spy, mode=0o755)
        path = f"{home}:{os.environ['PATH']}"
        node_flags = [f"--nnodes={nodes}", "--nproc_per_node=2", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job",
                      "--shutdown-timeout=1", *flags, sys.executable, program, home]
        started = [self.start(*node_flags, PATH=path, MEET=home, **more) for _ in range(nodes)]
        harness.wait_until(lambda: len([pid for pid in os.listdir(home) if pid.isdigit() and sleeps(pid)]) == num_there,
                           f"{num_there} workers are there", 30)
        return started

    def stack(self, endpoint, *args, code=0, **more):
        return self.ddprunctl("stack", f"--rdzv-endpoint={endpoint}", *args, code=code, **more).stdout

    @staticmethod
    def asked(endpoint, target, headers):
        """Asks for the page. Returns the status of the answer."""
        with contextlib.closing(http.client.HTTPConnection(endpoint, timeout=20)) as connection:
            connection.request("GET", target, headers=headers)
            return connection.getresponse().status

    def test_the_rank_that_is_elsewhere_is_named_and_the_others_are_one_entry(self):
        _, endpoint = self.ddprund()
        self.job(endpoint)
        host = os.uname().nodename
        lines = self.stack(endpoint, "job").splitlines()
        self.assertEqual(lines[0].split("(")[0], "ranks 0–2 ", lines)
        self.assertIn(host[:8], lines[0])
        self.assertRegex(lines[0], r": in pause\(\)$")
        self.assertRegex(lines[1], r"^    trains \(train.py:\d+\)$")
        odd = next(i for i, line in enumerate(lines) if line.startswith("rank 3 "))
        self.assertIn("in clock_nanosleep()", lines[odd])
        self.assertRegex(lines[odd + 1], r"^    loads_data \(train.py:\d+\)$")
        self.assertRegex(lines[-1], r"^    <module> \(train.py:\d+\)$")
        self.assertEqual(len([line for line in lines if line.startswith("rank")]), 2, lines)

        some = self.stack(endpoint, "job", "3", "0")
        self.assertEqual([line.split(" (")[0] for line in some.splitlines() if line.startswith("rank")],
                         ["rank 0", "rank 3"])
        native = self.stack(endpoint, "job", "3", "--native")
        self.assertRegex(native, r"native:\n(.*\n)*    .*nanosleep.*libc")
        page = json.loads(self.stack(endpoint, "job", "--json"))
        self.assertEqual((page["run_id"], page["num_ranks"], len(page["ranks"])), ("job", 4, 4))
        lines = page["ranks"][3]["lines"]
        self.assertEqual([line.split(" ")[0] for line in lines[:4]], ["state", "process", "python", "python"])
        self.assertRegex(lines[2], r"^python loads_data \(train.py:\d+\)$")

    def test_the_native_frames_tell_the_same_without_py_spy_and_what_would_help(self):
        _, endpoint = self.ddprund()
        self.job(endpoint, spy=None)
        shown = self.stack(endpoint, "job")
        self.assertRegex(shown, r"^ranks 0–2 .*\n    .*pause")
        self.assertRegex(shown, r"(?m)^rank 3 .*\n    .*nanosleep")
        self.assertIn("py-spy in PATH would show the lines of Python, too", shown)

    def test_a_py_spy_that_fails_is_told(self):
        _, endpoint = self.ddprund()
        self.job(endpoint, spy="#!/bin/sh\necho 'Error: this Python is too new' >&2\nexit 1\n")
        shown = self.stack(endpoint, "job")
        self.assertRegex(shown, r"^ranks 0–2 .*\n    .*pause")
        self.assertIn("py-spy: Error: this Python is too new", shown)

    def test_characters_that_turn_text_are_written_out_in_json(self):
        _, endpoint = self.ddprund()
        self.job(endpoint, nodes=1, num_there=2, spy=SPY + "echo '    \u202eevil\u0085 (train.py:1)'\n")
        shown = self.stack(endpoint, "job", "--json")
        self.assertIn(r"\u202eevil\u0085 (train.py:1)", shown)
        self.assertNotIn("\u202e", shown)

    def test_ranks_without_a_stack_have_a_reason_and_an_exit_code(self):
        _, endpoint = self.ddprund()
        nodes = self.job(endpoint, ENDS="1", num_there=3)
        harness.wait_until(lambda: self.ddprunctl("stack", f"--rdzv-endpoint={endpoint}", "job").returncode == 1,
                           "rank 1 has ended")
        done = self.ddprunctl("stack", f"--rdzv-endpoint={endpoint}", "job")
        self.check_one_line(done, "no stack of 1 of 4 ranks", code=1)
        self.assertRegex(done.stdout.splitlines()[-1], r"^rank 1 \(.*\): no stack: it has ended$")
        # An agent that doesn't answer is waited for no longer than the others' answers may take.
        page = json.loads(self.stack(endpoint, "job", "--json", code=1))
        self.assertEqual(page["ranks"][1]["note"], "it has ended")
        nodes[0].send_signal(signal.SIGSTOP)
        try:
            done = self.ddprunctl("stack", f"--rdzv-endpoint={endpoint}", "job")
        finally:
            nodes[0].send_signal(signal.SIGCONT)
        self.assertEqual(done.returncode, 1, done.text)
        self.assertRegex(done.stdout, r"(?m)^ranks? .*: no stack: its agent has not answered for 2.5 s$")

    def test_a_job_that_serves_its_own_rendezvous_and_is_not_watched(self):
        endpoint = f"127.0.0.1:{harness.free_port()}"
        self.job(endpoint, "--hang-action=off", nodes=1, num_there=2)
        self.assertRegex(self.stack(endpoint, "job"), r"^ranks 0, 1 .*: .*\n    trains \(train.py:\d+\)\n")

    def test_a_client_without_the_right_to_see_output_sees_no_stacks(self):
        token = self.token()
        _, endpoint = self.ddprund(f"--token-file={token}")
        self.job(endpoint, f"--token-file={token}", "--watch-output=off", nodes=1, num_there=2)
        self.check_one_line(self.ddprunctl("stack", f"--rdzv-endpoint={endpoint}", "job"), "wants a token")
        done = self.ddprunctl("stack", f"--rdzv-endpoint={endpoint}", f"--token-file={token}", "job")
        self.check_one_line(done, "no stack of 2 of 2 ranks", code=1)
        self.assertIn("switched off for this job: ddprun on", done.stdout)
        _, silent = self.ddprund("--watch-output=off")
        self.check_one_line(self.ddprunctl("stack", f"--rdzv-endpoint={silent}", "job"),
                            "switched off for all jobs")

    def test_prometheus_token_and_a_browser_see_none(self):
        token, scrape = self.token(), self.token("another token that is long enough")
        _, endpoint = self.ddprund(f"--token-file={token}", f"--scrape-token-file={scrape}")
        bearer = {"Authorization": "Bearer another token that is long enough"}
        self.assertEqual(self.asked(endpoint, "/v1/jobs", bearer), 200)
        self.assertEqual(self.asked(endpoint, "/v1/stacks?job=job", bearer), 401)
        _, open_to_all = self.ddprund()
        self.assertEqual(self.asked(open_to_all, "/v1/stacks?job=job", {"Origin": "http://evil.example"}), 403)
        self.assertEqual(self.asked(open_to_all, "/v1/stacks?job=job", {"Host": "evil.test"}), 403)  # it leads here
        self.assertEqual(self.asked(open_to_all, "/v1/stacks?job=job", {}), 200)

    def test_bad_input_is_one_line(self):
        _, endpoint = self.ddprund()
        self.job(endpoint, nodes=1, num_there=2)
        ask = ["stack", f"--rdzv-endpoint={endpoint}"]
        self.check_one_line(self.ddprunctl(*ask, "job", "x"), "RANK x: wants numbers of ranks, as 0-3,5")
        self.check_one_line(self.ddprunctl(*ask, "job", "7"), '"7" are no ranks of job, which has 0 to 1')
        self.check_one_line(self.ddprunctl(*ask, "nobody's"), 'no job "nobody\'s" runs here')
        self.check_one_line(self.ddprunctl(*ask), "JOB is required")


if __name__ == "__main__":
    harness.main()
