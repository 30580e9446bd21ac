# SPDX-License-Identifier: Apache-2.0
"""The rows about the store: CPU per request, the start of a large job, memory."""
import contextlib
import json
import math
import os
import subprocess
import tempfile

import measure
from measure import json_of, program
from row import OURS, Goal, Row

PYTORCH = "PyTorch's server"
NO_DNS = "PyTorch's server, no DNS"
ECHO = "bare echo"


@contextlib.contextmanager
def serving(argv):
    """Runs a server that prints its port first. Yields (port, pid) as text, and ends the server afterwards."""
    process = subprocess.Popen(argv, env=measure.environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline().strip()
        if not line.isdigit():
            raise RuntimeError(f"{' '.join(argv)} printed no port")
        yield line, str(process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ours():
    return [program("store_serve")]


def pytorchs_as_it_is():
    measure.torchrun()  # raises Missing if there is no PyTorch
    return [measure.PYTHON, os.path.join(measure.HERE, "store/torch_server.py")]


def pytorchs():
    return pytorchs_as_it_is() + ["--ipv4"]


def echo():
    return [program("echo_server")]


@contextlib.contextmanager
def names_by_dns(host):
    """Runs a DNS server on `host` that knows the host's address, as in a cluster."""
    dnsmasq = program("dnsmasq", "scripts/setup.sh bench")
    with tempfile.NamedTemporaryFile("w", prefix="ddprun-resolv-") as resolv:
        resolv.write("nameserver 127.0.0.1\n")
        resolv.flush()
        os.chmod(resolv.name, 0o644)
        host.run(["mount", "--bind", resolv.name, "/etc/resolv.conf"], check=True)
    server = host.popen([dnsmasq, "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv",
                         "--no-hosts", "--user=root", "--pid-file=", "--log-facility=-",
                         "--listen-address=127.0.0.1", "--bind-interfaces",
                         "--ptr-record=1.0.0.127.in-addr.arpa,node0"],
                        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        line = server.stderr.readline()
        if "started" not in line:
            raise RuntimeError(f"dnsmasq did not start: {line.strip()}")
        yield
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


def cpu_row():
    def side(server):
        def once():
            with serving(server()) as (port, pid):
                return {f"µs/{operation}".replace("set", "set+ping"): json_of(
                    [program("store_load"), port, pid, operation, "64", "1"])["server_cpu_us_per_request"]
                    for operation in ("add", "set", "get")}
        return once

    def echo_once():
        with serving(echo()) as (port, pid):
            found = json_of([program("store_load"), port, pid, "echo", "64", "1"])
        # Each operation of the store is compared with the echo of a message of an ADD's size.
        return dict.fromkeys(("µs/add", "µs/get"), found["server_cpu_us_per_request"])

    return Row(
        "store-cpu", "store: server CPU per request at 64 connections",
        {OURS: side(ours), ECHO: echo_once, PYTORCH: side(pytorchs)},
        [Goal("µs/add", 1.2, ECHO), Goal("µs/add", 1, PYTORCH), Goal("µs/set+ping", 1, PYTORCH),
         Goal("µs/get", 1.2, ECHO), Goal("µs/get", 1, PYTORCH)], repeats=7,
        note="user + system time of the server, one request under way per connection; the echo "
             "server is one epoll_wait, recv and send per message")


def storm_row():
    def side(server):
        def once():
            import netns
            with netns.Hosts(1) as hosts, names_by_dns(hosts[0]), \
                    serving(hosts[0].command(server())) as (port, pid):
                found = json_of(hosts[0].command([program("store_storm"), port, pid, "16000"]))
            return {"seconds": found["seconds"], "server CPU s": found["server_cpu_seconds"]}
        return once
    return Row("store-storm", "store: 16,000 simulated ranks join, exchange an id, barrier",
               {OURS: side(ours), PYTORCH: side(pytorchs_as_it_is), NO_DNS: side(pytorchs)},
               [Goal("seconds", 0.5, PYTORCH)], repeats=5,
               note="One client process plays all ranks on the same two cores, about 1 s of CPU. "
                    "PyTorch's server asks for the name of every peer: a local DNS server answers"
                    " in the second column, /etc/hosts in the third, its best case")


def memory_row():
    def side(server):
        def once():
            with serving(server()) as (port, pid):
                found = json_of([program("store_memory"), port, pid, "5000"])
            return {"empty MB": found["empty_bytes"] / 1e6,
                    "KB per connection": found["bytes_per_connection"] / 1e3}
        return once
    return Row("store-memory", "store memory: empty, and per idle connection",
               {OURS: side(ours), PYTORCH: side(pytorchs)},
               [Goal("empty MB", 15), Goal("KB per connection", 4.096)], repeats=3,
               note="resident memory of the server's process with 5,000 connections")


FLOODS = ("collide", "wait", "wait-reconnect", "list", "check", "get-large", "append", "add-blanks", "set-large")
FLOOD_SECONDS = 10


def hostile_row():
    def side(server):
        def once():
            found = {}
            for flood in ("none",) + FLOODS:
                with serving(server()) as (port, _):
                    argv = [program("store_hostile"), port, flood, str(FLOOD_SECONDS)]
                    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                    found[f"p99 ms, {flood}"] = json.loads(done.stdout)["p99_ms"] if done.returncode == 0 else math.inf
            return found
        return once
    return Row("store-hostile", "store: a client's GETs while another client floods the server",
               {OURS: side(ours), PYTORCH: side(pytorchs)},
               [Goal(f"p99 ms, {flood}", 5) for flood in FLOODS], repeats=1,
               note=f"A GET each millisecond for {FLOOD_SECONDS} s, timed from when it is due. The floods are in "
                    "bench/store/store_hostile.cc. inf: the server ended")


def rows():
    return [cpu_row(), storm_row(), memory_row(), hostile_row()]
