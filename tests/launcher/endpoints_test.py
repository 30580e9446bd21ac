#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ddprun with several endpoints of one rendezvous. It finds the leader behind dead, standby and silent endpoints.
A rendezvous that moves to another endpoint goes on with its jobs. No node serves the rendezvous itself."""
import glob
import http.server
import json
import os
import socket
import threading

import harness
from harness import wait_until

SHOW = ["--nproc_per_node=2", "sh", "-c", harness.SHOW]
# A worker that writes its pid to a file for each round and rank, then waits for `go`.
WORKER = ('echo $$ >> "$MEET/$DDPRUN_ROUND.$RANK"; '
          'until [ -e "$MEET/go" ]; do sleep 0.02; done')


def at(*endpoints):
    return "--rdzv-endpoint=" + ",".join(endpoints)


class Endpoints(harness.Case):
    def dead(self):
        return f"127.0.0.1:{harness.free_port()}"

    def standby(self, leader=""):
        """Starts a fake standby. Returns its endpoint, and the list of its requests' paths."""
        asked = []

        class Standby(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(503)
                self.send_header("ddprun-standby", leader)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Standby)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(lambda: (server.shutdown(), thread.join(), server.server_close()))
        return f"127.0.0.1:{server.server_port}", asked

    def mute(self, drops):
        """Returns the endpoint of a silent listener. `drops`: its queue is full, so it takes no connection."""
        listener = socket.socket()
        self.addCleanup(listener.close)
        listener.bind(("127.0.0.1", 0))
        listener.listen(0 if drops else 100)
        for _ in range(4 if drops else 0):
            filler = socket.socket()
            self.addCleanup(filler.close)
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def runs_at(self, *endpoints):
        """Checks that a job of two nodes runs at these endpoints."""
        nodes = [self.start(at(*endpoints), "--nnodes=2", "--rdzv-id=job", "--rendezvous-timeout=30", *SHOW)
                 for _ in range(2)]
        shown = []
        for node in nodes:
            done = self.finish(node, code=0)
            shown += harness.parse_shown(done.stdout)
        self.assertEqual(sorted(worker["rank"] for worker in shown), ["0", "1", "2", "3"])

    def test_the_first_is_dead(self):
        self.runs_at(self.dead(), self.ddprund()[1])

    def test_the_first_is_a_standby(self):
        standby, asked = self.standby()
        self.runs_at(standby, self.ddprund()[1])
        self.assertEqual(set(asked), {"/v1/agent"})

    def test_the_first_takes_connections_and_is_silent(self):
        self.runs_at(self.mute(drops=False), self.ddprund()[1])

    def test_the_first_drops_packets(self):
        self.runs_at(self.mute(drops=True), self.ddprund()[1])

    def test_each_endpoints_certificate_is_for_its_own_host(self):
        certs = self.certs("127.0.0.1")
        _, leader = self.ddprund(*self.tls_server(certs))
        first = f"localhost:{harness.free_port()}"
        done = self.ddprun(at(first, leader), f"--tls-ca={certs}/ca.pem", "--rendezvous-timeout=20", *SHOW, code=0)
        self.assertEqual(len(harness.parse_shown(done.stdout)), 2, done.text)

    def pids(self, meet):
        found = {}
        for path in glob.glob(os.path.join(meet, "*.*")):
            with open(path, encoding="ascii") as file:
                found[os.path.basename(path)] = file.read().split()
        return found

    def test_a_rendezvous_that_comes_back_at_the_other_endpoint_goes_on_with_the_job(self):
        meet, state = self.scratch(), os.path.join(self.scratch(), "state")
        first, second = self.dead(), self.dead()
        daemon, _ = self.ddprund(f"--listen={first}", f"--state-dir={state}")
        nodes = [self.start(at(first, second), "--nnodes=2", "--nproc_per_node=2", "--rdzv-id=job", "sh", "-c",
                            WORKER, MEET=meet) for _ in range(2)]
        wait_until(lambda: len(self.pids(meet)) == 4 and all(self.pids(meet).values()), "the workers run")
        before = self.pids(meet)
        for here in (second, first):
            daemon.kill()
            daemon.wait()
            daemon, _ = self.ddprund(f"--listen={here}", f"--state-dir={state}")
            for node in nodes:
                self.await_line(node, f"lost the rendezvous at {first if here == second else second} (")
                self.await_line(node, "the rendezvous is back")
        with open(os.path.join(meet, "go"), "w", encoding="ascii"):
            pass
        for node in nodes:
            self.finish(node, code=0)
        self.assertEqual(self.pids(meet), before)

    def test_none_can_be_reached(self):
        """Both addresses are this machine's, and no node serves there by itself."""
        dead, (standby, _) = self.dead(), self.standby("n7:29400")
        done = self.ddprun(at(dead, standby), "--nnodes=2", "--rendezvous-timeout=3", "true", code=69)
        waiting, failed = done.stderr.splitlines()
        why = f"{dead}: connection refused (nothing listens there); {standby}: it is a standby of n7:29400"
        self.assertIn(f"no answer yet from the rendezvous at {dead},{standby} (--rdzv-endpoint): {why}. Does a ddprund "
                      "run on these nodes?", waiting)
        self.assertRegex(failed, f"^ddprun: can't reach the rendezvous at {dead} or {standby}: tried \\d+ times in ")
        self.assertIn(f"; last: {why}. Check that a ddprund runs on each of these hosts", failed)

    def test_a_standby_alone(self):
        standby, asked = self.standby()
        done = self.ddprun(at(standby), "--nnodes=2", "--rdzv-conf=is_host=0", "--rendezvous-timeout=1", "true")
        self.check_one_line(done, "it is a standby, and no leader was found", code=69)
        self.assertGreater(len(asked), 2)

    def test_invalid_endpoints_are_one_line(self):
        two = "a:1,b"
        config = self.write(self.scratch(), "c.toml", f'rdzv_endpoint = "{two}"\n')
        nine = ",".join(f"h{i}" for i in range(9))
        nodes = "--nnodes=2"
        for flags, variables, line in (
                ([nodes, "--rdzv-endpoint=a,b,a:29400"], {}, "--rdzv-endpoint=a,b,a:29400: has a:29400 twice"),
                ([nodes, at(nine)], {}, "has 9 endpoints, at most 8 can be given"),
                ([nodes, "--rdzv-endpoint=a,b:x"], {}, '"b:x" is not HOST or HOST:PORT'),
                ([nodes, "--rdzv-endpoint=a,"], {}, '"" is not HOST or HOST:PORT'),
                ([nodes, "--rdzv-endpoint=a,b:0"], {}, "b:0: of several endpoints each needs a port that is known"),
                ([nodes], {"DDPRUN_RDZV_ENDPOINT": "a,a"}, 'DDPRUN_RDZV_ENDPOINT: "a,a": has a:29400 twice'),
                ([nodes], {"PET_RDZV_ENDPOINT": "a,b c"}, 'PET_RDZV_ENDPOINT: "a,b c": "b c" is not HOST'),
                ([nodes, at(two), "--rdzv-backend=static", "--node-rank=0"], {}, "the nodes meet at one"),
                ([nodes, "--rdzv-backend=static", "--node-rank=0", f"--config={config}"], {},
                 f'{config}: "a:1,b": has several endpoints'),
                ([nodes, at(two), "--rdzv-conf=is_host=1"], {}, "so that no node serves"),
                ([nodes, "--rdzv-conf=is_host=true"], {"DDPRUN_RDZV_ENDPOINT": two}, "so that no node serves"),
                ([nodes, "--master-addr=a,b", "--node-rank=0"], {}, "the nodes meet at one")):
            with self.subTest(flags=flags, variables=variables):
                self.check_one_line(self.ddprun(*flags, "true", **variables), line)

    def test_each_source_takes_a_list(self):
        config = self.write(self.scratch(), "c.toml", 'rdzv_endpoint = "a,b:7"\n')
        for flags, variables, origin in (
                ([at("a", "b:7")], {}, "--rdzv-endpoint"),
                ([], {"DDPRUN_RDZV_ENDPOINT": "a,b:7"}, "DDPRUN_RDZV_ENDPOINT"),
                ([], {"PET_RDZV_ENDPOINT": "a,b:7"}, "PET_RDZV_ENDPOINT"),
                ([f"--config={config}"], {}, config)):
            with self.subTest(origin=origin):
                done = self.ddprun("--nnodes=2", "--dry-run", "--json", *flags, "true", code=0, **variables)
                meeting = json.loads(done.stdout)["rendezvous"]
                self.assertEqual((meeting["endpoint"], meeting["source"], meeting["served_by"]),
                                 ("a:29400,b:7", origin, "the ddprund that leads"))

    def test_hosts_pass_them_on_whole(self):
        for flags, variables in (([at("a", "b:7")], {}), ([], {"DDPRUN_RDZV_ENDPOINT": "a,b:7"})):
            with self.subTest(variables=variables):
                done = self.ddprun("--hosts=h1,h2", "--dry-run", "--json", *flags, "true", code=0, **variables)
                said = json.loads(done.stdout)
                self.assertEqual(said["rendezvous"]["endpoint"], "a:29400,b:7")
                for node in said["nodes"]:
                    self.assertIn("--rdzv-endpoint=a,b:7", node["ddprun_arguments"], done.stdout)


if __name__ == "__main__":
    harness.main()
