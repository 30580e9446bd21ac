# SPDX-License-Identifier: Apache-2.0
"""An etcd for one test, which starts it on free ports and stops it."""
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

from ports import free_port

ETCD = shutil.which("etcd")
MISSING = None if ETCD else "no etcd here (scripts/setup.sh full)"


class Etcd:
    """One etcd server. `directory` must live as long. start() after kill() finds its data again."""

    def __init__(self, directory, host=None):
        """`host`: a netns.Host on which it runs; None: this machine."""
        self.directory, self.host = directory, host
        self.address = host.address if host else "127.0.0.1"
        self.port, self.peer_port = (2379, 2380) if host else (free_port(), free_port())
        self.process = None

    @property
    def endpoint(self):
        return f"{self.address}:{self.port}"

    def start(self, *flags):
        client, peer = (f"http://{self.address}:{port}" for port in (self.port, self.peer_port))
        with open(self._log_path(), "ab") as log:
            self.process = (self.host.popen if self.host else subprocess.Popen)(
                [ETCD, "--name=test", f"--data-dir={self.directory}/data",
                 f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                 f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                 f"--initial-cluster=test={peer}", *flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def _log_path(self):
        return os.path.join(self.directory, "log")

    def call(self, path, **content):
        """Returns the answer of etcd's JSON gateway."""
        request = urllib.request.Request(f"http://{self.endpoint}{path}", json.dumps(content).encode())
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=5) as answer:
            return json.load(answer)

    def wait(self, seconds=30):
        """Waits until the server answers."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self.host:
                    with open(self._log_path(), encoding="utf-8", errors="replace") as log:
                        if "ready to serve client requests" in log.read():
                            return self
                else:
                    self.call("/v3/kv/range", key="AA==")
                    return self
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass
            if time.monotonic() > deadline:
                raise AssertionError(f"etcd does not serve within {seconds} s")
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
