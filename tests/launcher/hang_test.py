#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ranks that stop making progress, on two hosts of two workers each. Every node finds and names them, and the
job goes on. Other quiet ranks must not be taken for a hang."""
import json
import os
import re
import signal
import time

import harness

PORT = 29400
WORKER = os.path.join(harness.BIN, "hang_worker")


class Hang(harness.HostsCase):
    def run_job(self, what, *flags, rank=1):
        self.directory = self.scratch()
        self.running = [
            self.start("--nnodes=2", "--nproc_per_node=2", f"--rdzv-endpoint={self.hosts[0].address}:{PORT}",
                       "--rdzv-id=job", "--shutdown-timeout=1", *flags, WORKER, self.directory, what, str(rank),
                       host=host) for host in self.hosts]

    def finish_job(self):
        done = []
        for process in self.running:
            read = process.read["stderr"]
            if read:  # the stream's buffer may hold more, which communicate() would not see
                read += process.stderr.read()
            done.append(self.finish(process))
            done[-1].stderr = read + done[-1].stderr
            done[-1].text += read
        self.transcript = "\n".join(each.text for each in done)
        return done

    def check_went_well(self, done, round_number, steps):
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        shown = "".join(each.stdout for each in done)
        for rank in range(4):
            self.assertIn(f"rank {rank} did {steps} steps in round {round_number}", shown, self.transcript)

    def check_no_hang(self, done):
        self.check_went_well(done, 1, 80)
        for each in done:
            self.assertNotIn("hang", each.stderr, self.transcript)
            self.assertNotIn("no progress", each.stderr, self.transcript)

    def await_stopped(self):
        path = os.path.join(self.directory, "stopped")
        harness.wait_until(lambda: os.path.exists(path), "the rank stops", 30)
        with open(path) as f:
            return int(f.read()) / 1e9

    def seconds_until_told(self):
        """Returns the seconds from the rank's last progress until each node's line about it."""
        stopped = self.await_stopped()
        self.told = [self.await_line(process, "hang: ") for process in self.running]
        return time.monotonic() - stopped

    PLACE = (r"hang: rank 2 \(node 1, node1, pid \d+\) in read\(\) of %s/part-07 \(step 60\) for \d\.\d s; "
             r"others: 3 ranks in all_reduce #\d+ \(step 60\)")

    def test_a_pause_that_nobody_announced_is_told_within_10_s_and_harms_nobody(self):
        self.run_job("read", rank=2)
        self.assertLessEqual(self.seconds_until_told(), 10)
        for line in self.told:
            self.assertRegex(line, self.PLACE % self.directory)
            self.assertIn("(the round ends when it lasts for 300 s)", line)
        with open(os.path.join(self.directory, "part-07"), "wb") as f:  # the rank goes on once this file exists
            f.write(b"x")
        done = self.finish_job()
        self.check_went_well(done, 1, 80)
        for each in done:
            self.assertRegex(each.stderr, r"state S, \d+ % CPU, wchan \w+, read\(\) of \S+/part-07")

    def test_a_rank_that_reads_what_never_comes_is_named_and_the_job_is_restarted(self):
        self.run_job("read", "--max-restarts=1", "--hang-timeout=5s", rank=2)
        self.assertLessEqual(self.seconds_until_told(), 10)
        for line in self.told:
            self.assertRegex(line, self.PLACE % self.directory)
        done = self.finish_job()
        self.check_went_well(done, 2, 20)
        for each in done:
            self.assertRegex(each.stderr, r"state S, \d+ % CPU, wchan \w+, read\(\) of \S+/part-07")
            self.assertIn("made no progress", each.stderr)
            self.assertRegex(each.stderr, r"2 rounds; workers ran [\d.]+ s .* lost: \d+\.\d+ s noticing")
        if "libdw" not in self.transcript:
            self.assertIn("load_part(", self.transcript)

    def test_a_job_without_restarts_ends_with_124_and_the_place(self):
        self.run_job("sleep600000", "--hang-timeout=2s")
        done = self.finish_job()
        self.assertEqual([each.returncode for each in done], [124, 124], self.transcript)
        for each in done:
            self.assertIn("the first failure was rank 1", each.stderr)
            self.assertIn("ended by  ddprun: it made no progress", each.stderr)
            self.assertIn("clock_nanosleep()", each.stderr)

    def test_a_rank_that_computes_for_ever_is_reported_and_with_a_set_limit_restarted(self):
        self.run_job("spin", "--max-restarts=1", "--hang-timeout=step=3s")
        self.assertLessEqual(self.seconds_until_told(), 10)
        self.assertIn("compute_for_ever", self.told[0])
        self.check_went_well(self.finish_job(), 2, 20)

    def test_report_tells_and_lets_the_job_run(self):
        self.run_job("sleep8000", "--hang-action=report", "--hang-timeout=2s")
        done = self.finish_job()
        self.check_went_well(done, 1, 80)
        for each in done:
            self.assertRegex(each.stderr, r"hang: rank 1 .*\(not restarted: --hang-action=report\)")

    def test_off_watches_nothing(self):
        self.run_job("sleep8000", "--hang-action=off", "--hang-timeout=2s")
        self.check_no_hang(self.finish_job())

    def test_a_checkpoint_of_sixty_steps_that_the_others_wait_for_is_no_hang(self):
        self.run_job("checkpoint", "--hang-timeout=step=1s")
        self.check_no_hang(self.finish_job())

    def test_a_first_step_of_sixty_steps_is_no_hang(self):
        self.run_job("first", "--hang-timeout=step=1s")
        self.check_no_hang(self.finish_job())

    def test_a_stopped_worker_is_said_to_be_stopped_and_goes_on(self):
        self.run_job("sleep1", "--hang-timeout=2s")
        self.await_stopped()
        pid = next(pid for pid in self.workers() if self.variable(pid, "RANK") == "3")
        os.kill(pid, signal.SIGSTOP)
        try:
            line = self.await_line(self.running[0], "is stopped")
        finally:
            os.kill(pid, signal.SIGCONT)
        self.assertRegex(line, rf"rank 3 \(node 1, node1, pid {pid}\) is stopped \(state T\), not hung; the others wait")
        self.check_went_well(self.finish_job(), 1, 80)

    def test_foreign_workers_that_are_all_blocked_are_told_and_restarted_when_asked_to(self):
        for action, code in ([], 0), (["--hang-action=restart"], 0):
            with self.subTest(action):
                script = 'echo "round $DDPRUN_ROUND"; [ "$DDPRUN_ROUND" != 1 ] || sleep 9'
                done = self.on_hosts(self.hosts, lambda host: [
                    "--nnodes=2", f"--rdzv-endpoint={self.hosts[0].address}:{PORT}", "--rdzv-id=job",
                    "--max-restarts=1", "--hang-timeout=foreign=2s", *action, "sh", "-c", script])
                self.assertEqual([each.returncode for each in done], [code] * 2, self.transcript)
                for each in done:
                    self.assertRegex(each.stderr, r"hang: (.*rank \d \(.*\)|2 ranks) in clock_nanosleep\(\)")
                    self.assertEqual("round 2" in each.stdout, bool(action), self.transcript)
                    self.assertEqual("(not restarted: it writes no progress page" in each.stderr, not action)

    def test_a_job_that_is_stopped_while_it_hangs_says_so_at_its_end(self):
        job = self.start("--standalone", "--hang-timeout=foreign=2s", "sleep", "600")
        self.await_line(job, "hang: ")
        job.send_signal(signal.SIGINT)
        self.assertRegex(self.finish(job).stderr, r"ddprun: .*received SIGINT; \d+ s before: hang: .* in clock_nanosleep\(\)")

    def test_python_workers_with_the_module_and_their_python_stack(self):
        directory = self.scratch()
        spy = "#!/bin/sh\nprintf 'Thread %s (idle): \"MainThread\"\\n    load (train.py:12)\\n' \"$4\"\n"
        self.write(directory, "py-spy", spy, mode=0o755)
        module = os.path.join(harness.HERE, "../../python")
        program = self.write(directory, "train.py", f'''
import os, sys, time
sys.path.insert(0, {module!r})
import ddprun
for number in range(1, 60):
    ddprun.step(number)
    time.sleep(0.05)
    if number == 40 and os.environ["DDPRUN_ROUND"] == "1" and os.environ["RANK"] == "0":
        time.sleep(600)
ddprun.phase("tear-down")
''')
        done = self.on_hosts(self.hosts[:1], lambda host: [
            "--standalone", "--nproc_per_node=2", "--max-restarts=1", "--shutdown-timeout=1",
            "--hang-timeout=step=3s", program],
            lambda host: {"PATH": f"{directory}:{os.environ['PATH']}"})
        self.assertEqual(done[0].returncode, 0, self.transcript)
        self.assertIn("rank 0 (node 0, node0", done[0].stderr)
        self.assertIn("warning:     load (train.py:12)", done[0].stderr)
        self.assertIn("restart 1 of 1", done[0].stderr)

    def test_a_slow_rank_is_named_in_the_status_and_at_the_end(self):
        self.run_job("slow", rank=3)
        deadline = time.monotonic() + 30
        # Each node reports its ranks once it has seen enough of their steps. Until both nodes have reported, only two
        # ranks are compared. On a busy machine another rank may be slow for a while, too.
        found = []
        while not (len(found) == 1 and "median of 4 ranks" in found[0]) and time.monotonic() < deadline:
            found = self.status().get("stragglers", [])
            time.sleep(0.2)
        self.assertEqual(len(found), 1, "stragglers in the status within 30 s")
        self.assertRegex(found[0], r"rank 3 \(node 1, node1\): \d\d\.\d ms of its own per step, the median of 4 ranks is")
        done = self.finish_job()
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        for each in done:
            self.assertIn("slow: rank 3", each.stderr)

    def workers(self):
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/cmdline", "rb") as f:
                        words = f.read().split(b"\0")
                except OSError:
                    continue
                if words[0] == WORKER.encode() and self.directory.encode() in words:
                    yield int(entry)

    @staticmethod
    def variable(pid, name):
        with open(f"/proc/{pid}/environ", "rb") as f:
            found = re.search(rb"(?:^|\0)" + name.encode() + rb"=([^\0]*)", f.read())
        return found and found.group(1).decode()

    def status(self):
        """Returns the job's entry in /v1/jobs; {} if there is none."""
        ask = ("import sys,urllib.request as u; "
               f"print(u.urlopen('http://{self.hosts[0].address}:{PORT}/v1/jobs', timeout=5).read().decode())")
        done = self.hosts[0].run([harness.sys.executable, "-c", ask], capture_output=True, text=True)
        jobs = json.loads(done.stdout)["jobs"] if done.returncode == 0 else []
        return jobs[0] if jobs else {}


if __name__ == "__main__":
    harness.main_on_hosts()
