# SPDX-License-Identifier: Apache-2.0
"""The rows about a rendezvous that survives and is closed: proxies, journal, TLS."""
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
from elastic_rows import start_ms
from measure import json_of, program
from row import OURS, Goal, Row

SECONDS = "2"  # of load
DIRECT, MEMORY, PLAIN = "direct", "no journal", "no TLS"


@contextlib.contextmanager
def ddprund(*flags, port=0):
    """Runs it; yields (process, port)."""
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
    """Of an ADD by each of so many connections of one worker; several are under way at once."""
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


def journalled():
    with tempfile.TemporaryDirectory(dir=measure.ROOT) as state, ddprund(f"--state-dir={state}/state") as (_, port):
        return {"µs/request, 64 connections": request_us(port, "proxy", 64)}


def in_memory():
    with ddprund() as (_, port):
        return {"µs/request, 64 connections": request_us(port, "proxy", 64)}


def nodes_connected(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/jobs", timeout=5) as answer:
            jobs = json.load(answer)["jobs"]
    except (urllib.error.URLError, ConnectionError):
        return 0
    return sum(node["connected"] for job in jobs for node in job["nodes"] if job["phase"] == "running")


def await_nodes(port, count, what):
    deadline = time.monotonic() + 30
    while nodes_connected(port) < count:
        if time.monotonic() > deadline:
            raise measure.Missing(f"{what}: not within 30 s")
        time.sleep(0.002)


def restart_ms():
    with contextlib.ExitStack() as stack:
        state = stack.enter_context(tempfile.TemporaryDirectory(dir=measure.ROOT))
        daemon, port = stack.enter_context(ddprund(f"--state-dir={state}/state"))
        launchers = [subprocess.Popen([program("ddprun"), "--nnodes=2", "--nproc_per_node=2", "--rdzv-id=job",
                                       f"--rdzv-endpoint=127.0.0.1:{port}", "--store=proxy", "sleep", "600"],
                                      env=measure.environment(), stdin=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
        try:
            await_nodes(port, 2, "the job runs")
            workers = [measure.descendants(launcher.pid) for launcher in launchers]
            killed = time.monotonic()
            daemon.kill()
            daemon.wait()
            stack.enter_context(ddprund(f"--state-dir={state}/state", port=port))
            await_nodes(port, 2, "both agents are back")
            back = time.monotonic()
            if workers != [measure.descendants(launcher.pid) for launcher in launchers]:
                raise RuntimeError("the workers are others than before")
            return {"ms": (back - killed) * 1e3}
        finally:
            for launcher in launchers:
                launcher.send_signal(signal.SIGTERM)
            for launcher in launchers:
                launcher.wait()


def hosts_start(with_tls):
    """As the row `hosts`; the certificate is made before."""
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
        if with_tls:  # not while the clock runs
            import netns
            with netns.Hosts(2) as hosts:
                argv(None, hosts)
        return start_ms(argv)


def rows():
    per = "µs/request, 64 connections"
    return [
        Row("proxy", "a request to the round's store through the node's proxy",
            {OURS: proxied, DIRECT: direct},
            [Goal("added µs, 1 connection", 60), Goal(per, 1.43, DIRECT)],
            note="one worker, ADD, closed loop; ddprund and ddprun on one machine"),
        Row("journal", "that, with a journal (`--durability=process`)",
            {OURS: journalled, MEMORY: in_memory}, [Goal(per, 1.43, MEMORY)],
            note="each request is kept before it is answered"),
        Row("daemon-restart", "ddprund is killed and started again → both agents are back",
            {OURS: restart_ms}, [Goal("ms", 1000)],
            note="kill -9; torchrun's job would be lost. The same workers run on"),
        Row("tls-start", "2 hosts × 2 workers, both started at once, over TLS → all workers running",
            {OURS: lambda: hosts_start(True), PLAIN: lambda: hosts_start(False)},
            [Goal("ms", 1.3, PLAIN)], note="hosts are network namespaces"),
    ]
