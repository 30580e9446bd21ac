#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the files that a job leaves: --report, --events, --event-log-handler, error files; and out-of-memory kills."""
import fcntl
import json
import os
import re
import signal
import subprocess
import sys

import harness
import cgroup

STATES = {"succeeded", "worker_failed", "retryable", "no_progress", "time_limit", "stopped_by_signal", "failed"}


def keys_of(value, above=""):
    """Yields every key in `value`, "a.b" for a key of an object. Leaves out keys of a program's own error file."""
    if isinstance(value, dict) and not above.endswith("error_fields."):
        for key, inner in value.items():
            yield above + key
            yield from keys_of(inner, above + key + ".")
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner, above)


class Report(harness.Case):
    def setUp(self):
        self.folder = self.scratch()
        self.path = os.path.join(self.folder, "report.json")

    def read(self, path=None):
        with open(path or self.path, encoding="utf-8") as f:
            text = f.read()
        self.assertEqual(text.count("\n"), 1, text)
        report = json.loads(text)
        self.assertEqual(report["version"], 1)
        self.assertIn(report["state"], STATES)
        return report

    def test_a_success_after_a_restart_is_reported(self):
        self.write(self.folder, "report.json", "an earlier job's")
        script = f'[ ! -e {self.path} ] || exit 9; [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit 3'
        done = self.ddprun("--standalone", "--rdzv-id=j", "--max-restarts=2", f"--report={self.path}", "sh", "-c", script)
        self.assertEqual(done.returncode, 0, done.text)
        report = self.read()
        self.assertEqual((report["state"], report["exit_code"], report["rounds"], report["restarts"]), ("succeeded", 0, 2, 1))
        self.assertEqual((report["first_failure"], report["victims"], report["reason"]), (None, [], None))
        self.assertEqual(report["job"], {"id": "j", "program": "sh", "arguments": ["-c", script], "min_nodes": 1,
                                         "max_nodes": 1, "max_restarts": 2})
        self.assertRegex(report["began_at"] + report["ended_at"], r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ){2}$")
        self.assertGreater(report["seconds"], 0)
        self.assertIn("2 rounds", report["summary"])
        here = report["written_by"]
        self.assertEqual((here["node_rank"], here["num_workers"], here["decided_by"]), (0, 1, "rendezvous"))
        self.assertEqual([each["restart_count"] for each in here["rounds"]], [0, 1])
        self.assertTrue(all(0 <= each["start_seconds"] <= report["seconds"] for each in here["rounds"]), here)
        self.assertEqual(os.listdir(self.folder), ["report.json"])  # no other file is beside it
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o666 & ~self.umask())

    @staticmethod
    def umask():
        mask = os.umask(0)
        os.umask(mask)
        return mask

    def test_a_failure_is_reported_with_every_key_documented(self):
        logs = self.scratch()
        own = os.path.join(self.folder, "own.json")
        left = self.write(self.folder, "left", json.dumps({"message": {"message": "KeyError: 'a'", "errorCode": 1, "extraInfo": {
            "py_callstack": "Traceback (most recent call last):\nKeyError: 'a'\n", "timestamp": "1", "step": 40}}, "ticket": [7]}))
        script = (f"[ $RANK = 0 ] && exec sleep 600; echo 'last \u00fc words'; cp {left} $TORCHELASTIC_ERROR_FILE; "
                  "exit 7")
        done = self.ddprun("--standalone", "--nproc-per-node=2", "--max-restarts=0", f"--log-dir={logs}", "-t3",
                           f"--report={self.path}", "sh", "-c", script, TORCHELASTIC_ERROR_FILE=own, code=7)
        report = self.read()
        self.assertEqual((report["state"], report["exit_code"], report["restarts"]), ("worker_failed", 7, 0))
        first = report["first_failure"]
        self.assertEqual((first["global_rank"], first["local_rank"], first["node_rank"]), (1, 1, 0))
        self.assertEqual((first["exit_code"], first["signal"], first["hung"], first["out_of_memory"]), (7, None, False, None))
        self.assertEqual(first["last_lines"], ["last \u00fc words"])
        self.assertEqual((first["note"], first["traceback"][-1]), ("KeyError: 'a'", "KeyError: 'a'"))
        self.assertEqual(first["error_fields"], {"message": {"extraInfo": {"step": 40}}, "ticket": [7]})
        self.assertTrue(first["error_file"].startswith(logs), first)
        self.assertEqual([os.path.basename(each) for each in first["log_files"]], ["stdout.log", "stderr.log"])
        with open(first["log_files"][0], encoding="utf-8") as f:
            self.assertEqual(f.read(), "last \u00fc words\n")
        shown = done.stderr.splitlines()
        self.assertIn(f"  logs      {first['log_files'][0]}", shown)
        self.assertIn(f"            {first['log_files'][1]}", shown)
        self.assertIn(f"            all ranks of {first['host']}: {os.path.join(logs, os.listdir(logs)[0])}", shown)
        with open(os.path.join(harness.SOURCE, "docs/report.md"), encoding="utf-8") as f:
            page = f.read()
        for key in sorted(set(keys_of(report))):
            self.assertIn(f"`{key}`", page)
        # Like torchrun, ddprun passes on the fields that the program's own ErrorHandler added.
        with open(own) as f:
            handed_on = json.load(f)
        self.assertEqual((handed_on["ticket"], handed_on["message"]["extraInfo"]["step"]), ([7], 40))
        self.assertEqual((handed_on["message"]["message"], handed_on["message"]["errorCode"]), ("KeyError: 'a'", 7))

    def test_signals_are_reported(self):
        self.ddprun("--standalone", f"--report={self.path}", "sh", "-c", "kill -SEGV $$", code=139)
        first = self.read()["first_failure"]
        self.assertEqual((first["signal"], first["signal_name"], first["exit_code"]), (11, "SIGSEGV", None))
        process = self.start("--standalone", f"--report={self.path}", "sh", "-c", "echo up; exec sleep 600")
        process.stdout.readline()
        process.terminate()
        self.assertEqual(self.finish(process).returncode, 143)
        report = self.read()
        self.assertEqual((report["state"], report["exit_code"], report["first_failure"]), ("stopped_by_signal", 143, None))
        self.assertIn("SIGTERM", report["reason"])

    def test_each_node_s_report_says_who_wrote_it(self):
        port = harness.free_port()
        paths = [os.path.join(self.folder, f"{rank}.json") for rank in (0, 1)]
        running = [self.start("--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}",
                              f"--report={paths[rank]}", "sh", "-c", '[ $RANK = 0 ] && exec sleep 600; exit 5') for rank in (0, 1)]
        self.assertEqual([self.finish(each).returncode for each in running], [5, 5])
        reports = [self.read(path) for path in paths]
        self.assertEqual([each["written_by"]["node_rank"] for each in reports], [0, 1])
        self.assertEqual(reports[0]["first_failure"], reports[1]["first_failure"])
        self.assertEqual(reports[0]["first_failure"]["node_rank"], 1)

    def test_the_report_on_stdout_is_the_last_line(self):
        done = self.ddprun("--standalone", "--report=-", "sh", "-c", "echo out; exit 4", code=4)
        self.assertEqual(done.stdout.splitlines()[0], "out")
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])["exit_code"], 4)

    def test_a_report_goes_to_a_descriptor_and_through_a_link(self):
        reader, writer = os.pipe()
        done = subprocess.run([harness.DDPRUN, "--standalone", f"--report=/dev/fd/{writer}", "true"], pass_fds=[writer],
                              env=harness.environment(), stdin=subprocess.DEVNULL, timeout=60)
        os.close(writer)
        with os.fdopen(reader) as f:
            self.assertEqual(json.loads(f.read())["state"], "succeeded")
        self.assertEqual(done.returncode, 0)
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as cat:
            self.assertEqual(self.ddprun("--standalone", f"--report={pipe}", "true").returncode, 0)
            self.assertEqual(json.loads(cat.communicate(timeout=60)[0])["state"], "succeeded")
        link = os.path.join(self.folder, "link-${hostname}")
        os.symlink("report.json", link.replace("${hostname}", os.uname().nodename))
        self.assertEqual(self.ddprun("--standalone", f"--report={link}", "true").returncode, 0)
        self.assertEqual(self.read()["state"], "succeeded")

    def test_another_users_link_is_replaced_by_the_report_and_not_followed(self):
        if os.geteuid() != 0:
            self.skipTest("only root gives links away")
        for name, make in (("file", lambda path: self.write(self.folder, path, "precious")), ("pipe", os.mkfifo)):
            with self.subTest(name):
                target, link = os.path.join(self.folder, name), os.path.join(self.folder, f"link-{name}")
                make(target)
                os.symlink(target, link)
                os.lchown(link, 12345, 12345)
                before = os.lstat(target)
                self.assertEqual(self.ddprun("--standalone", f"--report={link}", "true").returncode, 0)
                self.assertEqual((before.st_ino, before.st_size), (os.lstat(target).st_ino, os.lstat(target).st_size))
                self.assertFalse(os.path.islink(link))
                self.assertEqual(self.read(link)["state"], "succeeded")

    def test_a_link_in_a_log_file_s_place_shows_nothing_of_the_file_that_it_leads_to(self):
        other = self.write(self.folder, "other", "12345\n")
        done = self.ddprun("--standalone", "-r", "3", f"--log-dir={self.folder}/logs", f"--report={self.path}", "sh", "-c",
                           f'ln -sf {other} "$(dirname "$TORCHELASTIC_ERROR_FILE")/stderr.log"; exit 3', code=3)
        self.assertEqual(self.read(self.path)["first_failure"]["last_lines"], [], done.text)

    def test_a_path_that_cannot_be_is_refused_before_the_start(self):
        ran = os.path.join(self.folder, "ran")
        for path in (self.folder, os.path.join(self.folder, "no/such/dir"), "/proc/nothing", "/dev/fd/999",
                     os.path.join(self.folder, "x" * 256)):
            done = self.ddprun("--standalone", f"--report={path}", "touch", ran, code=2)
            self.assertRegex(done.stderr, rf"^ddprun: --report={re.escape(path)} can't be written: [\w ]+\n$")
        self.assertIn("--report", self.ddprun("--standalone", "--report=", "true").stderr)
        self.assertFalse(os.path.exists(ran))
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_disk_that_is_full_at_the_end_costs_one_line(self):
        done = self.in_small_disk('$DDPRUN --standalone --report=$DISK/r.json sh -c "head -c 1000000 /dev/zero > $DISK/x; exit 3"; '
                                  'echo "code $?"; ls -A $DISK')
        self.assertEqual(done.stdout.splitlines(), ["code 3", "x"], done.stderr)
        self.assertEqual(done.stderr.count("r.json was not written: No space left on device"), 1, done.stderr)


class GpuErrors(harness.Case):
    def test_an_error_of_a_gpu_is_told_at_once_and_stands_in_the_report(self):
        if not os.access("/dev/kmsg", os.W_OK) or os.path.exists("/dev/nvidiactl"):
            self.skipTest("the kernel's log can't be written to, or is a GPU's own")
        path = os.path.join(self.scratch(), "r.json")
        xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=sh, GPU has fallen off the bus."
        # The job names a fake NVML, because this machine may have GPUs.
        done = self.ddprun("--standalone", f"--report={path}", "sh", "-c", f"echo '<4>{xid}' >/dev/kmsg; exit 1", code=1,
                           DDPRUN_NVML_LIBRARY="libnone.so")
        said = r"pid=7, name=sh, GPU has fallen off the bus\. \(the GPU's fault, not the program's: .*\)"
        self.assertRegex(done.stderr, r"warning: GPU 0000:3b:00: Xid 79: " + said)
        self.assertRegex(done.stderr, r"\n  gpu       Xid 79 on GPU 0000:3b:00, \S+ s ago: " + said + r"\n")
        with open(path, encoding="utf-8") as f:
            self.assertRegex(json.load(f)["first_failure"]["gpu_errors"], "^Xid 79 on GPU 0000:3b:00, ")


class OutOfMemory(harness.Case):
    # Takes memory for ever, and writes to all of it.
    HOG = "import os\nkept = []\nwhile True: kept.append(os.urandom(1) * (1 << 20))"
    # The kernel kills the largest process. The limit is far more than ddprun's own memory, which sanitizers make large.
    LIMIT_MIB = 768 if os.environ.get("DDPRUN_SANITIZE") else 96

    def test_a_worker_killed_by_the_kernel_is_said_to_be(self):
        limited = cgroup.memory_cgroup_or_skip(self, self.LIMIT_MIB << 20)
        path = os.path.join(self.scratch(), "r.json")
        done = self.ddprun("--standalone", "--nproc-per-node=2", f"--report={path}", "--no-python", sys.executable, "-c",
                           "import os, time\nif os.environ['RANK'] == '0': time.sleep(600)\n" + self.HOG,
                           preexec_fn=limited.enter)
        self.assertEqual(done.returncode, 137, done.text)
        self.assertIn("ended by  killed by SIGKILL (signal 9)", done.stderr)
        self.assertRegex(done.stderr, r"  memory    ran out: the kernel's OOM killer killed 1 process in its memory cgroup while it "
                                      rf"ran \(\S+/inner/memory\.\w+: oom_kill 0 → 1; limit {self.LIMIT_MIB} MiB\)\n")
        with open(path) as f:
            first = json.load(f)["first_failure"]
        self.assertEqual(first["global_rank"], 1)
        self.assertTrue(first["out_of_memory"].startswith("ran out: the kernel's OOM killer"), first)

    def test_a_child_killed_by_the_kernel_is_perhaps_why(self):
        limited = cgroup.memory_cgroup_or_skip(self, self.LIMIT_MIB << 20)
        done = self.ddprun("--standalone", "sh", "-c", f'{sys.executable} -c "$HOG"; exit 8', HOG=self.HOG,
                           preexec_fn=limited.enter, code=8)
        self.assertIn("  memory    perhaps ran out: the kernel's OOM killer killed 1 process in its", done.stderr)
        self.assertIn("but not the worker itself", done.stderr)

    def test_a_sigkill_without_the_kernels_word_is_just_that(self):
        done = self.ddprun("--standalone", "sh", "-c", "kill -9 $$", code=137)
        self.assertNotIn("  memory  ", done.stderr)

    def test_an_exception_of_python_is_named(self):
        done = self.ddprun("--standalone", "--no-python", sys.executable, "-c", "bytearray(1 << 60)")
        self.assertIn("  memory    ran out: MemoryError\n", done.stderr)
        done = self.ddprun("--standalone", "--no-python", sys.executable, "-c",
                           "class OutOfMemoryError(RuntimeError): __module__ = 'torch'\n"
                           "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')")
        self.assertIn("  memory    ran out: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n", done.stderr)


class Events(harness.Case):
    def test_a_file_for_events_that_cannot_be_is_refused(self):
        scratch = self.scratch()
        pipe = os.path.join(scratch, "pipe")
        os.mkfifo(pipe)
        for path in (pipe, os.path.join(scratch, "no", "events"), scratch):
            done = self.ddprun("--standalone", f"--event-log-handler=file={path}", "true")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"--event-log-handler=file={path} can't be opened: ", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        done = self.ddprun("--standalone", "--event-log-handler=file=/dev/full", "true")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("can't write events to /dev/full (No space left on device)", done.stderr)

    def test_a_reader_that_stands_still_holds_up_nothing(self):
        pipe = os.path.join(self.scratch(), "pipe")
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        done = self.ddprun("--standalone", "--nproc-per-node=8", "--max-restarts=2", f"--event-log-handler=file={pipe}",
                           "sh", "-c", "exit 6", code=6)
        self.assertEqual(done.stderr.count("can't write events to"), 1, done.stderr)
        self.assertIn(f"{pipe} (its reader takes nothing): they are lost", done.stderr)
        text = b"".join(iter(lambda: os.read(reader, 65536), b""))  # no writer is left
        keys = {tuple(json.loads(line)) for line in text.splitlines(True) if line.endswith(b"\n")}
        self.assertEqual(keys, {("name", "source", "timestamp", "metadata")})  # torchrun's Event has only these

    def test_each_worker_of_each_round_is_in_the_file(self):
        path = os.path.join(self.scratch(), "events")
        script = harness.MEET + '; [ $RANK = 1 ] && exit 6; exec sleep 600'
        for _ in range(2):  # the second run appends to the file
            done = self.ddprun("--standalone", "--nproc-per-node=2", "--max-restarts=1", f"--event-log-handler=file={path}",
                               "sh", "-c", script, MEET=self.scratch())
            self.assertEqual(done.returncode, 6, done.text)
            self.assertNotIn("torchelastic", done.stderr)
        with open(path) as f:
            events = [json.loads(line) for line in f]
        told = [(each["source"], each["metadata"]["state"], each["metadata"]["global_rank"], each["metadata"]["agent_restarts"])
                for each in events]
        one = ([("AGENT", "RENDEZVOUS", None, 0), ("AGENT", "ASSIGN_WORKER_RANKS", None, 0), ("WORKER", "START", 0, 0),
                ("WORKER", "START", 1, 0), ("WORKER", "FAILED", 1, 0), ("AGENT", "RENDEZVOUS", None, 1),
                ("AGENT", "ASSIGN_WORKER_RANKS", None, 1), ("WORKER", "START", 0, 1), ("WORKER", "START", 1, 1),
                ("WORKER", "FAILED", 1, 1), ("WORKER", "TERMINATED", 0, 1), ("AGENT", "FAILED", None, 1)])
        self.assertEqual(told, one * 2)


class OwnEvents(harness.Case):
    # In round 1 both ranks do three steps, meet, and rank 1 fails.
    LOOP = """
import os, sys, time
import ddprun
rank, first = int(os.environ["RANK"]), os.environ["DDPRUN_ROUND"] == "1"
for step in range(1, 4 if first else 6):
    ddprun.step(step)
    ddprun.step_parts(step=0.5, communication=0.25, exposed=0.125)
    ddprun.report(0.5 + rank, 8)
if first:
    open(os.path.join(os.environ["MEET"], str(rank)), "w").close()
    while len(os.listdir(os.environ["MEET"])) < 2: time.sleep(0.01)
    if rank == 1: sys.exit(3)
    time.sleep(600)
"""

    def read(self, path):
        with open(path, encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        for line in lines:
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertEqual((line["job"], line["host"]), ("j", os.uname().nodename))
        self.assertEqual([line["seconds"] for line in lines], sorted(line["seconds"] for line in lines))
        return lines

    def test_two_nodes_and_a_restart_are_recorded(self):
        port, folder, meet = harness.free_port(), self.scratch(), self.scratch()
        paths = [os.path.join(folder, f"{rank}.jsonl") for rank in (0, 1)]
        running = [self.start("--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}", "--rdzv-id=j",
                              "--max-restarts=1", f"--events={paths[rank]}", "--no-python", sys.executable, "-c", self.LOOP, MEET=meet,
                              PYTHONPATH=os.path.join(harness.SOURCE, "python")) for rank in (0, 1)]
        done = [self.finish(each) for each in running]
        self.assertEqual([each.returncode for each in done], [0, 0], done[0].text + done[1].text)
        nodes = [self.read(path) for path in paths]
        steady = [[line for line in lines if line["event"] not in ("node", "progress")] for lines in nodes]
        begun = ["begin", "round", "spawn"]
        self.assertEqual([line["event"] for line in steady[0]], begun + ["restart", "exit", "round", "spawn", "exit", "verdict"])
        self.assertEqual([line["event"] for line in steady[1]], begun + ["exit", "restart", "round", "spawn", "exit", "verdict"])
        for rank, lines in enumerate(nodes):
            of = {name: [line for line in lines if line["event"] == name] for name in {line["event"] for line in lines}}
            begin, = of["begin"]
            self.assertEqual((begin["node_rank"], begin["round"], begin["min_nodes"], begin["max_restarts"]), (None, 0, 2, 1))
            self.assertEqual(begin["pid"], running[rank].pid)
            self.assertEqual([(each["round"], each["restart_count"], each["world_size"], each["first_global_rank"], each["in_place"])
                              for each in of["round"]], [(1, 0, 2, rank, False), (2, 1, 2, rank, False)])
            self.assertEqual([each["node_rank"] for each in lines if each["round"] > 0], [rank] * (len(lines) - 1))
            self.assertEqual([each["pid"] for each in of["spawn"]], [each["pid"] for each in of["exit"]])
            first = ("error", 3, None) if rank == 1 else ("stopped", None, "SIGTERM")
            self.assertEqual([(each["kind"], each["exit_code"], each["signal"]) for each in of["exit"]], [first, ("success", 0, None)])
            restart, = of["restart"]
            self.assertRegex(restart["cause"], r"^rank 1 \(.*\) failed with exit code 3; restart 1 of 1$")
            self.assertIs(restart["in_place"], False)
            last = [[each for each in of["progress"] if each["round"] == number][-1]["ranks"] for number in (1, 2)]
            self.assertEqual([[(each["rank"], each["step"], each["loss"], each["samples"]) for each in ranks] for ranks in last],
                             [[(rank, 3, 0.5 + rank, 24)], [(rank, 5, 0.5 + rank, 40)]])
            told = [each["ranks"][0] for each in of["progress"] if each["ranks"][0]["step_seconds"] is not None]
            self.assertTrue(all((each["step_seconds"], each["communication_seconds"], each["exposed_seconds"], each["loader_seconds"])
                                == (0.5, 0.25, 0.125, 0) for each in told) and told, told)
            verdict, = of["verdict"]
            self.assertEqual((verdict["state"], verdict["exit_code"], verdict["rounds"], verdict["reason"], verdict["first_failure"]),
                             ("succeeded", 0, 2, None, None))
        ledger = nodes[0][-1]["ledger"]
        self.assertIsNone(nodes[1][-1]["ledger"])
        self.assertTrue(0 < ledger["ettr"] <= 1, ledger)
        self.assertEqual(set(ledger["seconds"]), {"rendezvous", "warming", "spawn", "communicators", "first_step", "running", "redone", "detect", "stop", "delay"})
        self.assertEqual([each["round"] for each in ledger["rounds"]], [1, 2])
        self.assertEqual([each["last_step"] for each in ledger["rounds"]][0], 2)
        self.assertIn("failed with exit code 3", ledger["rounds"][0]["cause"])
        with open(os.path.join(harness.SOURCE, "docs/events.md"), encoding="utf-8") as f:
            page = f.read()
        for key in {key for lines in nodes for line in lines if line["event"] != "node" for key in line}:
            self.assertIn(f"`{key}`", page)
        facts = json.loads(self.ddprunctl("report", folder, "--json").stdout)
        self.assertEqual((facts["state"], facts["rounds"], facts["world_size"], facts["is_ledger"]), ("succeeded", 2, 2, True))
        self.assertEqual([each for each in facts["missing"] if "verdict" in each or "events" in each], [])
        self.assertEqual((facts["ettr"], facts["by_round"][0]["cause"]), (ledger["ettr"], ledger["rounds"][0]["cause"]))
        self.assertEqual({row: round(each["mean"], 3) for row, each in facts["ranks"]["step_seconds"].items()}, {"0": 0.5, "1": 0.5})

    def test_the_events_are_beside_log_files(self):
        name = f"events.{os.uname().nodename}.jsonl"
        for flags, there in (([], True), (["--events=off"], False)):
            logs = self.scratch()
            self.ddprun("--standalone", "--rdzv-id=j", f"--log-dir={logs}", *flags, "sh", "-c", "exit 4", code=4)
            run = os.path.join(logs, os.listdir(logs)[0])
            self.assertEqual(sorted(os.listdir(run)), ["attempt_0"] + [name] * there)
            if not there:
                continue
            lines = self.read(os.path.join(run, name))
            # There was no restart.
            self.assertEqual([line["event"] for line in lines], ["begin", "round", "spawn", "exit", "verdict"])
            self.assertEqual((lines[-1]["state"], lines[-1]["exit_code"]), ("worker_failed", 4))
            self.assertIn("rank 0 ", lines[-1]["first_failure"])
            # The record is found in the job's own directory.
            facts = json.loads(self.ddprunctl("report", logs, "--json").stdout)
            self.assertEqual((facts["state"], facts["exit_code"]), ("worker_failed", 4))

    def test_a_file_that_cannot_be_opened_is_refused_and_a_full_one_said_once(self):
        scratch = self.scratch()
        pipe, ran = os.path.join(scratch, "pipe"), os.path.join(scratch, "ran")
        os.mkfifo(pipe)
        for path in (pipe, os.path.join(scratch, "no", "events"), scratch, "-", ""):
            done = self.ddprun("--standalone", f"--events={path}", "touch", ran)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, rf"^ddprun: --events={re.escape(path)}[ :].*\n$")
        self.assertFalse(os.path.exists(ran))
        self.assertEqual(self.ddprun("--standalone", "--dry-run", f"--events={scratch}", "true").returncode, 2)
        done = self.ddprun("--standalone", "--max-restarts=1", "--events=/dev/full", "sh", "-c", 'echo "[$DDPRUN_EVENTS]"',
                           DDPRUN_EVENTS="/nowhere")
        self.assertEqual((done.returncode, done.stdout), (0, "[]\n"), done.text)
        self.assertEqual(done.stderr.count("can't write events to /dev/full (No space left on device)"), 1, done.stderr)


class Printed(harness.Case):
    def test_text_that_cannot_be_printed_is_said(self):
        for flag in ("--help", "--version", "--show-config", "--print-man=ddprun", "--print-completion=bash"):
            with open("/dev/full", "w") as full:
                done = subprocess.run([harness.DDPRUN, flag], env=harness.environment(), stdout=full, stderr=subprocess.PIPE,
                                      text=True, timeout=60)
            self.assertEqual(done.returncode, 74, flag)
            self.assertEqual(done.stderr, "ddprun: can't write to stdout: No space left on device\n")
            self.assertEqual(self.ddprun(flag).returncode, 0, flag)


if __name__ == "__main__":
    harness.main()
