# SPDX-License-Identifier: Apache-2.0
"""Starts OpenSSH servers for a test, with their own host key, users' keys and files, in a temporary directory.

    with sshd.Keys() as keys:                          # raises Unavailable(reason)
        server = sshd.Server(keys, "10.77.0.1", 2222, host=hosts[0])
        subprocess.run([*keys.ssh_words(), "-p", "2222", "10.77.0.1", "true"])

A server runs in the foreground as a child of ours. It lets in only the user who runs it, with the key of `keys`.
"""
import getpass
import os
import shutil
import subprocess
import tempfile
import time

import skips

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
START_SECONDS = 20


class Unavailable(Exception):
    """There is no sshd here. The text says why."""


def _needed():
    for program in (SSHD, "ssh", "ssh-keygen"):
        if not shutil.which(program):
            raise Unavailable(f"{os.path.basename(program)} is missing: apt-get install openssh-server openssh-client")
    # Privilege separation needs a directory that Debian's service makes when it starts.
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)


class Keys:
    """A directory with a host key, the client's key, known hosts and both configurations."""

    def __init__(self):
        _needed()
        self.directory = tempfile.mkdtemp(prefix="ddprun-sshd-")
        os.chmod(self.directory, 0o700)
        try:
            for name in ("host_key", "user_key", "stranger_key"):
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path(name)], check=True,
                               stdin=subprocess.DEVNULL)
            shutil.copy(self.path("user_key.pub"), self.path("authorized_keys"))
            os.chmod(self.path("authorized_keys"), 0o600)
            with open(self.path("host_key.pub")) as f:
                self.host_key = " ".join(f.read().split()[:2])
            self._write("known_hosts", f"* {self.host_key}\n")
            self.client_config()
        except BaseException:
            self.close()
            raise

    def path(self, name):
        return os.path.join(self.directory, name)

    def _write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def client_config(self, more="", key="user_key", name="ssh_config"):
        """Writes a configuration for ssh and returns its path. `more` comes first, and so wins."""
        return self._write(name, f"{more}\nHost *\n  IdentityFile {self.path(key)}\n  IdentitiesOnly yes\n"
                                 f"  UserKnownHostsFile {self.path('known_hosts')}\n  GlobalKnownHostsFile /dev/null\n"
                                 "  StrictHostKeyChecking yes\n  IdentityAgent none\n")

    def ssh_words(self, config="ssh_config"):
        """Returns the words of an ssh command with these keys, without the user's own files."""
        return ["ssh", "-F", self.path(config)]

    def close(self):
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Server:
    """An sshd on address:port, on `host` (a netns.Host) or on this machine. It listens once it is constructed."""

    def __init__(self, keys, address, port, host=None, more=""):
        self._log = keys.path(f"sshd-{address}-{port}.log")
        config = keys._write(f"sshd_config-{address}-{port}", f"""
ListenAddress {address}
Port {port}
HostKey {keys.path("host_key")}
AuthorizedKeysFile {keys.path("authorized_keys")}
PidFile none
AllowUsers {getpass.getuser()}
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
UseDNS no
MaxStartups 1000
PrintMotd no
PrintLastLog no
{more}
""")
        argv = [SSHD, "-D", "-e", "-f", config]
        with open(self._log, "w") as log:
            popen = host.popen if host else subprocess.Popen
            self._process = popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._await()
        except BaseException:
            self.close()
            raise

    def log(self):
        with open(self._log, errors="replace") as f:
            return f.read()

    def _await(self):
        deadline = time.monotonic() + START_SECONDS
        while "Server listening on" not in self.log():
            if self._process.poll() is not None:
                raise Unavailable(f"sshd ended with {self._process.returncode}: {self.log().strip()[-300:]}")
            if time.monotonic() > deadline:
                raise Unavailable(f"sshd doesn't listen after {START_SECONDS} s: {self.log().strip()[-300:]}")
            time.sleep(0.01)

    def close(self):
        """Ends the server. Open sessions go on, as with any sshd."""
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def keys_or_skip():
    """Keys(). If there is no sshd, it ends this test with "SKIPPED: reason"."""
    try:
        return Keys()
    except Unavailable as error:
        skips.skip_all(error)
