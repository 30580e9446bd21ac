#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests workers' output: log tree, console, slow readers, full disks, terminals."""
import os
import pathlib
import pty
import re
import subprocess
import sys

import harness

# Command lines, and torchrun 2.15's results: the files below the log directory, and the console. Rank R of two workers
# prints "out R apple" on stdout and "err R pear" on stderr. Names of files: R/o and R/e; ".": there are none.
WORKER = 'echo "out $RANK apple"; echo "err $RANK pear" >&2'
OUT, ERR = "out {} apple\n", "err {} pear\n"
RAW_OUT, RAW_ERR = ["out 0 apple", "out 1 apple"], ["err 0 pear", "err 1 pear"]
TEE_OUT, TEE_ERR = ["[default0]:out 0 apple", "[default1]:out 1 apple"], ["[default0]:err 0 pear", "[default1]:err 1 pear"]
ALL = "0/e 0/o 1/e 1/o"
CASES = [
    ([], "", RAW_OUT, RAW_ERR),
    (["-r", "3"], ALL, [], []),
    (["--redirects=1"], "0/o 1/o", [], RAW_ERR),
    (["-r", "0:1,1:2"], "0/o 1/e", RAW_OUT[1:], RAW_ERR[:1]),
    (["-t", "3"], ALL, TEE_OUT, TEE_ERR),
    (["--tee", "0:3"], "0/e 0/o", TEE_OUT[:1] + RAW_OUT[1:], TEE_ERR[:1] + RAW_ERR[1:]),
    (["-t", "1", "-r", "2"], ALL, TEE_OUT, []),
    (["-r", "5:3"], "", RAW_OUT, RAW_ERR),
    (["--local-ranks-filter", "1"], "", RAW_OUT[1:], RAW_ERR[1:]),
    (["--local_ranks_filter=0", "-t", "3"], ALL, TEE_OUT[:1], TEE_ERR[:1]),
    (["--ranks-filter=0", "-t", "3"], ALL, TEE_OUT[:1], TEE_ERR[:1]),
    (["--log-line-prefix-template", "X${rank}: "], "", RAW_OUT, RAW_ERR),
    (["-t", "3", "--role=tr", "--log-line-prefix-template=<${role_name}|${local_rank}|${rank}|${foo}> "], ALL,
     ["<tr|0|0|${foo}> out 0 apple", "<tr|1|1|${foo}> out 1 apple"], ["<tr|0|0|${foo}> err 0 pear", "<tr|1|1|${foo}> err 1 pear"]),
    (["-t", "3", "--duplicate-stdout-filters", "apple,zzz", "--duplicate-stderr-filters", "1 pe"], ALL + " fe fo", TEE_OUT, TEE_ERR),
    (["--duplicate-stdout-filters", "apple"], "", RAW_OUT, RAW_ERR),
]
NAMES = {"o": "stdout.log", "e": "stderr.log"}


class Output(harness.Case):
    def torchrun(self):
        """Runs ddprun under the name torchrun."""
        link = os.path.join(self.scratch(), "torchrun")
        os.symlink(os.path.realpath(harness.DDPRUN), link)
        return link

    def run_program(self, argv, timeout=60, **options):
        return subprocess.run(argv, env=harness.environment(), text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def tree(self, logs):
        """Returns file → text, below the only attempt of the only run. Directories are "<local rank>/"."""
        runs = os.listdir(logs)
        self.assertEqual(len(runs), 1, runs)
        self.assertRegex(runs[0], r"^job_[a-z0-9_]{8}$")
        self.assertEqual(sorted(os.listdir(os.path.join(logs, runs[0]))), ["attempt_0", f"events.{os.uname().nodename}.jsonl"])
        top = os.path.join(logs, runs[0], "attempt_0")
        found = {}
        for path, folders, files in os.walk(top):
            name = os.path.relpath(path, top)
            found.update({folder + "/": "" for folder in folders})
            for file in files:
                with open(os.path.join(path, file)) as f:
                    found[os.path.normpath(os.path.join(name, file))] = f.read()
        return found

    def expected_tree(self, files):
        expected = {"0/": "", "1/": ""}
        for name in files.split():
            if name == "fo":
                expected["filtered_stdout.log"] = sorted(TEE_OUT)
            elif name == "fe":
                expected["filtered_stderr.log"] = TEE_ERR[1:]
            else:
                rank, stream = name.split("/")
                expected[f"{rank}/{NAMES[stream]}"] = (OUT if stream == "o" else ERR).format(rank)
        return expected

    def test_torchruns_command_lines_leave_torchruns_files_and_console(self):
        torchrun = self.torchrun()
        for flags, files, out, err in CASES:
            with self.subTest(flags=flags):
                logs = os.path.join(self.scratch(), "a", "logs")
                done = self.run_program([torchrun, "--standalone", "--rdzv-id=job", "--nproc_per_node=2", "--log-dir", logs,
                                         *flags, "--no-python", "sh", "-c", WORKER])
                self.assertEqual(done.returncode, 0, done.stderr)
                lines = [line for line in done.stderr.splitlines() if not line.startswith("[ddprun]")]
                self.assertEqual((sorted(done.stdout.splitlines()), sorted(lines)), (sorted(out), sorted(err)))
                found = self.tree(logs)
                for name in list(found):
                    if name.startswith("filtered"):
                        found[name] = sorted(found[name].splitlines())
                expected = self.expected_tree(files)
                if "--duplicate-stdout-filters" in flags and "-t" not in flags:
                    expected["filtered_stdout.log"] = []
                self.assertEqual(found, expected)

    def test_each_attempt_has_its_directory_and_its_error_files_stay(self):
        logs = self.scratch()
        script = ('echo "{\\"message\\": {\\"message\\": \\"ValueError: bad\\"}}" > "$TORCHELASTIC_ERROR_FILE"; echo round $DDPRUN_ROUND; '
                  'exit 1')
        done = self.ddprun("--standalone", "--max-restarts=1", f"--log-dir={logs}", "-t", "3", "sh", "-c", script)
        self.assertEqual(done.returncode, 1, done.text)
        self.assertIn("ValueError: bad", done.stderr)
        run = os.path.join(logs, os.listdir(logs)[0])
        for attempt in (0, 1):
            folder = os.path.join(run, f"attempt_{attempt}", "0")
            self.assertEqual(sorted(os.listdir(folder)), ["error.json", "stderr.log", "stdout.log"])
            with open(os.path.join(folder, "stdout.log")) as f:
                self.assertEqual(f.read(), f"round {attempt + 1}\n")

    def test_a_log_folder_that_was_moved_away_keeps_its_files_and_its_place_gets_none(self):
        top = pathlib.Path(self.scratch())
        logs, precious = top / "logs", top / "precious"
        precious.write_text("precious")
        script = ('[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exec echo later\n'
                  'run=$(dirname $(dirname $(dirname "$TORCHELASTIC_ERROR_FILE")))\n'
                  f"mv $run {top}/aside && mkdir -p $run/attempt_1/0 && ln -s {precious} $run/attempt_1/0/stdout.log\n"
                  "echo first; exit 3\n")
        done = self.ddprun("--standalone", "--max-restarts=1", f"--log-dir={logs}", "-t", "3", "sh", "-c", script)
        self.assertEqual(done.returncode, 0, done.text)
        self.assertEqual(precious.read_text(), "precious")
        old, new = re.search(r"(\S+) was moved or removed: log files are in (\S+) from now on", done.stderr).groups()
        self.assertNotEqual(old, new)
        self.assertEqual((top / "aside/attempt_0/0/stdout.log").read_text(), "first\n")
        self.assertEqual(pathlib.Path(new, "attempt_1/0/stdout.log").read_text(), "later\n")

    def test_redirected_output_is_kept_without_log_dir_and_said_where(self):
        temporary = self.scratch()
        done = self.ddprun("--standalone", "-r", "1", "echo", "kept", TMPDIR=temporary)
        self.assertEqual(done.stdout, "", done.text)
        where = re.search(r"log files are in (\S+);", done.stderr)
        self.assertTrue(where, done.text)
        self.assertEqual(subprocess.run(["grep", "-rh", "kept", where[1]], capture_output=True, text=True).stdout, "kept\n")
        # With tee the lines are shown, so no log needs to be kept.
        done = self.ddprun("--standalone", "-t", "3", "echo", "shown", TMPDIR=self.scratch())
        self.assertEqual((done.stdout, done.stderr), ("[default0]:shown\n", ""))

    def test_log_dir_dev_null(self):
        done = self.ddprun("--standalone", "--log-dir=/dev/null", "-t", "3", "-r", "3", "echo", "raw")
        self.assertEqual((done.returncode, done.stdout), (0, "raw\n"), done.text)

    def test_the_prefix_by_flag_and_by_environment(self):
        two = ["--standalone", "--nproc_per_node=2"]
        done = self.ddprun(*two, "--log-line-prefix-template=", "--ranks-filter=1", "echo", "x")
        self.assertEqual(done.stdout, "x\n", done.text)
        done = self.ddprun(*two, "--log-line-prefix-template=${node_rank}/$local_rank ${time} ", "--ranks-filter=1", "echo", "x")
        self.assertRegex(done.stdout, r"^0/1 \d\d:\d\d:\d\d x\n$", done.text)
        for name in ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "PET_LOG_LINE_PREFIX_TEMPLATE"):
            done = self.ddprun(*two, "--ranks-filter=1", "echo", "x", **{name: "E${rank}: "})
            self.assertEqual(done.stdout, "E1: x\n", done.text)

    def test_rotation(self):
        logs = self.scratch()
        self.assertEqual(self.ddprun("--standalone", f"--log-dir={logs}", "-r1", "--log-max-size=100K", "--log-keep=2",
                                     "seq", "100000").returncode, 0)
        folder = os.path.join(logs, os.listdir(logs)[0], "attempt_0", "0")
        self.assertEqual(sorted(os.listdir(folder)), ["stdout.log", "stdout.log.1", "stdout.log.2"])
        text = ""
        for name in ("stdout.log.2", "stdout.log.1", "stdout.log"):
            with open(os.path.join(folder, name)) as f:
                part = f.read()
            self.assertLessEqual(len(part), 100 << 10)
            text += part
        numbers = [int(line) for line in text.splitlines()]
        self.assertEqual(numbers, list(range(numbers[0], 100001)))

    def test_8_noisy_workers_lose_nothing_and_mix_nothing(self):
        # Each worker writes a million lines of 100 bytes as fast as it can, in blocks that end anywhere.
        program = ('import os\nr = os.environ["RANK"]\n'
                   'data = "".join(f"{r} {i:09d} {chr(97 + i % 26) * 86}\\n" for i in range(125000)).encode()\n'
                   'while data: data = data[os.write(1, data[:77777]):]\n')
        logs = self.scratch()
        script = self.write(self.scratch(), "noisy.py", program)
        output = os.path.join(self.scratch(), "out")
        with open(output, "wb") as out:
            done = subprocess.run([harness.DDPRUN, "--standalone", "--nproc_per_node=8", f"--log-dir={logs}", "-t3", script],
                                  stdout=out, stderr=subprocess.PIPE, env=harness.environment(), timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        next_line = [0] * 8
        with open(output) as lines:
            for line in lines:
                rank = int(line[8])
                i = next_line[rank]
                next_line[rank] += 1
                if line != f"[default{rank}]:{rank} {i:09d} {chr(97 + i % 26) * 86}\n":
                    self.fail(f"line {i} of rank {rank}: {line!r}")
        self.assertEqual(next_line, [125000] * 8)
        folder = os.path.join(logs, os.listdir(logs)[0], "attempt_0")
        for rank in range(8):
            self.assertEqual(os.path.getsize(os.path.join(folder, str(rank), "stdout.log")), 125000 * 99)

    def test_binary_output_and_a_line_of_10_megabytes(self):
        program = ('import os, sys\nr = int(os.environ["RANK"])\n'
                   'blob = bytes(range(256)) * 40000 if r == 0 else b"x" * 10_000_000\n'
                   'sys.stdout.buffer.write(blob.replace(b"\\n", b"") + b"\\n")\n')
        script = self.write(self.scratch(), "blob.py", program)
        done = subprocess.run([harness.DDPRUN, "--standalone", "--nproc_per_node=2", script], capture_output=True,
                              env=harness.environment(), timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.rstrip(b"\n").split(b"\n")),
                         [b"[0] " + (bytes(range(256)) * 40000).replace(b"\n", b""), b"[1] " + b"x" * 10_000_000])

    def test_a_reader_that_stands_still(self):
        for policy, said in (("block", "nobody has read stdout for 5 s"), ("drop", "done\n[1] done\n")):
            with self.subTest(policy=policy):
                errors = os.path.join(self.scratch(), "err")
                with open(errors, "w") as err:
                    process = subprocess.Popen([harness.DDPRUN, "--standalone", "--nproc_per_node=2", f"--slow-reader={policy}", "sh", "-c",
                                                'seq 1000000; [ $RANK = 0 ] || sleep 1; echo done >&2'], env=harness.environment(),
                                               text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err)
                self.addCleanup(process.kill)

                def text():
                    with open(errors) as file:
                        return file.read()
                harness.wait_until(lambda: said in text(), said)
                lines = process.communicate(timeout=60)[0].splitlines()
                self.assertEqual(process.returncode, 0, text())
                if policy == "block":
                    self.assertEqual(len(lines), 2000000)
                    self.assertRegex(text(), r"workers that wrote to stdout waited \d+ s for its reader in all")
                else:
                    self.assertIn("--slow-reader=drop", text())
                    lost = int(re.search(r"(\d+) lines? \(\d+ bytes\) of the workers' output left out on stdout", text())[1])
                    self.assertEqual(len(lines) + lost, 2000000)
                    self.assertTrue(all(re.fullmatch(r"\[[01]\] \d+", line) for line in lines))

    def with_stdin(self, argv, text):
        return subprocess.run(argv, input=text, env=harness.environment(), text=True, timeout=60, capture_output=True)

    def test_the_rank_that_is_asked_for_has_stdin(self):
        worker = ["--standalone", "--nproc_per_node=3", "--stdin-rank=1", "--no-python", "sh", "-c", 'read line; echo "$RANK: $line"']
        for program, prefix in ((harness.DDPRUN, True), (self.torchrun(), False)):
            done = self.with_stdin([program, *worker], "typed\n")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(done.stdout.splitlines()),
                             [f"[{rank}] " * prefix + f"{rank}: {'typed' * (rank == 1)}" for rank in range(3)])

    def test_a_debugger_in_a_rank_without_stdin_is_told_how_to_get_it(self):
        for call in ("breakpoint(); print()", "input()"):
            code = f"import os\nif os.environ['RANK'] == '1': {call}"
            argv = [harness.DDPRUN, "--standalone", "--nproc-per-node=2", sys.executable, "-c", code]
            done = self.with_stdin(argv, "continue\n")
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stderr, r"\n  note +it asked for input .*, but this rank has no stdin; --stdin-rank=1 gives it ddprun's\n")
            self.assertEqual(self.with_stdin([argv[0], "--stdin-rank=1", *argv[1:]], "continue\n").returncode, 0)

    def test_a_missing_module_is_told_with_the_python_that_lacks_it(self):
        done = self.ddprun("--standalone", sys.executable, "-c", "import ddprun_no_such_module", code=1)
        self.assertIn(f"  note      it was run by {sys.executable}; activate the environment", done.stderr)
        done = self.ddprun("--standalone", sys.executable, "-m", "ddprun_no_such_module", code=1)
        self.assertIn(f"  note      it was run by {sys.executable}; activate the environment", done.stderr)

    def test_an_exception_that_later_output_hides_is_in_the_report(self):
        # As LibTorch's bindings do, it writes more lines at Python's end.
        script = "import atexit, sys\natexit.register(lambda: sys.stderr.write('leaked\\n' * 30))\nraise ValueError('bad sample in shard 7')"
        done = self.ddprun("--standalone", f"--log-dir={self.scratch()}", "-t3", sys.executable, "-c", script, code=1)
        self.assertIn("\n  note      its last exception: ValueError: bad sample in shard 7\n", done.stderr)
        self.assertNotIn("\n  file  ", done.stderr)  # the program left no error file
        self.assertRegex(done.stderr, r"  traceback of its last exception:\n    \| Traceback .*\n(    \| .*\n)+    \| ValueError: bad")

    def test_a_log_directory_alone_has_error_files_only_and_that_is_said(self):
        said = "-t 3 or -r 3 adds the workers' output"
        flag = f"--log-dir={self.scratch()}"
        self.assertIn(f"{flag} holds only error files; {said}", self.ddprun("--standalone", flag, "true", code=0).stderr)
        self.assertNotIn(said, self.ddprun("--standalone", flag, "-t3", "true", code=0).stderr)

    def test_a_disk_that_is_full_before_the_start_is_refused(self):
        done = self.in_small_disk('head -c 1000000 /dev/zero > $DISK/x 2>/dev/null; '
                                  '$DDPRUN --standalone --log-dir=$DISK/logs -t3 touch $DISK/../ran')
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"^ddprun: --log-dir=\S+ can't be written to: No space left on device\n$")

    def test_a_read_only_disk_is_refused(self):
        done = self.in_small_disk('mount -o remount,ro $DISK && $DDPRUN --standalone --log-dir=$DISK/logs -t3 true')
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"^ddprun: --log-dir=\S+ can't be made: Read-only file system\n$")

    def test_a_disk_that_gets_full_costs_the_workers_nothing(self):
        done = self.in_small_disk('$DDPRUN --standalone --nproc-per-node=2 --log-dir=$DISK/logs -t3 seq 100000')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 200000)
        self.assertEqual(done.stderr.count("No space left on device"), 1, done.stderr)
        lost = re.search(r"(\d+) bytes of the workers' output could not be written to their log files", done.stderr)
        self.assertTrue(lost, done.stderr)
        self.assertGreater(int(lost[1]), 2 * 588895 - (256 << 10) - 1)


class Terminal(harness.Case):
    """Tests on a pseudo-terminal."""

    def in_terminal(self, argv, **more):
        """All bytes that the terminal shows, as text with \
         line ends, and the exit status."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(argv[0], argv, harness.environment(TERM="xterm", **more))
        shown = b""
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # EIO: the last process has gone
                break
            if not piece:
                break
            shown += piece
        os.close(terminal)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return shown.decode(errors="replace").replace("\r\n", "\n"), status

    def test_workers_have_the_terminal_under_the_name_torchrun(self):
        link = os.path.join(self.scratch(), "torchrun")
        os.symlink(os.path.realpath(harness.DDPRUN), link)
        shown, status = self.in_terminal([link, "--standalone", "--nproc_per_node=2", "--no-python", "sh", "-c",
                                          'test -t 0 && test -t 1 && test -t 2 && echo "has it"'])
        self.assertEqual((shown.count("has it\n"), status), (2, 0), shown)
        self.assertNotIn("[0]", shown)

    def test_a_node_without_rank_0_says_which_ranks_it_runs(self):
        line = ["--nnodes=2", "--nproc-per-node=2", f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}", "true"]
        first = subprocess.Popen([harness.DDPRUN, "--node-rank=0", *line], env=harness.environment(),
                                 stderr=subprocess.PIPE, text=True)
        shown, status = self.in_terminal([harness.DDPRUN, "--node-rank=1", *line])
        self.assertEqual((first.communicate(timeout=30)[1].count("this node runs"), status), (0, 0), shown)
        self.assertIn("this node runs ranks 2, 3 of 4; rank 0 is on 127.0.0.1", shown)

    def test_prefixes_have_colours_unless_nobody_wants_them(self):
        argv = [harness.DDPRUN, "--standalone", "--nproc_per_node=2", "echo", "x"]
        shown, _ = self.in_terminal(argv)
        self.assertIn("\x1b[36m[0] \x1b[0mx\n", shown)
        self.assertIn("\x1b[33m[1] \x1b[0mx\n", shown)
        shown, _ = self.in_terminal(argv, NO_COLOR="1")
        self.assertIn("[0] x\n", shown)
        self.assertNotIn("\x1b[", shown)

    def test_a_progress_bar_is_shown_as_it_comes(self):
        shown, _ = self.in_terminal([harness.DDPRUN, "--standalone", "--nproc_per_node=2", "sh", "-c",
                                     '[ $RANK = 1 ] || for i in 10 20; do printf "\\r$i%%"; sleep 0.3; done'], NO_COLOR="1")
        self.assertIn("[0] 10%\r\x1b[K[0] 20%", shown)

    def test_a_prompt_of_the_rank_with_stdin_is_shown(self):
        process, terminal = self.on_terminal("--standalone", "--nproc_per_node=2", "--stdin-rank=1", "sh", "-c",
                                             '[ $RANK = 0 ] || { printf "name? "; read name; echo "hello $name"; }')
        self.await_shown(terminal, b"[1] name? ")
        os.write(terminal, b"you\n")
        self.await_shown(terminal, b"hello you")
        self.assertEqual(process.wait(harness.TIMEOUT), 0)

    def test_a_job_in_the_background_leaves_the_terminal_to_the_shell(self):
        pid, terminal = pty.fork()
        if pid == 0:  # plays the shell: its job is in another process group, and it reads the typed text itself
            job = subprocess.Popen([harness.DDPRUN, "--standalone", "cat"], env=harness.environment(), preexec_fn=os.setpgrp)
            status = job.wait(30)
            os.write(1, b"job ended with %d\n" % status)
            os._exit(0 if sys.stdin.readline() == "typed\n" else 1)
        os.write(terminal, b"typed\n")
        shown = b""
        while True:
            try:
                shown += os.read(terminal, 4096)
            except OSError:
                break
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0, shown)
        self.assertIn(b"job ended with 0", shown)
        self.assertEqual(shown.count(b"typed"), 1, shown)  # the terminal's echo, no output of cat


if __name__ == "__main__":
    harness.main()
