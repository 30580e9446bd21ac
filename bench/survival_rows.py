# SPDX-License-Identifier: Apache-2.0
"""The rows about a rendezvous' survival and security: proxies, journal, TLS."""
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import measure
import etcd
import ports
import sshd
from elastic_rows import start_ms
from measure import json_of, program
from row import OURS, Goal, Row

SECONDS = "2"  # of load, for each measurement
DIRECT, MEMORY, PLAIN = "direct", "no journal", "no TLS"
TOGETHER, APART = "8 requests a message", "1 request a message"


@contextlib.contextmanager
def ddprund(*flags, port=0):
    """Runs a ddprund. Yields (process, port)."""
    process = subprocess.Popen([program("ddprund"), f"--listen=127.0.0.1:{port}", *flags],
                               env=measure.environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if "listening on" in line:
                yield process, int(line.rsplit(":", 1)[1])
                return
        raise RuntimeError("ddprund ended before it listened")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def request_us(port, store, connections):
    """Returns the microseconds per ADD when one worker sends them on `connections` connections at once."""
    load = f'exec {program("store_load")} $MASTER_PORT $$ add {connections} {SECONDS}'
    figures = json_of([program("ddprun"), f"--rdzv-endpoint=127.0.0.1:{port}", f"--store={store}",
                       "--rdzv-id=load", "sh", "-c", load])
    return 1e6 / figures["requests_per_second"]


def proxied():
    with ddprund() as (_, port):
        return {"added µs, 1 connection": request_us(port, "proxy", 1) - request_us(port, "direct", 1),
                "µs/request, 64 connections": request_us(port, "proxy", 64)}


def direct():
    with ddprund() as (_, port):
        return {"µs/request, 64 connections": request_us(port, "direct", 64)}


def storm(client, *what):
    """Measures the start of a job of 16,000 ranks with a client program of bench/store."""
    with ddprund() as (daemon, port):
        found = json_of([program(client), str(port), str(daemon.pid), *what])
    return {"seconds": found["seconds"], "server CPU s": found["server_cpu_seconds"]}


def journalled():
    with tempfile.TemporaryDirectory(dir=measure.ROOT) as state, ddprund(f"--state-dir={state}/state") as (_, port):
        return {"µs/request, 64 connections": request_us(port, "proxy", 64)}


def in_memory():
    with ddprund() as (_, port):
        return {"µs/request, 64 connections": request_us(port, "proxy", 64)}


def nodes_connected(port):
    """Returns the number of connected nodes of running jobs; None: no ddprund answers, or it is a standby."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/jobs", timeout=5) as answer:
            jobs = json.load(answer)["jobs"]
    except (urllib.error.URLError, ConnectionError):
        return None
    return sum(node["connected"] for job in jobs for node in job["nodes"] if job["phase"] == "running")


def await_nodes(port, count, what):
    deadline = time.monotonic() + 30
    while (nodes_connected(port) or 0) < count:
        if time.monotonic() > deadline:
            raise measure.Missing(f"{what}: not within 30 s")
        time.sleep(0.002)


def workers_of(launcher):
    def name_of(pid):
        try:
            with open(f"/proc/{pid}/comm") as f:
                return f.read().strip()
        except OSError:
            return ""
    return [pid for pid in measure.descendants(launcher.pid) if name_of(pid) == "sleep"]


def await_workers(launchers, count):
    """Waits until each launcher has `count` workers, which begin a moment after their node counts as running."""
    deadline = time.monotonic() + 30
    while any(len(workers_of(launcher)) < count for launcher in launchers):
        if time.monotonic() > deadline:
            raise measure.Missing("all workers run: not within 30 s")
        time.sleep(0.002)


@contextlib.contextmanager
def job_at(endpoints, port):
    """Runs a job of two nodes with these endpoints at `port`. Raises RuntimeError if its workers changed meanwhile."""
    launchers = [subprocess.Popen([program("ddprun"), "--nnodes=2", "--nproc_per_node=2", "--rdzv-id=job",
                                   f"--rdzv-endpoint={endpoints}", "--store=proxy", "sleep", "600"],
                                  env=measure.environment(), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        await_nodes(port, 2, "the job runs")
        await_workers(launchers, 2)
        workers = [workers_of(launcher) for launcher in launchers]
        yield
        if workers != [workers_of(launcher) for launcher in launchers]:
            raise RuntimeError("the workers are others than before")
    finally:
        for launcher in launchers:
            launcher.send_signal(signal.SIGTERM)
        for launcher in launchers:
            launcher.wait()


def restart_ms():
    with contextlib.ExitStack() as stack:
        state = stack.enter_context(tempfile.TemporaryDirectory(dir=measure.ROOT))
        daemon, port = stack.enter_context(ddprund(f"--state-dir={state}/state"))
        with job_at(f"127.0.0.1:{port}", port):
            killed = time.monotonic()
            daemon.kill()
            daemon.wait()
            stack.enter_context(ddprund(f"--state-dir={state}/state", port=port))
            await_nodes(port, 2, "both agents are back")
            return {"ms": (time.monotonic() - killed) * 1e3}


def next_leader_ms(end):
    """Measures the time until both agents are connected to the next leader. `end` ends the first one."""
    if etcd.MISSING:
        raise measure.Missing(f"skipped: {etcd.MISSING}")
    with contextlib.ExitStack() as stack:
        cluster = etcd.Etcd(stack.enter_context(tempfile.TemporaryDirectory(dir=measure.ROOT)))
        stack.callback(cluster.stop)
        cluster.start().wait()
        leader, port = stack.enter_context(ddprund(f"--ha=etcd://{cluster.endpoint}"))
        while nodes_connected(port) is None:
            time.sleep(0.002)
        _, other = stack.enter_context(ddprund(f"--ha=etcd://{cluster.endpoint}"))
        with job_at(f"127.0.0.1:{port},127.0.0.1:{other}", port):
            ended = time.monotonic()
            end(leader)
            await_nodes(other, 2, "both agents are at the next leader")
            return {"ms": (time.monotonic() - ended) * 1e3}


def hosts_start(with_tls):
    """Measures as the row `hosts` does. The certificate is made before the clock starts."""
    with tempfile.TemporaryDirectory() as directory:
        certs = os.path.join(directory, "certs")

        def argv(_, hosts):
            flags = []
            if with_tls:
                if not os.path.exists(certs):
                    subprocess.run([program("ddprunctl"), "make-certs", certs, hosts[0].address], check=True,
                                   stdout=subprocess.DEVNULL)
                flags = [f"--tls-ca={certs}/ca.pem", f"--tls-cert={certs}/server.pem",
                         f"--tls-key={certs}/server.key"]
            return [program("ddprun"), "--nnodes=2", "--nproc_per_node=2", "--rdzv-id=bench", *flags,
                    "--store=proxy", f"--rdzv-endpoint={hosts[0].address}:29400"]
        if with_tls:  # makes the certificate now, not while the clock runs
            import netns
            with netns.Hosts(2) as hosts:
                argv(None, hosts)
        return start_ms(argv)


def rows():
    per = "µs/request, 64 connections"
    return [
        Row("proxy", "a request to the round's store through the node's proxy",
            {OURS: proxied, DIRECT: direct},
            [Goal("added µs, 1 connection", 60), Goal(per, 1.43, DIRECT)], repeats=15,
            note="One worker, ADD, closed loop, one machine. Each request wakes two processes more: "
                 "waking an idle core of a virtual machine takes 43 to 102 µs"),
        Row("journal", "that, with a journal (`--durability=process`)",
            {OURS: journalled, MEMORY: in_memory}, [Goal(per, 1.43, MEMORY)], repeats=15,
            note="Each request is kept before it is answered. The journal's thread needs a third "
                 "core, and there are two here"),
        Row("proxy-storm", "16,000 simulated ranks join, exchange an id, barrier: through 2,000 nodes' proxies, "
            "or each with a connection of its own",
            {OURS: lambda: storm("proxy_storm", "2000", "8", "3"),
             TOGETHER: lambda: storm("proxy_storm", "2000", "8"),
             APART: lambda: storm("proxy_storm", "2000", "8", "1"),
             DIRECT: lambda: storm("store_storm", "16000")},
            [Goal("seconds", 0.5, DIRECT)], repeats=15,
            note="One client process on the same two cores plays all ranks and takes half of the "
                 "seconds or more. A node's requests share messages: ddprun has 3 a message, as 8 "
                 "processes in a closed loop; then the best and the worst case"),
        Row("daemon-restart", "ddprund is killed and started again → both agents are back",
            {OURS: restart_ms}, [Goal("ms", 1000)],
            note="kill -9; torchrun's job would be lost. The same workers run on"),
        Row("leader-loss", "one of two ddprunds is killed, the leader → both agents are at the other one",
            {OURS: lambda: next_leader_ms(subprocess.Popen.kill)}, [Goal("ms", 4000)],
            note="`--ha=etcd://…`, its lease is 3 s. The same workers run on"),
        Row("leader-stop", "that, and it is stopped (SIGTERM)",
            {OURS: lambda: next_leader_ms(subprocess.Popen.terminate)}, [Goal("ms", 1000)],
            note="it gives its lease back"),
        Row("tls-start", "2 hosts × 2 workers, both started at once, over TLS → all workers running",
            {OURS: lambda: hosts_start(True), PLAIN: lambda: hosts_start(False)},
            [Goal("ms", 1.3, PLAIN)],
            note="Hosts as in `hosts`. Each `ddprun` needs 5 ms of CPU more: OpenSSL's start, "
                 "certificates and key, handshakes"),
    ]
