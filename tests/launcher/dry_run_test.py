#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests --dry-run: it leaves no trace, and its text is what a worker of the same command line gets."""
import glob
import json
import os
import re
import resource
import shutil
import subprocess
import sys

import harness

# Writes this process' arguments and environment into the directory that its first argument names.
WORKER = """import json, os, sys
def words(name):
    with open('/proc/self/' + name, 'rb') as f:
        return [os.fsdecode(word) for word in f.read().split(b'\\0')[:-1]]
given = dict(word.split('=', 1) for word in words('environ'))
found = {'environment': given, 'command': words('cmdline'), 'cpus': sorted(os.sched_getaffinity(0))}
with open(os.path.join(sys.argv[1], given['RANK']), 'w') as f:
    json.dump(found, f)
"""
HOSTILE = ["", "a b", "'", '"', "$(x)", "`id`", "new\nline", "\\", "${local_rank}/$local_rank", "$$", "--dry-run",
           "ümlaut", "\x01\x7f", "<random>"]
SLOW = bool(os.environ.get("DDPRUN_SANITIZE"))


def pattern_of(text):
    """Returns a pattern that matches the text. A part in <…> is decided later, and matches anything."""
    return re.compile("".join(".+" if part.startswith("<") else re.escape(part)
                              for part in re.split(r"(<[^>]*>)", text)), re.S)


def cpus_of(text):
    found = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return sorted(found)


def is_release():
    try:
        with open(os.path.join(harness.BIN, "../CMakeCache.txt")) as f:
            return "CMAKE_BUILD_TYPE:STRING=Release" in f.read()
    except OSError:
        return False


class DryRunCase(harness.Case):
    def said(self, *args, **more):
        """Returns the JSON document of --dry-run."""
        done = self.ddprun("--dry-run", "--json", *args, code=0, **more)
        self.assertEqual(done.stdout.count("\n"), 1, done.text)
        self.assertRegex(done.stdout, r'"max-restarts":\d+,')
        self.assertNotRegex(done.stdout, r"[:,\[]-?[\d.]+E")  # numbers don't have the form 1E-3
        return json.loads(done.stdout)

    def shown(self, *args, **more):
        done = self.ddprun("--dry-run", *args, code=0, **more)
        return done.stdout

    def check_worker(self, document, worker, found, inherited):
        known = {**document["environment"], **worker["environment"]}
        later = {**document["decided_later"], **worker["decided_later"]}
        for name in worker.get("not_set", []):
            known.pop(name, None) or later.pop(name)
        environment = found["environment"]
        for name, value in environment.items():
            if name in known:
                self.assertEqual(value, known[name], name)
            elif name in later:
                self.assertIsNotNone(pattern_of(later[name]).fullmatch(value), (name, value, later[name]))
            else:
                self.assertEqual(value, inherited.get(name), name + " is not the inherited one, and wasn't said")
        self.assertEqual((known.keys() | later.keys()) - environment.keys(), set(), "said, but not there")
        for name in inherited.keys() - environment.keys():
            self.assertIn(name, [*document["not_inherited"], *worker.get("not_set", [])])
        self.assertEqual(found["command"], worker["command"])
        if worker.get("is_bound"):
            self.assertEqual(found["cpus"], cpus_of(worker["cpus"]))
        for file in worker["log_files"]:
            self.assertTrue(glob.glob(re.sub("<[^>]*>", "*", file)), file)

    def check(self, document, seen, **more):
        """Compares the document with `seen`, the directory into which its nodes' workers wrote what they got."""
        inherited = harness.environment(**more)
        num_workers = 0
        for node in document["nodes"]:
            for worker in node["workers"]:
                with open(os.path.join(seen, str(worker["global_rank"]))) as f:
                    self.check_worker(document, worker, json.load(f), inherited)
                num_workers += 1
        self.assertGreater(num_workers, 0)

    def program(self, seen):
        return [sys.executable, "-c", WORKER, seen]


class Same(DryRunCase):
    """Compares a dry run and a real run of the same command line."""

    def compare(self, *flags, arguments=(), program=None, ddprun=harness.DDPRUN, **more):
        seen = self.scratch()
        line = [*flags, *(program or self.program(seen)), *([seen] if program else []), *arguments]
        document = self.said(*line, program=ddprun, **more)
        self.assertEqual(os.listdir(seen), [])
        self.ddprun(*line, program=ddprun, code=0, **more)
        self.assertEqual(len(os.listdir(seen)), document["world_size"])
        self.check(document, seen, **more)
        return document

    def test_one_node(self):
        document = self.compare("--nproc-per-node=3", "--max-restarts=2", "--exclude-after=3", "--signals-to-handle=SIGTERM",
                                arguments=HOSTILE)
        self.assertEqual(document["rendezvous"]["source"], "--nnodes=1")
        self.assertEqual(document["nodes"][0]["workers"][2]["command"][-len(HOSTILE):][8], "2/2")
        self.assertEqual(document["limits"]["max-restarts"], 2)
        self.assertEqual((document["limits"]["exclude-after"], document["limits"]["no-progress-restarts"]), (3, None))
        self.assertIn("MASTER_PORT", document["decided_later"])
        self.assertNotIn("MASTER_ADDR", document["decided_later"])
        self.assertTrue(any("OMP_NUM_THREADS" in note for note in document["notes"]))

    def test_log_files(self):
        logs = self.scratch() + "/not/there"
        document = self.compare("--nproc-per-node=3", f"--log-dir={logs}", "-r", "0:3,1:1", "-t", "2:2",
                                "--duplicate-stderr-filters=x")
        files = [[os.path.basename(f) for f in w["log_files"]] for w in document["nodes"][0]["workers"]]
        self.assertEqual(files, [["stdout.log", "stderr.log"], ["stdout.log"], ["stderr.log", "filtered_stderr.log"]])
        self.assertEqual(document["log_directory"], f"{logs}/<random>_<random>")

    def test_log_files_below_the_temporary_directory(self):
        document = self.compare("-r", "3", "--rdzv-id=a/b", TMPDIR=self.scratch())
        self.assertRegex(document["log_directory"], "/ddprun_logs_<random>/a_b_<random>$")
        self.assertEqual(len(document["nodes"][0]["workers"][0]["log_files"]), 2)

    def test_binding(self):
        cpus = len(os.sched_getaffinity(0))
        if cpus < 2:
            self.skipTest("one CPU: nothing to share out")
        document = self.compare("--nproc-per-node=2", "--numa-binding=node")
        for worker in document["nodes"][0]["workers"]:
            self.assertTrue(worker["is_bound"])
        document = self.compare("--nproc-per-node=2")
        self.assertEqual(len(cpus_of(document["nodes"][0]["workers"][0]["cpus"])), cpus)

    def test_one_gpu_for_each(self):
        for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            document = self.compare("--nproc-per-node=2", "--virtual-local-rank", **{variable: "5,GPU-7"})
            self.assertEqual([w["gpu"] for w in document["nodes"][0]["workers"]], ["5", "GPU-7"])
            self.assertEqual(document["nodes"][0]["workers"][1]["environment"]["DDPRUN_LOCAL_RANK"], "1")

    def test_variables_of_a_launcher_around_it(self):
        document = self.compare("--role=r", PET_NPROC_PER_NODE="2", DDPRUN_MAX_RESTARTS="4",
                                OMP_NUM_THREADS="3", RANK="7", WORLD_SIZE="9", DDPRUN_LOCAL_RANK="5",
                                TORCHELASTIC_RUN_ID="x", TORCH_NCCL_ASYNC_ERROR_HANDLING="0", LOCAL_RANK="0")
        self.assertEqual(document["not_inherited"], ["DDPRUN_LOCAL_RANK"])
        self.assertEqual(document["environment"]["OMP_NUM_THREADS"], "3")
        self.assertEqual(document["limits"]["max-restarts"], 4)

    def test_the_dry_run_under_the_name_torchrun_is_as_the_run(self):
        alias = os.path.join(self.scratch(), "torchrun")
        os.symlink(harness.DDPRUN, alias)
        script = self.write(self.scratch(), "worker", WORKER)
        document = self.compare("--standalone", "--nproc_per_node=2", program=[script], arguments=["$$"], ddprun=alias,
                                PYTHON_EXEC=sys.executable)
        self.assertEqual(document["nodes"][0]["workers"][0]["command"][1:3], ["-u", script])
        self.assertEqual(document["nodes"][0]["workers"][0]["command"][-1], "$")
        self.assertEqual(document["rendezvous"]["source"], "--standalone")

    def test_one_node_with_an_endpoint(self):
        port, master = harness.free_port(), harness.free_port()
        document = self.compare(f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", f"--master-port={master}")
        self.assertEqual(document["environment"]["MASTER_PORT"], str(master))
        self.assertEqual(document["rendezvous"], {
            "mode": "elastic", "endpoint": f"127.0.0.1:{port}", "source": "--rdzv-endpoint",
            "served_by": "this node, which has this address"})
        document = self.compare(f"--rdzv-endpoint=localhost:{port}", "--local-addr=127.0.0.1")
        self.assertEqual(document["environment"]["MASTER_ADDR"], "127.0.0.1")

    def test_one_node_with_fixed_ranks(self):
        port = str(harness.free_port())
        document = self.compare("--nproc-per-node=2", PET_MASTER_ADDR="localhost", PET_MASTER_PORT=port)
        self.assertEqual(document["rendezvous"]["source"], "PET_MASTER_ADDR")
        self.assertEqual(document["environment"]["MASTER_PORT"], port)


class Nodes(DryRunCase):
    def compare(self, nodes_flags, **more):
        """Takes each node's document first. Then all nodes run."""
        seen = self.scratch()
        lines = [[*flags, *self.program(seen)] for flags in nodes_flags]
        documents = [self.said(*line, **more) for line in lines]
        running = [self.start(*line, **more) for line in lines]
        for process in running:
            self.finish(process, code=0)
        for document in documents:
            self.check(document, seen, **more)
        return documents

    def test_two_nodes_with_fixed_ranks(self):
        flags = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={harness.free_port()}"]
        first, second = self.compare([[*flags, "--node-rank=0"], [*flags, "--node-rank=1"]])
        self.assertEqual([w["global_rank"] for w in second["nodes"][1]["workers"]], [2, 3])
        self.assertEqual([n["first_global_rank"] for n in first["nodes"]], [0, 2])
        self.assertEqual((first["rendezvous"]["served_by"], second["rendezvous"]["served_by"]),
                         ("this node", "another node"))
        self.assertEqual(first["assumed"], ["each node has 2 workers, as this one"])

    def test_two_nodes_with_wishes(self):
        flags = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}", "--rdzv-id=job"]
        first, second = self.compare([[*flags, "--node-rank=1"], [*flags, "--node-rank=0"]])
        self.assertEqual((first["environment"]["RANK"], second["environment"]["RANK"]), ("1", "0"))
        self.assertEqual(first["environment"]["WORLD_SIZE"], "2")

    def test_ranks_that_are_given_out_at_the_meeting(self):
        flags = ["--nnodes=1:4", "--nproc-per-node=2", "--rdzv-endpoint=gpu07:29400"]
        document = self.said(*flags, "true")
        self.assertEqual(document["job_id"], self.said(*flags, "--role=x", "true")["job_id"])
        (node,) = document["nodes"]
        self.assertEqual([node["node_rank"], node["first_global_rank"], document["world_size"]], [None] * 3)
        for name in ("RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            self.assertIn(name, document["decided_later"])
        self.assertEqual(node["workers"][1]["environment"], {"LOCAL_RANK": "1"})
        text = self.shown(*flags, "true")
        self.assertIn("given out when the nodes meet", text)
        self.assertIn("served by the node that has the address of gpu07 (looked up at the start)", text)

    def test_slurm_names_the_nodes(self):
        step = dict(SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_STEP_NODELIST="n[01-03]", SLURM_STEP_NUM_TASKS="3",
                    SLURM_NODEID="2")
        document = self.said("--nnodes=3", "--nproc-per-node=4", "true", **step)
        self.assertEqual([node["host"] for node in document["nodes"]][:2], ["n01", "n02"])
        self.assertEqual(document["rendezvous"]["source"], "Slurm step 7.0")
        self.assertEqual(document["job_id"], "slurm-7.0")
        self.assertEqual(document["environment"]["RANK"], "8")

    def test_the_files_of_a_user_are_read(self):
        folder = self.scratch()
        path = self.write(folder, "ddprun/ddprun.toml", 'rdzv_endpoint = "n01"\nnproc_per_node = 3\npreflight = "touch x"\n')
        document = self.said("--nnodes=2", "true", XDG_CONFIG_HOME=folder)
        self.assertEqual(document["rendezvous"]["source"], path)
        self.assertEqual(document["rendezvous"]["endpoint"], "n01:29400")
        self.assertEqual(document["preflight"], "touch x")
        self.assertEqual(document["nodes"][0]["num_workers"], 3)


    def test_preloaded_modules_are_shown(self):
        for flags, says, lines in (
                ([], ([], None), ""),
                (["--preload=torch,json"], (["torch", "json"], None), "torch, json, once on each node (docs/warm.md): not imported now"),
                (["--preload=auto"], ("auto", None), "what the workers import until their first step, for restarts (docs/warm.md)"),
                (["--preload=auto", "--preload-cache=lists"], ("auto", "lists"),
                 "what the workers import until their first step, for restarts and, once it is kept, for the first round (docs/warm.md)\n"
                 "kept in lists")):
            document, text = self.said(*flags, "true"), self.shown(*flags, "true")
            self.assertEqual((document["preload"], document["preload_cache"]), says)
            shown = re.search(r"(?m)^preload +(.*(?:\n +kept.*)?)", text)
            self.assertEqual(re.sub(r"\n +", "\n", shown[1]) if shown else "", lines, text)


class Hosts(DryRunCase):
    LIST = "a@127.0.0.1:2,b@127.0.0.2:1,localhost:2"

    def test_the_workers_of_all_hosts_get_what_was_shown(self):
        seen = self.scratch()
        line = [f"--hosts={self.LIST}", "--ssh=env AT={host}", "--env=X=y z", *self.program(seen), *HOSTILE]
        document = self.said(*line, HUSH="s3cret")
        self.assertNotIn("s3cret", json.dumps(document))
        self.assertIn("HUSH", document["forwarded"])
        self.ddprun(*line, HUSH="s3cret", code=0)
        for node in document["nodes"]:
            for worker in node["workers"]:
                with open(os.path.join(seen, str(worker["global_rank"]))) as f:
                    found = json.load(f)
                self.assertEqual(found["environment"].pop("AT", "localhost"), node["host"])
                self.assertEqual(found["environment"].pop("X"), "y z")
                self.check_worker(document, worker, found, harness.environment(HUSH="s3cret"))
        self.assertEqual(len(os.listdir(seen)), document["world_size"])
        self.assertEqual(document["world_size"], 5)
        self.assertEqual(document["nodes"][1]["workers"][0]["not_set"], ["OMP_NUM_THREADS"])

    def test_ranges(self):
        document = self.said("-H", "n[08-10]:4,u@m1:2", "true")
        self.assertEqual([(n["host"], n["node_rank"], n["num_workers"], n["first_global_rank"])
                          for n in document["nodes"]],
                         [("n08", 0, 4, 0), ("n09", 1, 4, 4), ("n10", 2, 4, 8), ("u@m1", 3, 2, 12)])
        for node in document["nodes"]:
            command = node["start_command"]
            self.assertEqual((command[0], command[-2]), ("ssh", node["host"]))
            self.assertTrue(command[-1].endswith("/ddprun --from-channel"))
            self.assertIn(f"--node-rank={node['node_rank']}", node["ddprun_arguments"])
            self.assertNotIn("--dry-run", node["ddprun_arguments"])
            self.assertEqual([w["global_rank"] for w in node["workers"]],
                             list(range(node["first_global_rank"], node["first_global_rank"] + node["num_workers"])))
        text = self.shown("-H", "n[08-10]:4,u@m1:2", "--preflight=check gpus", "true")
        self.assertRegex(text, r"(?m)^  u@m1  3          0-1          12-13         ssh -T .*-- u@m1 '.*/ddprun --from-channel'$")
        self.assertIn("served by n08", text)
        self.assertIn("'check gpus', before a node joins", text)

    def test_values_that_only_the_hosts_know_are_decided_later(self):
        document = self.said("-H", "n[1-2]", "--nproc-per-node=gpu", "--numa-binding=node", "--spares=1", "no-such-program")
        first, spare = document["nodes"]
        self.assertEqual((first["num_workers"], document["world_size"], spare["is_spare"]), (None, None, True))
        self.assertEqual(document["decided_later"]["LOCAL_WORLD_SIZE"], "<number of workers>")
        self.assertTrue(any("no-such-program" in note and "each host" in note for note in document["notes"]))
        self.assertIn("bound by each host's own plan", self.shown("-H", "n[1-2]:2", "--numa-binding=node", "true"))

    def test_a_place_to_meet(self):
        document = self.said("-H", "n1:2,n2:2", "--rdzv-endpoint=n1-ib0:777", "true")
        self.assertEqual((document["rendezvous"]["endpoint"], document["rendezvous"]["source"]),
                         ("n1-ib0:777", "--rdzv-endpoint"))
        document = self.said("-H", "n1:2,n2:2", "--master-addr=n1-ib0", "true")
        self.assertEqual(document["rendezvous"]["mode"], "static")
        self.assertEqual((document["environment"]["MASTER_ADDR"], document["environment"]["MASTER_PORT"]),
                         ("n1-ib0", "29500"))


class Text(DryRunCase):
    def test_a_line_of_it_can_be_pasted(self):
        text = self.shown("--nproc-per-node=2", "printf", "%s|", *HOSTILE, "$local_rank")
        (line,) = [line for line in text.splitlines() if line.startswith("  local rank 1: /")]
        printed = subprocess.run(["bash", "-c", line.split(": ", 1)[1]], text=True, capture_output=True, timeout=20)
        words = [word.replace("${local_rank}", "1").replace("$local_rank", "1") for word in HOSTILE] + ["1"]
        self.assertEqual(printed.stdout, "".join(word + "|" for word in words))
        self.assertNotRegex(text, "[\x00-\x09\x0b-\x1f\x7f]")

    def test_it_has_all_that_the_json_has(self):
        flags = ["--nproc-per-node=2", "--log-dir=" + self.scratch(), "-r", "3", "--time-limit=2h", "--preflight=false"]
        document, text = self.said(*flags, "true"), self.shown(*flags, "true")
        for name, value in {**document["environment"], **document["decided_later"]}.items():
            self.assertRegex(text, f"(?m)^  {name}='?{re.escape(value)}")
        for worker in document["nodes"][0]["workers"]:
            for file in worker["log_files"]:
                self.assertIn(file, text)
        self.assertIn("time-limit 7200 s", text)
        self.assertIn("exit-barrier-timeout 3600 s", text)

    def test_json_is_of_dry_run_alone(self):
        done = self.ddprun("--json", "true")
        self.assertEqual((done.returncode, done.stderr), (2, "ddprun: --json: is for --dry-run\n"))


class Refused(DryRunCase):
    def test_a_line_that_a_run_refuses_is_refused_in_the_same_words(self):
        folder = self.scratch()
        file = self.write(folder, "file", "x")
        hosts = self.write(folder, "hosts", "n1\nn[1-\n")
        for line in (["--nproc-per-noed=2", "true"], ["--nproc-per-node=x", "true"], ["--nproc-per-node=gpu", "true"],
                     ["--nnodes=2", "--master-addr=h", "true"], ["--nnodes=2", "--node-rank=2", "true"],
                     ["no-such-program"], [folder], [], ["--standalone", "--nnodes=2", "true"],
                     [f"--log-dir={file}", "true"], [f"--log-dir={file}/x", "true"], ["--log-dir=/proc", "true"],
                     ["--log-dir=/proc/x", "true"], ["--redirects=4", "true"], ["--time-limit=30", "true"],
                     [f"--nproc-per-node={len(os.sched_getaffinity(0)) + 1}", "--numa-binding=exclusive", "true"],
                     [f"--hostfile={hosts}", "true"], ["--hosts=n1,n1", "true"], ["--hosts=n1", "--standalone", "true"],
                     ["--nproc-per-node=2", "--virtual-local-rank", "true"], ["--config=/nonexistent", "true"]):
            more = {"CUDA_VISIBLE_DEVICES": "1"} if "--virtual-local-rank" in line else {}
            real = self.ddprun(*line, **more)
            dry = self.ddprun("--dry-run", *line, **more)
            self.assertEqual((dry.returncode, dry.stderr), (real.returncode, real.stderr), line)
            self.assertEqual((dry.stdout, dry.returncode), ("", 2), line)

    def test_a_directory_that_others_own(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to become somebody else")
        folder = self.scratch()
        os.chmod(folder, 0o755)
        for path, words in ((folder, "can't be written to: Permission denied"), (folder + "/a/b", "can't be made: Permission denied")):
            real, dry = (self.ddprun(*flag, f"--log-dir={path}", "true", cwd="/", preexec_fn=lambda: os.setuid(65534))
                         for flag in ((), ("--dry-run",)))
            self.assertEqual((dry.returncode, dry.stderr), (2, f"ddprun: --log-dir={path} {words}\n"))
            self.assertEqual((real.returncode, real.stderr), (dry.returncode, dry.stderr))

    def test_a_missing_meeting_place_is_asked_for(self):
        done = self.ddprun("--dry-run", "--nnodes=2", "true", code=2)
        self.assertIn("Paste this on each node", done.stderr)


class Traces(DryRunCase):
    LINES = (["--nproc-per-node=2", "--log-dir=logs/new", "-r", "3", "--preflight=touch was-here", "touch", "was-here"],
             ["-r", "3", "--event-log-handler=file=events", "true"],
             ["--nnodes=2", "--node-rank=0", "--master-addr=somewhere", "--json", "true"],
             ["--nnodes=2", "--rdzv-endpoint=localhost:29400", "--numa-binding=node", "true"],
             ["--hosts=n[01-20],u@somewhere", "--nproc-per-node=2", "--ssh=touch {host}", "-r", "3", "true"])

    def test_no_file_is_left(self):
        for line in self.LINES:
            folder = self.scratch()
            os.mkdir(folder + "/tmp")
            self.ddprun("--dry-run", *line, cwd=folder, TMPDIR=folder + "/tmp", HOME=folder, code=0)
            self.assertEqual([names for _, *names in os.walk(folder)], [[["tmp"], []], [[], []]], line)

    def test_no_call_has_an_effect(self):
        if not shutil.which("strace"):
            self.skipTest("strace is not installed: scripts/setup.sh full")
        if SLOW:
            self.skipTest("a sanitizer's own calls would be in it")
        for line in self.LINES:
            log = os.path.join(self.scratch(), "calls")
            command = ["strace", "-f", "-qq", "-o", log, "-e", "trace=%file,%network,process,ftruncate,write",
                       harness.DDPRUN, "--dry-run", *line]
            done = subprocess.run(command, env=harness.environment(), capture_output=True, text=True, timeout=60)
            if "ptrace" in done.stderr and done.returncode != 0:
                self.skipTest("no process may be traced here: " + done.stderr)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(log) as f:
                calls = [re.sub(r"^\d+ +", "", call) for call in f]
            reading = re.compile(r"(access|faccessat2?|stat|lstat|newfstatat|statx|statfs|readlink|getcwd|"
                                 r"exit_group|write\([12],|openat\(AT_FDCWD, \"/dev/null\", |execve\(\"[^\"]*/ddprun\"|"
                                 r"open(at)?\(.*O_RDONLY(\|(O_CLOEXEC|O_NONBLOCK|O_DIRECTORY|O_LARGEFILE|O_NOFOLLOW))*\) =)")
            other = [call for call in calls if not reading.match(call)]
            self.assertEqual(other, [], line)
            self.assertGreater(len(calls), 20)
            self.assertEqual(sum(call.startswith("execve") for call in calls), 1)


class Speed(DryRunCase):
    def test_a_thousand_hosts_take_no_time(self):
        limit = 0.3 if is_release() else 20 if SLOW else 3  # seconds of CPU time, because ddprun waits for nothing
        for flags in ([], ["--json"]):
            times = []
            for _ in range(3):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                done = self.ddprun("--dry-run", *flags, "-H", "n[0001-1000]:8", "true")
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("n1000", done.stdout)
            self.assertLess(min(times), limit, flags)


if __name__ == "__main__":
    harness.main()
