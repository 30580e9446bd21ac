# SPDX-License-Identifier: Apache-2.0
"""Runs one command line by torchrun or by ddprun in a folder of its own. Returns the exit codes, each worker's
environment and arguments, the console and the log tree. Random parts are masked, so that two answers can be
compared."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TIMEOUT = 120
# Variables that no launcher sets, or that are always the same.
DROPPED = {"_", "SHLVL", "PWD", "OLDPWD", "PARITY_OUT", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "PATH", "HOME", "TMPDIR", "LC_CTYPE", "PYTHONPATH",
           "XDG_CONFIG_HOME", "PYTHON_EXEC"}
RANDOM_ID = re.compile(r"\b[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\b")


def free_ports(number):
    probes = [socket.socket() for _ in range(number)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def prepare(folder):
    """Writes the programs that the cases run."""
    for name in ("out", "tmp"):
        os.mkdir(os.path.join(folder, name))
    shutil.copy(os.path.join(HERE, "worker.py"), os.path.join(folder, "w.py"))
    shutil.copy(os.path.join(HERE, "worker.py"), os.path.join(folder, "worker.py"))
    shutil.copy(os.path.join(HERE, "recorded_worker.py"), os.path.join(folder, "recorded.py"))
    shutil.copy(os.path.join(HERE, "worker.py"), os.path.join(folder, "pkm.py"))
    os.mkdir(os.path.join(folder, "pkg"))
    shutil.copy(os.path.join(HERE, "worker.py"), os.path.join(folder, "pkg", "__main__.py"))
    with open(os.path.join(HERE, "worker.py"), encoding="utf-8") as f:
        text = f.read()
    executable = os.path.join(folder, "ex.py")
    with open(executable, "w", encoding="utf-8") as f:
        f.write("#!/usr/bin/env nosuchpython\n" + text)
    os.chmod(executable, 0o755)


def environment(folder, more):
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": folder, "TMPDIR": os.path.join(folder, "tmp"),
            "XDG_CONFIG_HOME": "/nonexistent", "PYTHONPATH": folder, "PARITY_OUT": os.path.join(folder, "out"),
            "PYTHON_EXEC": sys.executable, "GLOO_SOCKET_IFNAME": "lo", **more}


class Answer:
    """The result of `case` (cases.py) under `launcher`, a command without arguments."""

    def __init__(self, case, launcher):
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="parity-"))
        self.are_warm = []  # for each worker: whether it began with imported modules (docs/warm.md)
        try:
            prepare(self.folder)
            self.ports = free_ports(2)
            self.result = self._run(case, launcher)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _filled(self, text):
        for name, value in (("dir", self.folder), ("port", self.ports[0]), ("port2", self.ports[1])):
            text = text.replace("{%s}" % name, str(value))
        return text

    def _run(self, case, launcher):
        more = {name: self._filled(value) for name, value in case.environment.items()}
        running = []
        for node, arguments in enumerate(case.nodes):
            streams = [open(os.path.join(self.folder, f"{name}{node}"), "wb") for name in ("stdout", "stderr")]
            running.append(subprocess.Popen(
                [*launcher, *map(self._filled, arguments)], cwd=self.folder,
                env=environment(self.folder, more), stdin=subprocess.DEVNULL, stdout=streams[0],
                stderr=streams[1], start_new_session=True))
            for stream in streams:
                stream.close()
        if case.signal:
            self._wait_for_workers(case.waits_for, running)
            running[0].send_signal(case.signal)
        codes = []
        for process in running:
            try:
                codes.append(process.wait(timeout=TIMEOUT))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                codes.append("hung")
        self.console = "".join(self._read(f"{name}{node}") for node in range(len(running))
                               for name in ("stdout", "stderr"))
        return {"exit_codes": codes,
                "workers": self._workers(),
                "stdout": self._lines("stdout", len(running)),
                # Leaves out the launcher's own lines, and lines that a report repeats.
                "stderr": [line for line in self._lines("stderr", len(running))
                           if "pear" in line and not line.startswith("    | ")],
                "events": self._events(len(running)),
                "error_file": self._error_file(),
                "tree": self._tree()}

    def _wait_for_workers(self, number, running):
        deadline = time.monotonic() + 60
        while True:
            shown = "".join(self._read(f"stderr{node}") for node in range(len(running)))
            if shown.count("pear") >= number or time.monotonic() > deadline:
                return
            time.sleep(0.01)

    def _read(self, name):
        with open(os.path.join(self.folder, name), "rb") as f:
            return f.read().decode("utf-8", "backslashreplace")

    def mask(self, text):
        text = text.replace(self.folder, "<dir>").replace(sys.executable, "<python>")
        for name, port in zip(("port", "port2"), self.ports):
            text = re.sub(rf"\b{port}\b", f"<{name}>", text)
        text = RANDOM_ID.sub("<id>", text)
        return re.sub(r"(logs/[^/\s]+)_[a-z0-9_]{8}(?=/|$)", r"\1_<random>", text)

    def _lines(self, stream, nodes):
        """Returns the lines of several workers, sorted, because they come in any order."""
        return sorted(self.mask(line) for node in range(nodes) for line in self._read(f"{stream}{node}").splitlines())

    def _workers(self):
        found = {}
        for name in sorted(os.listdir(os.path.join(self.folder, "out"))):
            with open(os.path.join(self.folder, "out", name), encoding="utf-8") as f:
                worker = json.load(f)
            kept = {k: self.mask(v) for k, v in worker["environment"].items()
                    if k not in DROPPED and not k.startswith("PET_")}
            if re.fullmatch(r"\d{4,5}", kept.get("MASTER_PORT", "")):
                kept["MASTER_PORT"] = "<free>"
            if os.path.join(self.folder, "tmp") in worker["environment"].get("TORCHELASTIC_ERROR_FILE", ""):
                kept["TORCHELASTIC_ERROR_FILE"] = "<temporary>"
            worker["environment"] = dict(sorted(kept.items()))
            self.are_warm.append(worker.pop("is_warm", False))  # torchrun has no such workers
            worker["argv"] = [self.mask(word) for word in worker["argv"]]
            worker["python"] = self.mask(worker["python"])
            found[name[:-len(".json")]] = worker
        return found

    def _events(self, nodes):
        """Returns source, state and rank of each event of --event-log-handler, without events whose order is random."""
        events = []
        for node in range(nodes):
            for line in self._read(f"stderr{node}").splitlines():
                if re.match(r'\{"name": ?"torchelastic', line):
                    event = json.loads(line)
                    inner = json.loads(event["metadata"]["metadata"])
                    events.append([event["name"], event["source"], sorted(event), sorted(event["metadata"]),
                                   event["metadata"]["global_rank"], event["metadata"]["agent_restarts"],
                                   sorted(inner), inner.get("exit_code")])
        return events

    def _error_file(self):
        """Returns the content of {dir}/own.json, in which the launcher reports the error to its caller."""
        try:
            data = json.loads(self._read("own.json"))
        except FileNotFoundError:
            return None
        message = data["message"]
        if isinstance(message, dict):
            message["extraInfo"]["timestamp"] = "<time>"
            message["extraInfo"]["py_callstack"] = message["extraInfo"]["py_callstack"].splitlines()[-1]
        return data

    def _tree(self):
        """Returns the files below {dir}/logs, with their lines in alphabetical order; empty folders with a /. Leaves
        out ddprun's own events, because torchrun has none."""
        tree = {}
        top = os.path.join(self.folder, "logs")
        for folder, folders, names in os.walk(top):
            shown = self.mask(os.path.relpath(folder, self.folder))
            names = [name for name in names if not (name.startswith("events.") and name.endswith(".jsonl"))]
            if not folders and not names:
                tree[shown + "/"] = None
            for name in names:
                with open(os.path.join(folder, name), encoding="utf-8", errors="backslashreplace") as f:
                    tree[f"{shown}/{name}"] = sorted(f.read().splitlines()) if name.endswith(".log") else "…"
        return tree
