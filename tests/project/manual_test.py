# SPDX-License-Identifier: Apache-2.0
"""Tests manual pages and completions with man(1)'s formatter and the shells themselves."""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import runner  # noqa: E402

BIN = os.environ["DDPRUN_BIN_DIR"]
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
PAGES = {("ddprun", "--print-man=ddprun"), ("ddprun", "--print-man=ddprun.toml"),
         ("ddprund", "--print-man"), ("ddprun-agent", "--print-man"), ("ddprunctl", "--print-man")}


def output(*argv, **more):
    return subprocess.run(argv, check=True, text=True, capture_output=True, timeout=60, **more).stdout


def program(name):
    return os.path.join(BIN, name)


def need(case, tool):
    if not shutil.which(tool):
        case.skipTest(f"{tool} is not installed")


class ManualPages(unittest.TestCase):
    def test_a_page_has_the_flags_of_the_help_and_no_other(self):
        for name, flag in PAGES - {("ddprun", "--print-man=ddprun.toml")}:
            text = output(program(name), "--help")
            if name == "ddprunctl":
                for command in re.findall(r"^  ([a-z][a-z-]+) ", text[text.index("Subcommands:"):], flags=re.M):
                    text += output(program(name), command, "--help")
            helped = set(re.findall(r"^ +(?:-\w, ?)?(--[a-z-]+)", text, flags=re.M))
            page = output(program(name), flag).replace(r"\-", "-")
            shown = set(re.findall(r"^\.B (?:-\w, )?(--[a-z-]+)", page, flags=re.M))
            self.assertGreater(len(helped), 3, name)
            self.assertEqual(shown, helped, name)

    def test_the_page_of_the_file_has_each_option_that_it_can_give(self):
        page = output(program("ddprun"), "--print-man=ddprun.toml").replace(r"\-", "-")
        keys = set(re.findall(r"^\.B (\w+) = ", page, flags=re.M)) - {"hosts"}
        shown = output(program("ddprun"), "--show-config", env={"HOME": "/nonexistent"})
        known = set(re.findall(r"^#?(\w+) = ", shown, flags=re.M))
        self.assertEqual(keys, known)

    def test_a_page_has_the_exit_codes_of_its_program(self):
        with open(os.path.join(SOURCE, "docs/exit-codes.md"), encoding="utf-8") as file:
            codes = set(re.findall(r"^\| (\d+) \| `k", file.read(), flags=re.M))
        self.assertIn("74", codes)
        of_a_service = {"0", "2", "70", "74"}
        for name, wanted in (("ddprun", codes), ("ddprund", of_a_service), ("ddprun-agent", of_a_service),
                             ("ddprunctl", of_a_service | {"69"})):
            page = output(program(name), "--print-man=ddprun" if name == "ddprun" else "--print-man")
            listed = page[page.upper().index(".SH EXIT STATUS"):page.upper().index(".SH SEE ALSO")]
            self.assertLessEqual(wanted, set(re.findall(r"^ ?(\d+)\b", listed, flags=re.M)), name)

    def test_formatters_find_nothing_wrong(self):
        need(self, "mandoc")
        for name, flag in sorted(PAGES):
            done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning"], text=True, capture_output=True,
                                  input=output(program(name), flag), timeout=60)
            found = [line for line in (done.stdout + done.stderr).splitlines() if "missing date" not in line]
            self.assertEqual(found, [], f"{name} {flag}")

    def test_an_unknown_page_or_shell_is_refused(self):
        for flag in ("--print-man=ls", "--print-completion=csh"):
            done = subprocess.run([program("ddprun"), flag], text=True, capture_output=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)


class Completions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = folder.name
        for name in ("alpha.py", "beta.toml"):
            open(os.path.join(self.directory, name), "w").close()

    def script(self, shell, *names):
        """Writes the completions of ddprun, and of `names`."""
        path = os.path.join(self.directory, "." + shell)
        with open(path, "w") as file:
            for name in ("ddprun", *names):
                file.write(output(program(name), f"--print-completion={shell}"))
        return path

    @staticmethod
    def others():
        """Returns the other programs with completions; train only if it is built."""
        names = ["ddprunctl", "ddprund", "ddprun-agent", "train"]
        return [name for name in names if os.path.exists(program(name))]

    def check(self, complete):
        """Checks completions. `complete(line)` returns the words that the shell offers at the line's end."""
        self.assertEqual(complete("ddprun --max-rest"), {"--max-restarts", "--max-restart-delay"})
        self.assertEqual(complete("ddprun --nnodes 2 --standal"), {"--standalone"})
        self.assertEqual(complete("ddprun --on-join w"), {"wait"})
        self.assertEqual(complete("ddprun --config bet"), {"beta.toml"})
        self.assertEqual(complete("ddprun -m --nnodes 2 alp"), {"alpha.py"})
        self.assertEqual(complete("ddprun --nnodes 2 alpha.py bet"), {"beta.toml"})
        self.assertEqual(complete("ddprun alpha.py --max-rest"), set())
        self.assertEqual(complete("ddprun --nproc_"), {"--nproc_per_node"})
        self.assertEqual(complete("ddprun --nproc_per_node 2 --on_jo"), {"--on_join"})
        self.assertEqual(complete("ddprunctl doc"), {"doctor"})
        self.assertEqual(complete("ddprunctl doctor --ti"), {"--tier", "--timeout"})
        self.assertEqual(complete("ddprunctl doctor --tier st"), {"standard"})
        self.assertEqual(complete("ddprunctl submit --dry"), {"--dry-run"})
        self.assertEqual(complete("ddprunctl jobs --dry"), set())
        self.assertEqual(complete("ddprunctl submit bet"), {"beta.toml"})
        self.assertEqual(complete("ddprund --durability di"), {"disk"})
        self.assertEqual(complete("ddprund --stat"), {"--state-dir"})
        self.assertEqual(complete("ddprun-agent --slots a"), {"auto"})
        if "train" in self.others():
            self.assertEqual(complete("train --schedule cos"), {"cosine"})

    def test_bash(self):
        need(self, "bash")
        path = self.script("bash", *self.others())

        def complete(line):
            words = line.split()
            code = (f"source {path}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
                    "compopt() { [ \"$1\" != -o ] || [ \"$2\" != default ] || "
                    "COMPREPLY=($(compgen -f -- \"${COMP_WORDS[COMP_CWORD]}\")); }; "
                    "_" + words[0] + "; printf '%s\\n' \"${COMPREPLY[@]}\"")
            return set(output("bash", "--norc", "-c", code, cwd=self.directory).split())

        self.check(complete)

    def test_bash_takes_a_value_behind_an_equals_sign(self):
        need(self, "bash")
        code = (f"source {self.script('bash')}; COMP_WORDS=(ddprun --hang-action = rep); COMP_CWORD=3; _ddprun; "
                "echo ${COMPREPLY[@]}")
        self.assertEqual(output("bash", "--norc", "-c", code), "report\n")

    def test_fish(self):
        need(self, "fish")
        path = self.script("fish", *self.others())

        def complete(line):
            lines = output("fish", "--no-config", "-c", f"source {path}; complete -C '{line}'", cwd=self.directory,
                           env={**os.environ, "HOME": self.directory})
            return {each.split("\t")[0] for each in lines.splitlines()}

        self.check(complete)

    def test_zsh(self):
        """zsh runs in a terminal, because it completes nowhere else."""
        need(self, "zsh")
        path = self.script("zsh", *self.others())
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.directory)
            os.execve(shutil.which("zsh"), ["zsh", "-f", "-i"],
                      {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": self.directory, "COLUMNS": "200"})
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.close, terminal)
        self.addCleanup(os.kill, pid, 9)

        def read_until(mark):
            text, end = "", time.monotonic() + 20
            while mark not in text:
                self.assertTrue(select.select([terminal], [], [], max(0, end - time.monotonic()))[0],
                                f"not {mark!r} in {text!r}")
                text += os.read(terminal, 65536).decode(errors="replace")
            return text

        os.write(terminal, f"PS1='%%'; unsetopt zle_bracketed_paste; setopt no_always_last_prompt; autoload -U "
                           f"compinit; compinit -u -D; source {path}; compdef _ddprun ddprun; echo rea''dy\n".encode())
        read_until("ready")
        for typed, completed in (("ddprun --standal\t", "ddprun --standalone "),
                                 ("ddprun --on-join=re\t", "--on-join=restart"),
                                 ("ddprun --nproc_\t", "--nproc_per_node"),
                                 ("ddprun --nproc_per_node 2 bet\t", "2 beta.toml"),
                                 ("ddprunctl doc\t", "ddprunctl doctor"),
                                 ("ddprunctl doctor --tier=st\t", "--tier=standard"),
                                 ("ddprunctl submit bet\t", "submit beta.toml"),
                                 ("ddprund --durability=di\t", "--durability=disk"),
                                 ("ddprun-agent --slots=a\t", "--slots=auto"),
                                 ("ddprun --nnodes 2 alp\t", "alpha.py"),
                                 ("ddprun --nnodes 2 alpha.py bet\t", "beta.toml")):
            os.write(terminal, typed.encode())
            read_until(completed)
            os.write(terminal, b"\x15")  # Ctrl-U deletes the line


if __name__ == "__main__":
    runner.main()
