#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `ddprunctl debug`: debugpy in one rank of a real job. The test plays the editor."""
import importlib.util
import json
import os
import shutil
import socket
import sys
import sysconfig
import unittest
import venv

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launcher"))
import harness  # noqa: E402
import files  # noqa: E402  (harness says where it lies)
from editor import Editor  # noqa: E402
from ports import free_port  # noqa: E402

WORKER = """
import os, sys, time
rank = int(os.environ["RANK"])

def step(number):
    time.sleep(0.02)
    zeros.read(1)  # by this ddprun sees that the rank goes on
    return number + 1

zeros = open("/dev/zero", "rb", 0)
print("rank", rank, "is there", flush=True)
number = 0
while not os.path.exists(sys.argv[1]):
    number = step(number)
print("rank", rank, "has ended by itself", flush=True)
"""
STRANGER = 65534  # nobody
HAS_DEBUGGER = shutil.which("gdb") and importlib.util.find_spec("debugpy")
BREAKPOINT_LINE = WORKER.splitlines().index("    return number + 1") + 1


class Debug(harness.Case):
    def job(self, *command, endpoint=None, flags=(), **more):
        """Starts two workers. When both run, returns the job, its rendezvous, and the file that ends them."""
        home = self.scratch()
        endpoint = endpoint or f"127.0.0.1:{free_port()}"
        end = os.path.join(home, "end")
        program = files.write(home, "train.py", WORKER)
        job = self.start("--nproc_per_node=2", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job", *flags,
                         *(command or (sys.executable, program, end)), **more)
        for _ in range(2):
            self.await_line(job, "is there", stream="stdout")
        return job, endpoint, program, end

    def debug(self, endpoint, *args, **more):
        return self.ddprunctl("debug", f"--rdzv-endpoint={endpoint}", *args, **more)

    def edited(self, *flags):
        """Starts a job, in which an editor stops rank 1 at the breakpoint. Returns the job, the editor, its port, and the
        file that ends the workers."""
        job, endpoint, program, end = self.job(flags=flags)
        port = free_port()
        done = self.debug(endpoint, "job", "1", f"--port={port}", code=0)
        self.assertIn(f"debugpy listens on 127.0.0.1:{port}", done.stdout)
        self.assertIn("every user of this machine", done.stderr)
        editor = Editor(port)
        self.addCleanup(editor.close)
        editor.attach({"source": {"path": program}, "breakpoints": [{"line": BREAKPOINT_LINE}]})
        return job, editor, port, end

    @unittest.skipUnless(HAS_DEBUGGER, "no gdb or debugpy: scripts/setup.sh full")
    def test_an_editor_stops_one_rank_reads_its_variables_and_lets_it_go(self):
        job, editor, port, end = self.edited()
        thread = editor.event("stopped")["threadId"]
        frame = editor.answer(editor.send("stackTrace", threadId=thread))["stackFrames"][0]
        self.assertEqual((frame["name"], frame["line"]), ("step", BREAKPOINT_LINE))
        self.assertEqual(editor.answer(editor.send("evaluate", expression="rank", frameId=frame["id"]))["result"], "1")
        editor.answer(editor.send("disconnect"))
        files.write(os.path.dirname(end), "end", "")
        self.assertIn("rank 1 has ended by itself", self.finish(job, code=0).text)
        harness.wait_until(lambda: self.is_free(port), "the debugger has ended with the job")

    @unittest.skipUnless(HAS_DEBUGGER, "no gdb or debugpy: scripts/setup.sh full")
    def test_a_second_debugger_in_a_rank_is_refused_because_of_the_first(self):
        job, endpoint, _, end = self.job()
        first = free_port()
        self.debug(endpoint, "job", "1", f"--port={first}", code=0)
        done = self.debug(endpoint, "job", "1", f"--port={free_port()}", code=2)
        self.assertIn("debugpy was started in it before", done.stderr)
        files.write(os.path.dirname(end), "end", "")
        self.finish(job, code=0)

    @unittest.skipUnless(HAS_DEBUGGER, "no gdb or debugpy: scripts/setup.sh full")
    def test_a_rank_that_an_editor_stops_is_not_told_as_a_hang(self):
        job, editor, _, end = self.edited("--hang-timeout=foreign=2s", "--hang-action=restart")
        editor.event("stopped")
        self.await_line(job, "rank 1 (node 0", "is in a debugger, not hung")
        editor.answer(editor.send("disconnect"))
        files.write(os.path.dirname(end), "end", "")
        self.assertNotIn("hang: ", self.finish(job, code=0).text + job.read["stderr"])

    @staticmethod
    def is_free(port):
        with socket.socket() as other:
            return other.connect_ex(("127.0.0.1", port)) != 0

    @unittest.skipUnless(os.geteuid() == 0, "needs root, for another user")
    def test_another_users_rank_is_refused_to_root_too(self):
        python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
        _, endpoint, *_ = self.job("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-c",
                                   "import time; print('is there', flush=True); time.sleep(600)")
        self.check_one_line(self.debug(endpoint, "job", "0"), "of another user")

    @unittest.skipUnless(HAS_DEBUGGER, "no gdb or debugpy: scripts/setup.sh full")
    def test_a_program_that_changed_its_name_is_debugged(self):
        code = ("import ctypes, time; at = int(open('/proc/self/stat').read().rsplit(') ', 1)[1].split()[45]);"
                " ctypes.memmove(at, b'train: 3/100\\0', 13); print('is there', flush=True); time.sleep(600)")
        _, endpoint, *_ = self.job(sys.executable, "-c", code, PYTHONPATH=sysconfig.get_path("purelib"))
        self.debug(endpoint, "job", "0", f"--port={free_port()}", code=0, PYTHONPATH=sysconfig.get_path("purelib"))

    def test_one_line_says_why_a_rank_can_not_be_debugged(self):
        _, endpoint, *_ = self.job()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.check_one_line(self.debug(endpoint, "job", "0", f"--port={port}"), f"port {port} is in use", "--port")
        self.check_one_line(self.debug(endpoint, "job", "7"), "rank 7 of job")
        self.check_one_line(self.debug(endpoint, "other", "0"), "other")

    def job_of_plain_python(self):
        """A job whose Python has no debugpy. Returns that Python, where its modules would be, and the rendezvous."""
        place = os.path.join(self.scratch(), "venv")
        venv.create(place, symlinks=True)
        python = os.path.join(place, "bin", "python3")
        _, endpoint, *_ = self.job(python, "-c", "import time; print('is there', flush=True); time.sleep(600)")
        return python, sysconfig.get_path("purelib", "venv", vars={"base": place, "installed_base": place}), endpoint

    def test_a_python_without_debugpy_says_how_to_get_it(self):
        python, _, endpoint = self.job_of_plain_python()
        self.check_one_line(self.debug(endpoint, "job", "0"), "has no debugpy", f"{python} -m pip install debugpy")

    def test_a_module_in_the_folder_where_it_is_typed_is_not_run(self):
        _, _, endpoint = self.job_of_plain_python()
        folder = self.scratch()
        files.write(folder, "debugpy.py", "open('was-run', 'w')")
        self.check_one_line(self.debug(endpoint, "job", "0", cwd=folder), "has no debugpy")
        self.assertEqual(files.below(folder), {"debugpy.py"})

    @unittest.skipUnless(os.geteuid() == 0, "needs root, for another user")
    def test_a_port_that_another_user_takes_first_is_not_shown_as_the_debugger_s(self):
        _, modules, endpoint = self.job_of_plain_python()
        port = free_port()
        # In place of debugpy, which comes too late.
        files.write(modules, "debugpy.py", f"""
import os, socket
there, here = os.pipe()
if os.fork() == 0:
    os.setuid({STRANGER})
    listener = socket.create_server(("127.0.0.1", {port}))
    os.write(here, b"1")
    os.close(1), os.close(2)
    listener.settimeout({harness.TIMEOUT})
    listener.accept()
    os._exit(0)
os.read(there, 1)
""")
        self.addCleanup(lambda: socket.create_connection(("127.0.0.1", port)).close())
        self.check_one_line(self.debug(endpoint, "job", "0", f"--port={port}"), f"user {STRANGER} has taken port {port}")

    @unittest.skipUnless(os.geteuid() == 0, "needs root, for another user")
    def test_another_user_in_the_rendezvous_place_names_no_process_to_debug(self):
        other = self.start("-c", "import time; time.sleep(600)", program=sys.executable)
        with open(f"/proc/{other.pid}/stat", encoding="ascii") as file:
            ticks = file.read().rsplit(") ", 1)[1].split()[19]
        page = json.dumps({"ranks": [{"rank": 0, "host": socket.gethostname(), "lines": [f"process {other.pid} {ticks}"], "note": ""}]})
        server = self.start("-c", f"""
import os, socket
os.setuid({STRANGER})
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    client = listener.accept()[0]
    client.recv(4096)
    client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: {len(page)}\\r\\n\\r\\n" + {page.encode()!r})
    client.close()
""", program=sys.executable)
        endpoint = f"127.0.0.1:{int(server.stdout.readline())}"
        self.check_one_line(self.debug(endpoint, "job", "0", f"--port={free_port()}"), f"is a program of user {STRANGER}")

    def test_a_program_that_is_no_python_is_refused(self):
        _, endpoint, *_ = self.job("sh", "-c", "echo is there; exec sleep 600")
        done = self.debug(endpoint, "job", "0")
        self.check_one_line(done, "runs no Python", "gdb -p")


if __name__ == "__main__":
    harness.main()
