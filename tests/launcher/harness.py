# SPDX-License-Identifier: Apache-2.0
"""Runs ddprun with a clean environment, here or on hosts of netns.py, and waits with a deadline."""
import functools
import os
import pty
import select
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import netns  # noqa: E402
import runner  # noqa: E402
import files  # noqa: E402
from ports import free_port  # noqa: E402, F401

BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(HERE, "../../build/dev/bin"))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(HERE, "../..")
DDPRUN = os.path.join(BIN, "ddprun")
DDPRUND = os.path.join(BIN, "ddprund")
DDPRUNCTL = os.path.join(BIN, "ddprunctl")
TIMEOUT = 60

# A worker that prints one line: its place in the job, as "key=value" words.
SHOW = ('echo "rank=$RANK local=$LOCAL_RANK group=$GROUP_RANK world=$WORLD_SIZE '
        'local_world=$LOCAL_WORLD_SIZE groups=$GROUP_WORLD_SIZE master=$MASTER_ADDR:$MASTER_PORT '
        'node=$DDPRUN_NODE_ADDR master_node=$DDPRUN_MASTER_NODE_ADDR '
        'restart=$TORCHELASTIC_RESTART_COUNT round=$DDPRUN_ROUND id=$TORCHELASTIC_RUN_ID"')

# A barrier of the round's workers, by files in $MEET. No worker goes on before all have come.
MEET = (': >"$MEET/$DDPRUN_ROUND.$RANK"; '
        'until [ "$(ls "$MEET" | grep -c "^$DDPRUN_ROUND\\.")" = "$WORLD_SIZE" ]; do sleep 0.01; done')


def environment(**more):
    """Returns this environment without variables of other launchers, schedulers or a user's configuration."""
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "TORCHELASTIC_", "PET_", "SLURM_",
               "DDPRUN_", "OMP_NUM_THREADS", "PYTHON_EXEC", "CUDA_VISIBLE_DEVICES")
    base = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return {**base, "XDG_CONFIG_HOME": "/nonexistent", **more}


def parse_shown(text):
    """Returns SHOW's lines as a list of dictionaries, sorted by rank."""
    found = []
    for line in text.splitlines():
        if "rank=" in line and "local_world=" in line:
            words = line[line.index("rank="):].split()
            found.append(dict(word.split("=", 1) for word in words))
    return sorted(found, key=lambda worker: (int(worker["round"]), int(worker["rank"])))


def wait_until(condition, what, seconds=20):
    """Polls until `condition` holds. For states that no event reports, such as other processes' state."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.005)


def read_of(process):
    """Returns what was read of the streams of the process so far, by their names."""
    return vars(process).setdefault("read", {"stdout": "", "stderr": ""})


def unread(pipe, most=16384):
    """Returns the end of the pipe's current content, for messages."""
    if pipe.closed:
        return ""
    os.set_blocking(pipe.fileno(), False)
    said = b""
    while True:
        try:
            more = os.read(pipe.fileno(), 65536)
        except BlockingIOError:
            break
        if not more:
            break
        said = (said + more)[-most:]
    return said.decode(errors="replace")


class Case(unittest.TestCase):
    maxDiff = None

    def start(self, *args, host=None, preexec_fn=None, program=DDPRUN, cwd=None, **more):
        """Starts ddprun (`program`: another program), which is killed at the end of the test. `more`: environment
        variables."""
        popen = functools.partial(host.popen if host else subprocess.Popen, preexec_fn=preexec_fn, cwd=cwd)
        process = popen([program, *args], env=environment(**more), text=True,
                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        read_of(process)  # process.read: await_line() and finish() fill it
        self.addCleanup(self._end, process)
        return process

    def on_terminal(self, *args, host=None, **more):
        """Starts ddprun on a pseudo-terminal. Returns the process, and this side of the terminal."""
        terminal, theirs = pty.openpty()
        popen = host.popen if host else subprocess.Popen
        process = popen([DDPRUN, *args], env=environment(TERM="xterm", NO_COLOR="1", **more), stdin=theirs, stdout=theirs,
                        stderr=theirs)
        os.close(theirs)
        for end in (process.kill, process.wait, functools.partial(os.close, terminal))[::-1]:
            self.addCleanup(end)
        return process, terminal

    def await_shown(self, terminal, wanted):
        """Reads the terminal until it has shown these bytes."""
        shown = b""
        while wanted not in shown:
            self.assertTrue(select.select([terminal], [], [], TIMEOUT)[0], f"no {wanted} in {TIMEOUT} s: {shown}")
            shown += os.read(terminal, 4096)

    def _end(self, process):
        state = "ran" if process.poll() is None else f"had ended with {process.returncode}"
        if process.poll() is None:
            process.kill()
            process.wait()
        if self.has_failed():
            print(f"\n-- {' '.join(map(str, process.args))}: {state}", file=sys.stderr)
            for name in ("stdout", "stderr"):
                print(f"-- {name}\n{read_of(process)[name]}{unread(getattr(process, name))}", file=sys.stderr)
        process.stdout.close()
        process.stderr.close()

    def has_failed(self):
        result = self._outcome.result
        return any(test is self or getattr(test, "test_case", None) is self
                   for test, _ in result.failures + result.errors)

    def finish(self, process, timeout=TIMEOUT, code=None):
        """Waits for the process' end. Returns an object with returncode, stdout, stderr, and both together as text.
        `code`: the exit status that it must have."""
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.fail(f"ddprun hung:\n{out}\n{err}")
        read = read_of(process)
        read["stdout"] += out or ""
        read["stderr"] += err or ""
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        done.text = f"exit {done.returncode}\n-- stdout\n{out}\n-- stderr\n{err}"
        if code is not None:
            self.assertEqual(done.returncode, code, done.text)
        return done

    def ddprun(self, *args, timeout=TIMEOUT, code=None, **more):
        return self.finish(self.start(*args, **more), timeout, code)

    def ddprund(self, *args, **more):
        """Starts a daemon, on any free port unless `args` name one. Returns it, and its endpoint. `more`: arguments of
        start()."""
        daemon = self.start("--listen=127.0.0.1:0", *args, program=DDPRUND, **more)
        for line in daemon.stderr:
            if "listening on " in line:
                return daemon, line.split()[-1]
        self.fail(f"ddprund ended with {daemon.wait()}")

    def ddprunctl(self, *args, code=None, **more):
        return self.finish(self.start(*args, program=DDPRUNCTL, **more), code=code)

    def await_line(self, process, *parts, stream="stderr"):
        """Waits for a line of the process' stderr, or of `stream`, that has all `parts`, and returns it. process.read
        keeps all lines that were read."""
        for line in getattr(process, stream):
            process.read[stream] += line
            if all(part in line for part in parts):
                return line
        self.fail(f"{process.args[0]} ended with {process.wait()} before it said {parts}:\n{process.read[stream]}")

    def check_one_line(self, done, *parts, code=2):
        """Checks that the process ended with `code` and printed one line, which has all `parts`."""
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (code, 1), done.text)
        for part in parts:
            self.assertIn(part, done.stderr)

    def on_hosts(self, hosts, args_of, env_of=lambda host: {}):
        """Runs ddprun on each host at once. Returns the results."""
        running = [self.start(*args_of(host), host=host, **env_of(host)) for host in hosts]
        done = [self.finish(process) for process in running]
        self.transcript = "\n".join(each.text for each in done)
        return done

    def in_small_disk(self, command, size="256k", **more):
        """Runs a shell command in a mount namespace of its own, with $DISK a small tmpfs. `more`: environment variables."""
        if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
            self.skipTest("no mount namespaces here: needs root or user namespaces")
        disk = self.scratch()
        return subprocess.run(["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size={size} none $DISK && {{ {command}; }}"], text=True,
                              env=environment(DISK=disk, DDPRUN=DDPRUN, **more), capture_output=True, timeout=TIMEOUT)

    def scratch(self):
        return files.scratch(self)

    write = staticmethod(files.write)

    def certs(self, *hosts):
        """Returns a directory of certificates that make-certs has made."""
        place = os.path.join(self.scratch(), "certs")
        self.ddprunctl("make-certs", place, *(hosts or ("127.0.0.1", "localhost")), code=0)
        return place

    @staticmethod
    def tls_server(certs):
        return [f"--tls-cert={certs}/server.pem", f"--tls-key={certs}/server.key"]

    @staticmethod
    def tls_client(certs):
        return [f"--tls-cert={certs}/client.pem", f"--tls-key={certs}/client.key"]

    def token(self, text="a token that is long enough", mode=0o600):
        """Returns the path of a new file for --token-file."""
        return self.write(self.scratch(), "token", text + "\n", mode)


class HostsCase(Case):
    """A test on two hosts. `self.hosts` are made anew for each test."""

    own_name_is_loopback = False

    def setUp(self):
        self.hosts = netns.Hosts(2, own_name_is_loopback=self.own_name_is_loopback)
        self.addCleanup(self.hosts.close)

    def check_whole(self, done, num_nodes=2, per_node=2, proxied=False):
        """Checks that every rank ran once and that all agree. No rank was told a loopback address, except that of its
        node's store if it is `proxied`."""
        self.assertEqual([each.returncode for each in done], [0] * num_nodes, self.transcript)
        self.assertNotIn("can join jobs", self.transcript)  # ddprund's warning about its port
        workers = parse_shown("".join(each.stdout for each in done))
        world = num_nodes * per_node
        self.assertEqual([w["rank"] for w in workers], [str(r) for r in range(world)], self.transcript)
        self.assertEqual({w["world"] for w in workers}, {str(world)})
        stores = {(proxied and w["group"], w["master"]) for w in workers}
        self.assertEqual(len(stores), num_nodes if proxied else 1, self.transcript)
        loopback = ("127.", "[::1]", "localhost")
        for worker in workers:
            self.assertEqual(worker["master"].startswith("127.0.0.1:"), proxied, self.transcript)
            for key in ("master", "node", "master_node")[proxied:]:
                self.assertFalse(worker[key].startswith(loopback), self.transcript)
        return workers


def main():
    if not os.path.exists(DDPRUN):
        sys.exit(f"no {DDPRUN}: build it first")
    runner.main()


def main_on_hosts():
    netns.hosts_or_skip(1).close()
    main()
