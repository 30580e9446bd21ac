#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests workers that are forked from a Python which has imported their modules (docs/warm.md)."""
import errno
import json
import os
import re
import signal
import sys
import sysconfig
import urllib.request

import harness
import cgroup
import family
import seccomp

PYTHON = os.path.realpath(sys.executable)
SUPPORT = os.path.dirname(family.__file__)

# A worker that prints its process' facts. "warm": whether it was forked. It leaves out what differs between any two
# processes, the memory, and the rest that docs/warm.md names.
FACTS = r'''
import json, os, re, resource, signal, sys
OTHER_STATUS = re.compile("Vm|Rss|NS|SigQ|T?gid|P?Pid|.*_ctxt_switches")
OTHER_FILES = {"arch_status", "autogroup", "auxv", "clear_refs", "environ", "io", "ksm_stat", "maps", "mem", "mountinfo", "mounts", "mountstats", "numa_maps",
               "oom_score", "pagemap", "sched", "schedstat", "smaps", "smaps_rollup", "stack", "stat", "statm", "status", "syscall", "wchan"}
OTHER_SYS = {"meta_path", "modules", "path_importer_cache"}
def shown(value):
    return sorted(value) if isinstance(value, frozenset) else re.sub(" at 0x[0-9a-f]+", "", repr(value))
def text(path):
    with open(path, "rb") as file:
        return file.read().rstrip(b"\0").decode()
status = dict(line.split(":\t", 1) for line in text("/proc/self/status").splitlines())
def content(name):
    try:
        return re.sub(r"ddprun-(round|warden)-\d+", r"\1", text("/proc/self/" + name).strip())  # a cgroup's name has ddprun's pid
    except OSError as error:
        return str(error)
def link(name):
    try:
        return re.sub(r"\d+", "N", os.readlink("/proc/self/" + name))
    except FileNotFoundError:  # the listing's own
        return None
own = {os.path.dirname(os.environ["DDPRUN_AGENT_SOCKET"]): "FOLDER", os.environ["TORCHELASTIC_RUN_ID"]: "JOB", os.environ["MASTER_PORT"]: "PORT"}
def of_any_job(value):
    for each, name in own.items():
        value = value.replace(each, name)
    return value
main = sys.modules["__main__"]
facts = {
    "warm": "warm_probe" in sys.modules,
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path, "flags": str(sys.flags),
    "executable": sys.executable, "prefix": sys.prefix, "warnoptions": sys.warnoptions, "cwd": os.getcwd(),
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    "main": {name: str(value).split(" at 0x")[0] for name, value in vars(main).items() if name.startswith("__")},
    "streams": [(s.fileno(), s.encoding, s.errors, s.line_buffering, s.write_through) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "environment": {name: of_any_job(value) for name, value in os.environ.items()},
    "links": {name: os.readlink("/proc/self/" + name) for name in ("cwd", "exe", "root", *("ns/" + each for each in os.listdir("/proc/self/ns")))},
    "attributes": {name: content("attr/" + name) for name in os.listdir("/proc/self/attr")},
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "policy": os.sched_getscheduler(0), "affinity": sorted(os.sched_getaffinity(0)), "limits": [resource.getrlimit(n) for n in range(16)],
    "leads": [os.getpid() == os.getsid(0), os.getpid() == os.getpgid(0)],
    "descriptors": {name: to for name in os.listdir("/proc/self/fd") if (to := link("fd/" + name))},
    "status": {name: value for name, value in status.items() if not OTHER_STATUS.match(name)},
    "files": {name: content(name) for name in os.listdir("/proc/self")
              if os.path.isfile("/proc/self/" + name) and not os.path.islink("/proc/self/" + name) and name not in OTHER_FILES},
    "sys": {name: shown(value) for name, value in vars(sys).items() if name not in OTHER_SYS},
    "finders": [getattr(each, "__name__", type(each).__name__) for each in sys.meta_path],
    "parent": text(f"/proc/{os.getppid()}/comm").strip(),
}
print(json.dumps(facts), flush=True)
'''
# Rank 0 ends each round but the last, once it has heard from rank 1. In the last one rank 1 ends after rank 0's look.
RESTARTED = r'''
import json, os, signal, sys
import family
attempt, pipe, told, last = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), *sys.argv[1:3], int(sys.argv[3])
warm = "warm_probe" in sys.modules
if os.environ["RANK"] == "1":
    with open(pipe, "w") as file:
        file.write(f"{attempt} {warm}")
    if attempt < last:
        signal.pause()
    open(pipe).close()
else:
    with open(pipe) as file:
        other = file.read()
    with open(told, "a") as file:
        print(json.dumps({"said": [f"{attempt} {warm}", other], **family.use()}), file=file)
    if attempt == last:
        open(pipe, "w").close()
    sys.exit(attempt < last)
'''
# The first two of three rounds wait until the next one's workers are forked. The first one then kills their warden.
AHEAD = r'''
import os, signal, sys
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def waiting():
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as title, open(f"/proc/{pid}/environ") as environment, open(f"/proc/{pid}/stat") as stat:
                if title.read().startswith("ddprun-warm: waits") and os.environ["IMPORTS"] in environment.read():
                    found[int(pid)] = int(stat.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    return found
while len(found := waiting()) < 3 and attempt < 2:
    pass
print("round", attempt, "warm_probe" in sys.modules, os.getpid(), *found, flush=True)
if attempt == 0:
    between, = [pid for pid, parent in found.items() if parent not in found]
    warden, = [pid for pid, parent in found.items() if parent == between]
    os.kill(warden, signal.SIGKILL)
sys.exit(attempt < 2)
'''
# The helper's pid; None: there is no helper.
HELPER = r'''
import os, re, signal, sys
round = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def helper():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as title, open(f"/proc/{pid}/environ") as environment:
                if re.match(r"ddprun-warm: \d+ modules", title.read()) and os.environ["IMPORTS"] in environment.read():
                    return int(pid)
        except OSError:
            pass
'''
# Imports the modules of its arguments. Rank 0 fails until it begins warm, and ends in order then. Rank 1 waits until that
# has had its effect: the modules are kept in $CACHE, or the file $ERRORS says that they can't be.
LEARNT = r'''
import importlib, os, sys
round, is_first = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"] == "0"
warm = {*sys.argv[1:]} <= sys.modules.keys()
if is_first:
    print("there", round, warm, flush=True)
def is_kept():
    if "ERRORS" in os.environ:
        with open(os.environ["ERRORS"]) as file:
            return "--preload-cache" in file.read()
    for name in os.listdir(os.environ["CACHE"]):
        if name.endswith(".json"):
            with open(os.path.join(os.environ["CACHE"], name)) as file:
                kept = file.read()
            return all(f'"{module}"' in kept for module in sys.argv[1:])
if round == "0" and not warm and "RAISES" in os.environ:
    raise RuntimeError("before the imports")
for module in sys.argv[1:]:
    importlib.import_module(module)
if not warm:
    sys.exit(1)
while not is_first and not is_kept():
    pass
'''
PROBE = "import os\nwith open(os.environ['IMPORTS'], 'a') as file:\n    file.write(f'{os.getpid()}\\n')\n"


class Warm(harness.Case):
    def setUp(self):
        self.folder = self.scratch()
        self.write(self.folder, "warm_probe.py", PROBE)
        self.imports = os.path.join(self.folder, "imports")

    def run_warm(self, script, *flags, module="warm_probe", arguments=(), python=PYTHON, name="script.py", **more):
        path = self.write(self.folder, name, script)
        flags = (*flags, f"--preload={module}") if module else flags
        return self.ddprun("--standalone", *flags, "--no-python", python, "-u", path, *arguments,
                           **{"PYTHONPATH": self.folder, "IMPORTS": self.imports, **more})

    def num_imports(self):
        with open(self.imports, encoding="ascii") as file:
            return len(file.read().split())

    def check_second_round_is_cold(self, script):
        """Checks that of three rounds' workers, which print whether they are warm, only the second one is cold."""
        done = self.run_warm(script, "--max-restarts=2")
        self.assertEqual(done.returncode, 0, done.text)
        self.assertEqual([line.split()[-1] for line in done.stdout.splitlines()], ["True", "False", "True"], done.text)
        return done

    def test_a_module_is_imported_once_for_all_workers_and_restarts(self):
        script = ("import sys, os\nprint('there', 'warm_probe' in sys.modules, os.environ['RANK'])\n"
                  "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] != '2' and os.environ['RANK'] == '1')\n")
        done = self.run_warm(script, "--nproc-per-node=3", "--max-restarts=2")
        self.assertEqual(done.returncode, 0, done.text)
        self.assertGreaterEqual(done.stdout.count("there True"), 3 + 2, done.text)  # other workers were stopped earlier
        self.assertNotIn("there False", done.stdout)
        self.assertEqual(self.num_imports(), 1)

    def test_a_worker_is_as_a_fresh_one(self):
        warm = self.check_alike()
        for part, name in (("status", "Threads"), ("files", "comm"), ("sys", "dont_write_bytecode")):
            self.assertIn(name, warm[part])

    def check_alike(self, *flags, **more):
        """Checks that warm workers are as fresh ones. Returns the facts of the last warm one."""
        runs = [self.run_warm(FACTS, *flags, module=module, arguments=("a", "--b"), **more) for module in ("warm_probe", None)]
        ranks = [[json.loads(line.split("] ", 1)[-1] if line.startswith("[") else line) for line in sorted(done.stdout.splitlines())]
                 for done in runs]
        self.assertTrue(ranks[0], runs[0].text)
        for warm, fresh in zip(*ranks):
            self.assertEqual((warm.pop("warm"), fresh.pop("warm")), (True, False), runs[0].text)
            self.assertEqual(warm, fresh)
        return warm

    def test_a_bound_worker_is_as_a_fresh_one(self):
        """Each has CPUs of its own."""
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("needs 2 CPUs")
        warm = self.check_alike("--numa-binding=exclusive", "--nproc-per-node=2", OMP_NUM_THREADS="1")
        self.assertLess(len(warm["affinity"]), len(os.sched_getaffinity(0)))

    def test_a_worker_with_limits_of_its_own_is_as_a_fresh_one(self):
        plan = json.loads(self.ddprun("--dry-run", "--json", "--standalone", "--worker-pids=90", "true").stdout)["worker_limits"]
        if plan["cgroup"] is None:
            self.skipTest(plan["not_enforced"]["worker-pids"])
        warm = self.check_alike("--worker-pids=90")
        self.assertIn("/worker-0", warm["files"]["cgroup"])

    def check_said(self, script, *words, **more):
        """Checks that a script prints the same as a warm and as a fresh worker, with the words in it."""
        warm, fresh = (self.run_warm("import sys\nprint('warm_probe' in sys.modules)\n" + script, module=module, **more)
                       for module in ("warm_probe", None))
        self.assertEqual((warm.returncode, warm.stdout.partition("\n")[0], fresh.stdout.partition("\n")[0]), (0, "True", "False"), warm.text)
        self.assertEqual(warm.stdout.partition("\n")[2], fresh.stdout.partition("\n")[2])
        for word in words:
            self.assertIn(word, warm.stdout)

    def test_a_profiler_sees_the_functions_of_a_warm_worker(self):
        self.check_said("import cProfile, pstats\ndef fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nprofile = cProfile.Profile()\n"
                        "profile.runcall(fib, 10)\nfor (path, line, name), (_, calls, *_) in sorted(pstats.Stats(profile).stats.items()):\n"
                        "    print(path == __file__, line, name, calls)\n", "True 4 fib 177\n")

    def test_a_tracer_sees_the_lines_of_a_warm_worker(self):
        self.check_said("import threading\nseen = []\ndef trace(frame, event, _):\n    if frame.f_code.co_filename == __file__:\n"
                        "        seen.append((frame.f_lineno, event))\n        return trace\ndef f():\n    x = 1\n    return x\n"
                        "threading.settrace(trace)\nsys.settrace(trace)\nf()\nthread = threading.Thread(target=f)\nthread.start()\nthread.join()\n"
                        "sys.settrace(None)\nprint(seen)\n", "[" + ", ".join(2 * ["(9, 'call'), (10, 'line'), (11, 'line'), (11, 'return')"]) + "]\n")

    def test_a_debugger_stops_in_a_warm_worker(self):
        commands = self.write(self.folder, "commands", "p 6 * value\nc\n")
        self.check_said(f"value = 7\nsys.stdin = open({commands!r})\nimport pdb\npdb.Pdb(stdin=sys.stdin, nosigint=True, readrc=False).set_trace()\n"
                        "print('goes on')\n", "(Pdb) 42\n", "goes on\n")

    def test_a_hash_seed_that_is_given_counts_in_warm_workers(self):
        self.check_said("print(hash('a word'))\n", PYTHONHASHSEED="7")

    def test_a_module_s_program_is_run_as_by_python(self):
        self.write(self.folder, "program.py", FACTS)
        lines = []
        for preload in (["--preload=warm_probe"], []):
            done = self.ddprun("--standalone", *preload, "--no-python", PYTHON, "-m", "program", "x", cwd=self.folder,
                               IMPORTS=self.imports)
            lines.append(json.loads(done.stdout))
        self.assertEqual([facts.pop("warm") for facts in lines], [True, False])
        self.assertEqual(*lines)

    def test_ends_are_told_as_python_tells_them(self):
        for script, says in (("import sys\nsys.exit(7)\n", "exit code 7"),
                             ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "SIGSEGV"),
                             ("raise KeyboardInterrupt\n", "SIGINT"),
                             ("def f():\n    raise ValueError('here')\nf()\n", "ValueError: here"),
                             ("def f(:\n", "SyntaxError")):
            warm, fresh = (self.run_warm(script, module=module) for module in ("warm_probe", None))
            with self.subTest(says):
                self.assertEqual(warm.returncode, fresh.returncode)
                self.assertIn(says, warm.stderr)
                self.assertNotIn("<string>", warm.stderr)
                self.assertEqual(warm.stderr.count("File "), fresh.stderr.count("File "), warm.text)

    def test_a_spawned_pool_finds_the_script(self):
        script = ("import multiprocessing\ndef twice(x):\n    return 2 * x\nif __name__ == '__main__':\n"
                  "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        print(pool.map(twice, [4]))\n")
        self.assertIn("[8]", self.run_warm(script, module="warm_probe,multiprocessing").stdout)

    def test_random_numbers_differ(self):
        done = self.run_warm("import random\nprint(random.random())\n", "--nproc-per-node=4", module="random")
        self.assertEqual(len({line.split()[-1] for line in done.stdout.splitlines()}), 4, done.text)

    def test_imports_that_can_not_be_forked_are_one_line_and_run_all_the_same(self):
        self.write(self.folder, "bad_exit.py", "raise SystemExit(3)\n")
        self.write(self.folder, "bad_thread.py", "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n")
        self.write(self.folder, "bad_fork.py", "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n")
        self.write(self.folder, "bad_clone.py", "import os\nos.fork()\n")
        self.write(self.folder, "bad_socket.py", "import socket\npair = socket.socketpair()\n")
        self.write(self.folder, "bad_lock.py", "import multiprocessing\nlock = multiprocessing.get_context('fork').Lock()\n")
        self.write(self.folder, "bad_memory.py", "import mmap\nmemory = mmap.mmap(-1, 4096)\n")
        self.write(self.folder, "bad_death.py", "import os\nos._exit(5)\n")
        self.write(self.folder, "bad_hang.py", "import threading\nthreading.Event().wait()\n")
        self.write(self.folder, "bad_limit.py", "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))\n")
        self.write(self.folder, "bad_words.py", "import os\nos.write(3, b'{\"ready\": 1}')\nos.write(3, b'{\"warden\": 1}')\n")
        self.write(self.folder, "bad_json.py", "import os\nos.write(3, b'[')\n")
        self.write(self.folder, "bad_fork_time.py", "import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(4))\n")
        stand_in = "import sys, types\nmodule = sys.modules[{!r}] = types.ModuleType({!r})\nmodule.{} = {}\n"
        for name, *words in (("bad_cuda", "torch.cuda", "is_initialized", "lambda: True"), ("bad_jax", "jax._src.xla_bridge", "_backends", "{'gpu': 0}"),
                             ("bad_tensorflow", "tensorflow", "keras", "None"), ("bad_mpi", "mpi4py.MPI", "COMM_WORLD", "None"),
                             ("bad_grpc", "grpc._cython.cygrpc", "Channel", "None")):
            self.write(self.folder, name + ".py", stand_in.format(words[0], *words))
        self.write(self.folder, "bad_debugger.py", "import sys\nsys.settrace(lambda *_: None)\n")
        self.write(self.folder, "bad_monitor.py", "import sys, types\nif hasattr(sys, 'monitoring'):\n    sys.monitoring.use_tool_id(1, 'coverage')\n"
                                                  "else:\n    sys.monitoring = types.SimpleNamespace(get_tool=lambda tool: 'coverage' * (tool == 1))\n")
        self.write(self.folder, "bad_idle_loop.py", "import asyncio\nloop = asyncio.new_event_loop()\n")
        self.write(self.folder, "bad_loop.py", "import asyncio, threading\nloop, runs = asyncio.new_event_loop(), threading.Event()\n"
                                               "loop.call_soon(runs.set)\nthreading.Thread(target=loop.run_forever, name='my loop', daemon=True).start()\nruns.wait()\n")
        for module, says in (("nowhere.at_all", "ModuleNotFoundError"),
                             ("bad_cuda", "a module initialised CUDA"), ("bad_jax", "a module started a backend of JAX"),
                             ("bad_tensorflow", "tensorflow was imported: TensorFlow has threads"),
                             ("bad_mpi", "mpi4py.MPI was imported: MPI is initialised"), ("bad_grpc", "grpc._cython.cygrpc was imported: gRPC has threads"),
                             ("bad_debugger", "a debugger, profiler or coverage follows this Python"), ("bad_exit", "bad_exit can't be imported: SystemExit: 3"),
                             ("bad_thread", "an imported module has threads (1: Thread-1"),
                             ("bad_monitor", "a debugger, profiler or coverage follows this Python"),
                             ("bad_idle_loop", "an imported module holds "),
                             ("bad_loop", "an imported module has threads (1: my loop)"), ("bad_fork", "an imported module started a process"),
                             ("bad_clone", "an imported module started a process"),
                             ("bad_lock", "an imported module shares a lock or semaphore with the processes that are forked from it"),
                             ("bad_memory", "an imported module shares anonymous memory with the"),
                             ("bad_socket", "an imported module holds socket:"), ("bad_death", "the helper ended with status 5"),
                             ("bad_hang", "the imports had not ended after 1 s"),
                             ("bad_limit", "the warden could not be started: Too many open files"), ("bad_words", "the warden that the helper names is no new child of ddprun"),
                             ("bad_json", "a module wrote to the helper's socket"), ("bad_fork_time", "the helper does not answer")):
            done = self.run_warm("print('it ran')\n", "--preload-timeout=1" if "hang" in module else "--preload-timeout=30", module=module)
            with self.subTest(module):
                self.assertEqual((done.returncode, done.stdout), (0, "it ran\n"), done.text)
                # The next round's helper has the same trouble. It may find the words of "bad_words" elsewhere.
                self.assertIn(done.stderr.count("--preload: "), (1, 2) if module == "bad_words" else (1,), done.text)
                self.assertIn(says, done.stderr)
                self.assertIn("; the workers start as ever", done.stderr)

    def test_trouble_that_each_helper_of_a_job_has_is_said_once(self):
        self.write(self.folder, "bad_limit.py", "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))\n")
        script = "import os, sys\nprint('bad_limit' in sys.modules)\nsys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] != '3')\n"
        done = self.run_warm(script, "--max-restarts=3", "--max-restart-delay=0", module="bad_limit", LOGLEVEL="INFO")
        self.assertEqual((done.returncode, done.stdout), (0, 4 * "False\n"), done.text)
        self.assertEqual(done.stderr.count("0 of 1 began warm, the others not: the warden could not be started"), 4, done.text)
        self.assertEqual(done.stderr.count("--preload: "), 1, done.text)

    # The limit is far more than the memory of ddprun, which sanitizers make large.
    def test_imports_that_take_over_half_of_the_memory_are_given_up(self):
        limited = cgroup.memory_cgroup_or_skip(self, 800 << 20)
        for mebibytes, warm in ((300, True), (420, False)):
            self.write(self.folder, "large.py", f"data = b'x' * ({mebibytes} << 20)\n")
            done = self.run_warm("import sys\nprint('large' in sys.modules)\n", module="json,large,calendar", preexec_fn=limited.enter)
            self.assertEqual((done.returncode, done.stdout), (0, f"{warm}\n"), done.text)
            self.assertRegex(done.stderr, r"\A\Z" if warm else r"\A\[ddprun\] warning: --preload: with large the imports have 4\d\d MiB "
                                                              r"of memory, they may have 400; the workers start as ever\n\Z")

    def test_a_helper_that_the_kernel_kills_for_its_memory_costs_the_warmth_alone(self):
        limited = cgroup.memory_cgroup_or_skip(self, 800 << 20)
        self.write(self.folder, "large.py", "data = b'x' * (1 << 30)\n")
        done = self.run_warm("print('it ran')\n", module="large", preexec_fn=limited.enter)
        self.assertEqual((done.returncode, done.stdout), (0, "it ran\n"), done.text)
        self.assertEqual(done.stderr, "[ddprun] warning: --preload: the helper was ended by SIGKILL; the workers start as ever\n")

    def test_a_helper_that_can_not_have_what_the_workers_had_is_given_up(self):
        """Rank 0 has it import more, and rank 1 waits until it has ended. Without a helper later workers are cold for the reason of
        its end."""
        base, cache, limited = self.scratch(), self.scratch(), cgroup.memory_cgroup_or_skip(self, 800 << 20)
        self.write(sysconfig.get_path("purelib", "posix_user", {"userbase": base}), "large.py",
                   "import os\nif 'RANK' not in os.environ:  # in the helper\n    data = b'x' * (420 << 20)\n")
        script = HELPER + ("import large\nif round == 0 and os.environ['RANK'] == '0':\n    sys.exit()\n"
                           "while round == 0 and helper():\n    pass\nsys.exit(round != 3)\n")
        done = self.run_warm(script, "--nproc-per-node=2", "--max-restarts=3", "--max-restart-delay=0", f"--preload-cache={cache}", module="auto",
                             PYTHONUSERBASE=base, LOGLEVEL="INFO", preexec_fn=limited.enter)
        self.assertEqual((done.returncode, done.stderr.count("--preload: with large the imports have")), (0, 1), done.text)
        self.assertIn("workers of round 4 run; 0 of 2 began warm, the others not: with large the imports have", done.stderr)
        self.assertEqual(os.listdir(cache), [])  # the next job doesn't begin with it

    def test_functions_that_a_module_replaces_are_the_helper_s_own_all_the_same(self):
        self.write(self.folder, "replaces.py",
                   "import builtins, contextlib, json, os, select, signal\ndef refuse(*_):\n    raise OSError(1, 'replaced')\n"
                   "os.execv = os.execve = os.fork = os.open = os.setsid = json.loads = json.dumps = refuse\n"
                   "contextlib.suppress = select.select = signal.pthread_sigmask = refuse\n")
        script = "import os, sys\nprint('replaces' in sys.modules)\nsys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
        done = self.run_warm(script, "--max-restarts=1", module="replaces")
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("--preload")), (0, "True\nTrue\n", 0), done.text)

    def test_a_warden_that_ends_before_its_first_report_costs_the_warmth_alone(self):
        seccomp.require()
        self.write(self.folder, "confined.py", "import errno, seccomp\nseccomp.forbid('signalfd4', error=errno.EPERM)\n")
        done = self.run_warm("print('it ran')\n", module="confined", PYTHONPATH=f"{self.folder}:{SUPPORT}")
        self.assertEqual((done.returncode, done.stdout), (0, "it ran\n"), done.text)
        self.assertRegex(done.stderr, r"^\[ddprun\] warning: --preload: the warden that the helper names ended "
                                      r"before it began; the workers start as ever\n$")

    def test_a_process_that_a_module_forks_ends_with_the_imports(self):
        """Otherwise it would act as a second helper, and fork workers, too."""
        self.write(self.folder, "forks.py", "import os\nchild = os.fork()\nif child:\n    os.waitpid(child, 0)\n")
        done = self.run_warm("import sys\nprint('child' if sys.modules['forks'].child == 0 else 'parent')\n", module="forks")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "parent\n", ""), done.text)

    def test_a_module_s_output_at_its_import_is_shown_once_on_standard_error(self):
        """This includes text in a buffer of Python or the C library when the workers were forked."""
        self.write(self.folder, "prints.py", "import ctypes, sys\nprint('by print')\nprint('by stderr', file=sys.stderr)\n"
                                             "ctypes.CDLL(None).puts(b'by puts')\n")
        path = self.write(self.folder, "script.py", "import os, sys\nprint('prints' in sys.modules)\n"
                                                    "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n")
        for flag in ("-u", "-E"):  # with -E Python ignores ddprun's variable for unbuffered output
            with self.subTest(flag):
                done = self.ddprun("--standalone", "--max-restarts=1", "--preload=prints", "--no-python", PYTHON, flag, path, code=0)
                self.assertEqual(done.stdout, "True\nTrue\n", done.text)
                self.assertEqual([done.stderr.count(words) for words in ("by print", "by stderr", "by puts")], [1, 1, 1], done.text)

    def test_variables_that_an_import_sets_or_takes_are_so_in_workers(self):
        self.write(self.folder, "sets.py", "import os\nos.environ['SET'] = 'by an import'\ndel os.environ['TAKEN']\n")
        done = self.run_warm("import os, sys\nprint('sets' in sys.modules, os.environ['SET'], os.environ.get('TAKEN'))\n", module="sets",
                             TAKEN="1")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "True by an import None\n", ""), done.text)

    def test_a_filter_of_system_calls_that_a_module_sets_is_one_line(self):
        seccomp.require()
        self.write(self.folder, "confined.py", "import errno, seccomp\nseccomp.forbid('clone', 'clone3', error=errno.EPERM)\n")
        done = self.run_warm("print('it ran')\n", module="confined", PYTHONPATH=f"{self.folder}:{SUPPORT}")
        self.assertEqual((done.returncode, done.stdout), (0, "it ran\n"), done.text)
        self.assertEqual(done.stderr, "[ddprun] warning: --preload: no further processes could be started; the workers start as ever\n")

    def test_a_container_that_refuses_namespaces_and_clone3_has_warm_workers(self):
        seccomp.require()
        path = self.write(self.folder, "script.py", "import sys\nprint('warm_probe' in sys.modules)\n")
        done = self.ddprun("--standalone", "--preload=warm_probe", "--no-python", PYTHON, path, PYTHONPATH=self.folder,
                           IMPORTS=self.imports, preexec_fn=lambda: seccomp.forbid("clone3", "unshare", error=errno.EPERM))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "True\n", ""), done.text)

    def on_spoilt_disks(self, script, flags, variables="", arguments=""):
        """Runs ddprun with a $DISK that is full, and with a read-only one. Returns [(a write's error, the result)]."""
        path = self.write(self.folder, "script.py", script)
        command = f"{variables} $DDPRUN --standalone {flags} --no-python {PYTHON} -u {path} {arguments}; echo exit $?; rm -f $DISK/fill; ls -A $DISK"
        return [(fails_with, self.in_small_disk(f"{spoil}; {command}", PYTHONPATH=self.folder, IMPORTS=self.imports))
                for spoil, fails_with in (("head -c 1000000 /dev/zero >$DISK/fill 2>/dev/null", "is full|No space left on device"),
                                          ("mount -o remount,ro $DISK", "Read-only file system"))]

    def test_a_temporary_folder_that_takes_no_file_costs_no_warmth(self):
        script = "import sys\nprint('warm_probe' in sys.modules)\n"
        for fails_with, done in self.on_spoilt_disks(script, "--preload=warm_probe", "TMPDIR=$DISK"):
            self.assertEqual(done.stdout, "True\nexit 0\n", done.stderr)
            self.assertRegex(done.stderr, rf"\A\[ddprun\] preflight: directory: .*({fails_with})")
            self.assertNotIn("--preload", done.stderr)

    def test_a_list_that_can_not_be_kept_is_one_line_and_leaves_nothing(self):
        errors = os.path.join(self.folder, "errors")
        for fails_with, done in self.on_spoilt_disks(LEARNT, "--nproc-per-node=2 --max-restarts=200 --max-restart-delay=0 --preload=auto "
                                                     "--preload-cache=$DISK", f"ERRORS={errors}", f"json.tool 2>{errors} || exit; cat {errors} >&2"):
            self.assertRegex(done.stdout, r"\A(.*there \d+ False\n)+.*there \d+ True\nexit 0\n\Z", done.stderr)
            self.assertRegex(done.stderr, rf"(?m)^\[ddprun\] warning: --preload-cache: .*({fails_with})$")
            self.assertEqual(done.stderr.count("--preload"), 1, done.stderr)

    def test_an_interpreter_that_is_not_cpython_is_one_line(self):
        self.write(self.folder, "sitecustomize.py", "import sys\nsys.implementation.name = 'pypy'\n")
        done = self.run_warm("print('it ran')\n")
        self.assertEqual((done.returncode, done.stdout), (0, "it ran\n"), done.text)
        self.assertIn("--preload: it needs CPython 3.9 or later; the workers start as ever", done.stderr)

    def test_a_program_that_is_no_python_is_one_line(self):
        done = self.ddprun("--standalone", "--preload=json", "true")
        self.assertEqual(done.returncode, 0)
        self.assertIn("--preload: the workers run no Python script or module; the workers start as ever", done.stderr)
        self.check_one_line(self.ddprun("--standalone", "--preload=a/b", "true"), "must be auto, or names of Python modules", code=2)

    def test_python_s_own_scripts_and_modules_are_forked_others_are_not(self):
        """Other programs run once, as fresh processes."""
        wrapper = self.write(self.folder, "python_train", f'#!/bin/sh\necho ran "$@" >>{self.imports}\n')
        os.chmod(wrapper, 0o755)
        code = "import os; print('rank', os.environ['RANK'])"
        for command in ([wrapper, "data"], [PYTHON, "-c", code], [PYTHON, "-uc" + code], [PYTHON, "-umjson.tool", "--help"]):
            done = self.ddprun("--standalone", "--preload=json", "--no-python", *command)
            with self.subTest(command):
                self.assertEqual(done.returncode, 0, done.text)
                self.assertIn("the workers run no Python script or module", done.stderr)
        with open(self.imports, encoding="ascii") as file:
            self.assertEqual(file.read(), "ran data\n")

    def test_a_script_that_can_be_read_once_is_read_once(self):
        path = os.path.join(self.folder, "pipe")
        os.mkfifo(path)
        process = self.start("--standalone", "--preload=json", "--no-python", PYTHON, path)
        with open(path, "w", encoding="ascii") as file:
            file.write("print('from a pipe')\n")
        self.assertEqual(self.finish(process).stdout, "from a pipe\n")

    def test_a_relative_path_is_as_for_python(self):
        self.write(self.folder, "script.py", "import os\nos.chdir('/')\nprint(os.path.exists(__file__), __import__('sys').argv)\n")
        for preload in (["--preload=json"], []):
            done = self.ddprun("--standalone", *preload, "--no-python", PYTHON, "script.py", cwd=self.folder)
            self.assertEqual(done.stdout, "True ['script.py']\n", done.text)

    def test_no_file_of_the_working_directory_is_run(self):
        """Another user may have put it there."""
        path = self.write(self.folder, "script.py", "import sys\nprint('warm', 'colorsys' in sys.modules)\n")
        planted = self.scratch()
        for name in ("hashlib", "ctypes", "array", "colorsys"):
            self.write(planted, name + ".py", f"raise SystemExit({name!r})\n")
        done = self.ddprun("--standalone", "--preload=colorsys", "--no-python", PYTHON, path, cwd=planted)
        self.assertEqual(done.stdout, "warm True\n", done.text)

    def test_a_module_whose_file_has_changed_is_imported_anew(self):
        """A change of its time, its size or its inode is enough."""
        for change in ("os.utime(path, ns=(1, 1))", "open(path, 'a').write('#'); os.utime(path, ns=times)",
                       "os.rename(path, path + '~'); open(path, 'w').write(open(path + '~').read()); os.utime(path, ns=times)"):
            self.write(self.folder, "imports", "")
            done = self.check_second_round_is_cold(
                "import os, sys\nround = os.environ['TORCHELASTIC_RESTART_COUNT']\nprint('there', 'warm_probe' in sys.modules)\n"
                "path = os.path.join(os.path.dirname(__file__), 'warm_probe.py')\ntimes = 2 * (os.stat(path).st_mtime_ns,)\n"
                f"if round == '0':\n    {change}\nsys.exit(round != '2')\n")
            self.assertIn("the file of an imported module has changed", done.stderr)
            self.assertEqual(self.num_imports(), 2)

    def learn(self, cache, *modules, flags=(), begin="", **more):
        """Runs LEARNT after the lines `begin`. Returns for each round whether its first worker began warm."""
        done = self.run_warm(begin + LEARNT, "--nproc-per-node=2", "--max-restarts=200", "--max-restart-delay=0", f"--preload-cache={cache}", *flags,
                             module="auto", arguments=modules, CACHE=cache, **more)
        self.assertEqual(done.returncode, 0, done.text)
        return [line.split()[-1] == "True" for line in done.stdout.splitlines()]

    def test_auto_imports_what_the_workers_had_and_keeps_the_list(self):
        cache = self.scratch()
        shown = self.learn(cache, "json.tool")
        self.assertEqual((shown[0], shown[-1]), (False, True))
        self.assertEqual(self.learn(cache, "json.tool"), [True])
        name, = os.listdir(cache)
        with open(os.path.join(cache, name), encoding="ascii") as file:
            kept = file.read()
        for spoil in (lambda path: os.chmod(path, 0o666), lambda path: os.chown(path, 65534, 65534),
                      lambda path: self.write(cache, name, kept + " " * (1 << 20))):
            os.remove(os.path.join(cache, name))
            spoil(self.write(cache, name, kept, 0o600))
            self.assertIs(self.learn(cache, "json.tool")[0], False)

    def test_auto_learns_from_later_rounds_when_the_first_one_ends_before_its_imports(self):
        cache = self.scratch()
        shown = self.learn(cache, "json.tool", RAISES="1")
        self.assertEqual((shown[0], shown[-1]), (False, True))
        self.assertEqual(self.learn(cache, "json.tool"), [True])

    def test_auto_imports_only_installed_modules(self):
        cache = self.scratch()
        self.learn(cache, "json.tool", begin="import sys\nif 'warm_probe' in sys.modules:\n    sys.exit('the helper had it')\nimport warm_probe\n")
        name, = os.listdir(cache)
        with open(os.path.join(cache, name), encoding="ascii") as file:
            self.assertNotIn("warm_probe", json.load(file))

    def test_a_list_of_another_program_or_python_is_not_used(self):
        cache, other = self.scratch(), os.path.join(self.scratch(), "python3")
        os.symlink(PYTHON, other)
        self.learn(cache, "json.tool")
        for given in ({"name": "other.py"}, {"python": other}):
            self.assertIs(self.learn(cache, "json.tool", **given)[0], False, given)
        self.assertEqual(self.learn(cache, "json.tool"), [True])

    def test_auto_s_imports_take_a_third_of_the_time_beside_workers(self):
        """Rank 0 ends in order, which the helper hears. Rank 1 waits for its imports."""
        base = self.scratch()
        site = sysconfig.get_path("purelib", "posix_user", {"userbase": base})
        self.write(site, "spins.py", "import os, time\nis_helper, end = 'RANK' not in os.environ, time.monotonic() + 0.3\n"
                                     "while is_helper and time.monotonic() < end:\n    pass\nended = time.monotonic()\n")
        self.write(site, "follows.py", "import os, spins, time\nif spins.is_helper:\n    with open(os.environ['IMPORTS'], 'w') as file:\n"
                                       "        print(time.monotonic() - spins.ended, file=file)\n")
        self.write(self.folder, "imports", "")
        script = "import os, spins, follows\nwhile os.environ['RANK'] == '1' and not open(os.environ['IMPORTS']).read():\n    pass\n"
        done = self.run_warm(script, "--nproc-per-node=2", module="auto", PYTHONUSERBASE=base)
        self.assertEqual(done.returncode, 0, done.text)
        with open(self.imports, encoding="ascii") as file:
            self.assertGreater(float(file.read()), 0.6)

    def test_a_kept_list_grows_with_the_program(self):
        cache = self.scratch()
        self.learn(cache, "json.tool")
        self.assertIs(self.learn(cache, "json.tool", "plistlib")[0], False)
        self.assertEqual(self.learn(cache, "json.tool", "plistlib"), [True])

    def test_a_program_that_fails_leaves_no_list(self):
        cache = self.scratch()
        done = self.run_warm("import json.tool\nraise RuntimeError\n", f"--preload-cache={cache}", "--max-restarts=3", "--max-restart-delay=0",
                             module="auto")
        self.assertEqual((done.returncode, os.listdir(cache)), (1, []), done.text)

    def test_a_program_that_fails_leaves_no_list_when_its_next_round_is_late(self):
        """The delay before the last round is longer than the time to the helper's next look."""
        cache = self.scratch()
        done = self.run_warm("import json.tool\nraise RuntimeError\n", f"--preload-cache={cache}", "--max-restarts=6", "--max-restart-delay=11",
                             module="auto")
        self.assertEqual((done.returncode, os.listdir(cache)), (1, []), done.text)

    def test_workers_that_end_at_once_have_told_what_they_had_imported(self):
        """The later import is after a while, since a worker doesn't note each of a fast row of imports."""
        script = ("import os, sys, time\nwarm = 'json.tool' in sys.modules\nimport json.tool\nend = time.monotonic() + 0.1\n"
                  "while time.monotonic() < end:\n    pass\nimport plistlib\nos._exit(not warm)\n")
        done = self.run_warm(script, "--max-restarts=30", "--max-restart-delay=0", module="auto")
        self.assertEqual(done.returncode, 0, done.text)

    def test_workers_that_make_no_step_have_told_after_ten_seconds(self):
        script = ("import os, sys, time\nprint('json.tool' in sys.modules, flush=True)\nimport json.tool\nend = time.monotonic() + 0.1\n"
                  "while time.monotonic() < end:\n    pass\nimport plistlib\n"
                  "while not any(name.endswith('.json') for name in os.listdir(sys.argv[1])):\n    time.sleep(0.01)\nos._exit(0)\n")
        cache = self.scratch()
        for warm in ("False\n", "True\n"):
            done = self.run_warm(script, f"--preload-cache={cache}", module="auto", arguments=(cache,))
            self.assertEqual((done.returncode, done.stdout), (0, warm), done.text)

    def test_a_module_without_a_path_does_not_fail_the_next_import(self):
        """A relative path has none in a folder that was removed."""
        script = ("import importlib.machinery, os, sys, types\nmodule = sys.modules['relative'] = types.ModuleType('relative')\n"
                  "module.__file__, module.__spec__ = 'relative.py', importlib.machinery.ModuleSpec('relative', None)\n"
                  "os.mkdir(sys.argv[1])\nos.chdir(sys.argv[1])\nos.rmdir(sys.argv[1])\nimport plistlib\n"
                  "print({type(each).__name__ for each in sys.meta_path} & {'Watch'})\n")
        done = self.run_warm(script, module="auto", arguments=(os.path.join(self.folder, "removed"),))
        self.assertEqual((done.returncode, done.stdout), (0, "{'Watch'}\n"), done.text)

    def test_a_restart_while_the_helper_imports_is_cold_which_info_alone_says(self):
        """The list has only modules in Python's own folders; one of them is the user's."""
        base, pipe = self.scratch(), os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        self.write(sysconfig.get_path("purelib", "posix_user", {"userbase": base}), "slow.py",
                   f"import os\nif 'RANK' not in os.environ:  # in the helper\n    open({pipe!r}).close()\n")
        done = self.run_warm("import os, sys, slow\nsys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] != '2')\n", "--max-restarts=2",
                             "--max-restart-delay=0", module="auto", PYTHONUSERBASE=base, LOGLEVEL="INFO")
        self.assertEqual(done.returncode, 0, done.text)
        self.assertIn("workers of round 3 run; 0 of 1 began warm, the others not: the helper still imports what the workers had\n", done.stderr)
        self.assertNotIn("--preload", done.stderr)

    def test_restarts_are_right_and_leave_nothing_behind(self):
        n, pipe, told = 30, *(os.path.join(self.folder, name) for name in ("pipe", "told"))
        os.mkfifo(pipe)
        done = self.run_warm(RESTARTED, "--nproc-per-node=2", f"--max-restarts={n}", "--max-restart-delay=0",
                             arguments=(pipe, told, str(n)), PYTHONPATH=f"{self.folder}:{SUPPORT}")
        self.assertEqual(done.returncode, 0, done.text)
        with open(told, encoding="utf-8") as file:
            rounds = [json.loads(line) for line in file]
        self.assertEqual([each["said"] for each in rounds], [[f"{r} True"] * 2 for r in range(n + 1)])
        self.assertEqual(family.growth(rounds), [])

    def test_workers_share_the_helper_s_memory_until_they_write_to_it(self):
        """This also holds after a garbage collection, which would write to all of it."""
        self.write(self.folder, "large.py", "data = [[i] for i in range(500_000)]\n")  # 65 MB
        script = ("import gc, sys\ngc.collect()\nwith open('/proc/self/smaps_rollup') as file:\n"
                  "    print(*(int(line.split()[1]) for line in file if line.startswith(('Rss', 'Private_Dirty'))))\n")
        resident, own = map(int, self.run_warm(script, module="large").stdout.split())
        self.assertGreater(resident, 45_000)
        self.assertLess(own, 20_000)

    def test_the_helper_s_memory_is_a_metric(self):
        path, port = self.write(self.folder, "script.py", "import signal\nprint('runs', flush=True)\nsignal.pause()\n"), harness.free_port()
        process = self.start("--standalone", f"--metrics=127.0.0.1:{port}", "--preload=json", "--no-python", PYTHON, path)
        self.await_line(process, "runs", stream="stdout")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            found = re.search(r"^ddprun_warm_helper_resident_memory_bytes (\d+)$", page.read().decode(), re.M)
        self.assertGreater(int(found[1]), 1_000_000)

    def test_the_next_round_s_workers_are_there_before_it(self):
        done = self.run_warm(AHEAD, "--max-restarts=2", "--max-restart-delay=0")
        self.assertEqual((done.returncode, done.text.count("--preload:")), (0, 0), done.text)
        rounds = [line.split()[1:] for line in done.stdout.splitlines()]
        self.assertEqual([words[:2] for words in rounds], [["0", "True"], ["1", "True"], ["2", "True"]])
        self.assertNotIn(rounds[1][2], rounds[0][3:])
        self.assertIn(rounds[2][2], rounds[1][3:])
        harness.wait_until(lambda: not self.processes(), "all processes of the job have ended")

    def test_the_job_tells_how_its_workers_began(self):
        script = ("import os, sys\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
                  "    os.utime(os.path.join(os.path.dirname(__file__), 'warm_probe.py'), ns=(1, 1))\nsys.exit(3)\n")
        report, events = (os.path.join(self.folder, name) for name in ("report", "events"))
        done = self.run_warm(script, "--max-restarts=1", f"--report={report}", f"--events={events}", LOGLEVEL="INFO")
        why = "the file of an imported module has changed"
        self.assertIn("all workers of round 1 run; 1 of 1 began warm\n", done.stderr)
        self.assertIn(f"all workers of round 2 run; 0 of 1 began warm, the others not: {why}\n", done.stderr)
        self.assertIn(f"  start     cold: {why}\n", done.stderr)
        with open(report, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["first_failure"]["start"], f"cold: {why}")
        with open(events, encoding="utf-8") as file:
            rounds = json.loads(file.readlines()[-1])["ledger"]["rounds"]
        self.assertEqual([(each["num_warm"], each["cold"]) for each in rounds], [(1, ""), (0, why)])
        self.assertGreater(rounds[0]["seconds"]["warming"], 0)
        self.assertEqual(rounds[1]["seconds"]["warming"], 0)

    def test_a_worker_that_can_not_be_warm_says_why(self):
        self.write(self.folder, "sets_rank.py", "import os\nos.environ['RANK'] = '9'\n")
        for module, flags, why in (("sets_rank", (), "a variable that an import has set differs"),
                                   ("warm_probe", ("--numa-binding=exclusive",), "it is bound to CPUs, and OMP_NUM_THREADS is not set")):
            with self.subTest(why):
                done = self.run_warm("import sys\nsys.exit(3)\n", "--nproc-per-node=2", *flags, module=module, OMP_NUM_THREADS="", LOGLEVEL="INFO")
                self.assertIn(f"0 of 2 began warm, the others not: {why}\n", done.stderr)
                self.assertIn(f"  start     cold: {why}\n", done.stderr)

    def test_a_helper_that_is_killed_costs_the_warmth_alone(self):
        script = ("import os, signal, subprocess, sys\nround = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
                  "print('there', 'warm_probe' in sys.modules)\nif round == '0':\n"
                  "    with open(os.environ['IMPORTS']) as file:\n        os.kill(int(file.read()), signal.SIGKILL)\nsys.exit(round != '2')\n")
        done = self.check_second_round_is_cold(script)
        self.assertIn("the helper was ended by SIGKILL", done.stderr)

    def test_a_helper_that_replaces_another_has_its_list(self):
        script = HELPER + ("warm, killed = 'json.tool' in sys.modules, os.path.exists(os.environ['IMPORTS'])\nprint(warm, flush=True)\n"
                           "import json.tool\nif warm and not killed:\n    open(os.environ['IMPORTS'], 'w').close()\n"
                           "    os.kill(helper(), signal.SIGKILL)\nsys.exit(not (warm and killed))\n")
        done = self.run_warm(script, "--max-restarts=200", "--max-restart-delay=0", module="auto")
        self.assertEqual(done.returncode, 0, done.text)
        shown = done.stdout.split()
        self.assertEqual(shown[shown.index("True"):], ["True", "False", "True"])

    def test_a_helper_that_replaces_another_works_a_third_of_the_time_beside_workers(self):
        self.write(self.folder, "spins.py", "import time\nend = time.monotonic() + 0.3\nwhile time.monotonic() < end:\n    pass\nended = time.monotonic()\n")
        self.write(self.folder, "follows.py", "import os, spins, time\nwith open(os.environ['IMPORTS'], 'a') as file:\n"
                                              "    print(time.monotonic() - spins.ended, file=file, flush=True)\n")
        script = HELPER + ("if round == 0:\n    os.kill(helper(), signal.SIGKILL)\n    sys.exit(1)\n"
                           "while open(os.environ['IMPORTS']).read().count('\\n') < 2:\n    pass\n")
        done = self.run_warm(script, "--max-restarts=1", "--max-restart-delay=0", module="spins,follows")
        self.assertEqual(done.returncode, 0, done.text)
        with open(self.imports, encoding="ascii") as file:
            self.assertGreater(float(file.read().split()[1]), 0.6)

    def test_a_round_that_waits_for_a_helper_makes_it_hurry(self):
        """The second round is cold, the third one waits."""
        self.write(self.folder, "spins.py", "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end:\n    pass\n")
        script = HELPER + ("print('spins' in sys.modules, flush=True)\nif round == 0:\n    os.kill(helper(), signal.SIGKILL)\nsys.exit(round != 2)\n")
        done = self.run_warm(script, "--max-restarts=2", "--max-restart-delay=0", "--preload-timeout=5", module="spins,json")
        self.assertEqual((done.returncode, done.stdout.split()), (0, ["True", "False", "True"]), done.text)

    def test_a_helper_s_imports_have_no_time_out_before_a_round_waits_for_them(self):
        """The second round's worker lets the helper finish, which takes it over 6 s at a third of the time."""
        self.write(self.folder, "spins.py", "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end:\n    pass\n")
        script = HELPER + ("import time\nprint('spins' in sys.modules, flush=True)\nif round == 0:\n    os.kill(helper(), signal.SIGKILL)\n"
                           "end = time.monotonic() + 20\nwhile round == 1 and not helper() and time.monotonic() < end:\n    pass\nsys.exit(round != 2)\n")
        done = self.run_warm(script, "--max-restarts=2", "--max-restart-delay=0", "--preload-timeout=5", module="spins,json")
        self.assertEqual((done.returncode, done.stdout.split()), (0, ["True", "False", "True"]), done.text)

    def test_a_device_s_context_is_made_after_the_fork_also_in_a_restart_after_its_error(self):
        """A module like torch.cuda knows in which process its context was made."""
        self.write(self.folder, "torch/__init__.py", "")
        self.write(self.folder, "torch/cuda.py", "import os\ncontext = None\ndef is_initialized():\n    return context is not None\ndef init():\n"
                                                 "    global context\n    context = context or os.getpid()\n")
        done = self.run_warm("import os, sys\nwarm = 'torch.cuda' in sys.modules\nimport torch.cuda\ntorch.cuda.init()\n"
                             "print(warm, torch.cuda.context == os.getpid(), flush=True)\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
                             "    raise RuntimeError('CUDA error: device-side assert triggered')\n", "--max-restarts=1", module="torch.cuda")
        self.assertEqual((done.returncode, done.stdout), (0, "True True\nTrue True\n"), done.text)

    def test_without_the_flag_there_is_no_helper_and_nothing_of_it_in_a_worker(self):
        """The processes with the job's variables are ddprun and the worker. A helper is one, and so is a warden that it forks."""
        script = ("import os, sys\ndef content(path):\n    try:\n        with open(path, 'rb') as file:\n            return file.read()\n"
                  "    except OSError:\n        return b''\n"
                  "family = [pid for pid in filter(str.isdigit, os.listdir('/proc')) if os.fsencode(os.environ['IMPORTS']) in content(f'/proc/{pid}/environ')]\n"
                  "sockets = [n for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n) and 'socket' in os.readlink('/proc/self/fd/' + n)]\n"
                  "print(len(family), len(sockets), 'Watch' in [type(each).__name__ for each in sys.meta_path])\n")
        self.assertEqual([self.run_warm(script, module=module).stdout for module in (None, "auto")], ["2 0 False\n", "4 1 True\n"])

    def test_nothing_is_left_when_it_ends_or_is_killed(self):
        script = "import sys, time\nprint('runs', flush=True)\ntime.sleep(600)\n"
        path = self.write(self.folder, "script.py", script)
        for end in (signal.SIGTERM, signal.SIGKILL):
            process = self.start("--standalone", "--nproc-per-node=2", "--preload=warm_probe", "--no-python", PYTHON, "-u", path,
                                 PYTHONPATH=self.folder, IMPORTS=self.imports)
            for _ in range(2):
                self.await_line(process, "runs", stream="stdout")
            harness.wait_until(lambda: len(self.processes()) == 9, "the next round's warden, workers and who is between wait, too")
            process.send_signal(end)
            self.finish(process)
            harness.wait_until(lambda: not self.processes(), "all processes of the job have ended")

    def processes(self):
        """Returns the processes with this test's folder in their environment."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if os.fsencode(self.imports) in file.read():
                        found.append(pid)
            except OSError:
                pass
        return found


if __name__ == "__main__":
    harness.runner.main()
