#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests a job on two hosts: ranks, addresses, failures, restarts, signals."""
import contextlib
import json
import os
import signal
import sys

import harness

PORT = 29400


class TwoHosts(harness.HostsCase):
    def flags(self, *more):
        # Some commands differ from host to host, so the job needs a name.
        return ["--nnodes=2", f"--rdzv-endpoint={self.hosts[0].address}:{PORT}", "--rdzv-id=job", *more]

    def test_ranks_and_addresses(self):
        done = self.on_hosts(self.hosts, lambda h: [*self.flags("--nproc_per_node=2"),
                                                    "sh", "-c", harness.SHOW])
        workers = self.check_whole(done)
        addresses = {h.address for h in self.hosts}
        self.assertEqual({w["node"] for w in workers}, addresses)
        first = [w for w in workers if w["group"] == "0"]
        self.assertEqual({w["node"] for w in first}, {workers[0]["master"].rsplit(":", 1)[0]})
        self.assertEqual({w["master_node"] for w in workers}, {first[0]["node"]})
        self.assertEqual([w["local"] for w in workers], ["0", "1", "0", "1"])

    def test_the_store_is_reached_from_both_hosts(self):
        code = ("import os, socket; s = socket.create_connection((os.environ['MASTER_ADDR'],"
                " int(os.environ['MASTER_PORT'])), 10); print('connected')")
        done = self.on_hosts(self.hosts, lambda h: [*self.flags(), "--no-python", sys.executable,
                                                    "-c", code])
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)

    def test_a_store_of_nodes_on_one_machine_is_closed_to_another_one(self):
        """Such a store is bound to all interfaces, because a further node could still come from elsewhere."""
        flags = ["--nnodes=2", "--rdzv-endpoint=localhost:29400", "--rdzv-id=job"]
        go = self.scratch() + "/go"
        script = f'[ $RANK = 0 ] && echo $MASTER_PORT; until [ -e {go} ]; do sleep 0.01; done'
        nodes = [self.start(*flags, f"--node-rank={rank}", "sh", "-c", script, host=self.hosts[0]) for rank in (0, 1)]
        port = int(nodes[0].stdout.readline())
        code = ("import socket, sys\n"
                "store = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)\n"
                "store.sendall(b'\\0\\xce\\xf7\\x85\\x3c\\r' + bytes(4))\n"  # VALIDATE, PING
                "try: print(len(store.recv(4)))\n"
                "except ConnectionResetError: print(0)\n")
        for host, answer in ((self.hosts[0], "4\n"), (self.hosts[1], "0\n")):
            asked = host.run([sys.executable, "-c", code, self.hosts[0].address, str(port)], text=True,
                             capture_output=True, timeout=30)
            self.assertEqual(asked.stdout, answer, asked.stderr)
        with open(go, "w", encoding="ascii"):
            done = [self.finish(node) for node in nodes]
        self.assertEqual([each.returncode for each in done], [0, 0])
        self.assertIn("all its nodes are on this machine", done[0].stderr)

    def test_the_store_lives_until_the_last_worker_is_gone_on_every_host(self):
        # Rank 0's worker ends at once. The other host's worker needs the store while it ends.
        code = ("import os, signal, socket, sys, time\n"
                "store = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
                "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
                "ready = os.path.join(os.environ['MEET'], os.environ['DDPRUN_ROUND'])\n"
                "if os.environ['RANK'] == '0':\n"
                "  while not os.path.exists(ready): time.sleep(0.01)\n"
                "  sys.exit(6)\n"
                "open(ready, 'w').close()\n"
                "signal.sigwait({signal.SIGTERM})\n"
                "end = time.monotonic() + 0.5\n"
                "while time.monotonic() < end: socket.create_connection(store, 5).close()\n"
                "print('store to the end')\n")
        for more in ([], ["--max-restarts=1"]):
            with self.subTest(more):
                meet = self.scratch()
                done = self.on_hosts(self.hosts, lambda h: [
                    *self.flags(f"--node-rank={h.index}", *more), sys.executable, "-c", code],
                    lambda h: {"MEET": meet})
                self.assertEqual([each.returncode for each in done], [6, 6], self.transcript)
                self.assertEqual(done[1].stdout, "store to the end\n" * (1 + len(more)), self.transcript)

    def test_a_node_that_stood_still_is_named_and_not_its_victims(self):
        nodes = [self.start(*self.flags("--rdzv-conf=keep_alive_timeout=1"), "sh", "-c", "echo up; exec sleep 600", host=host)
                 for host in self.hosts]
        for node in nodes:
            self.await_line(node, "up", stream="stdout")
        nodes[1].send_signal(signal.SIGSTOP)
        ends = [self.finish(nodes[0])]
        nodes[1].send_signal(signal.SIGCONT)
        ends.append(self.finish(nodes[1]))
        self.assertEqual([each.returncode for each in ends], [75, 75])
        self.assertRegex(ends[0].stderr, r"(?m)^ddprun: node 1 \(\S+, \S+\) was lost: nothing was heard of it for 1000 ms")
        self.assertIn("nothing was heard of the rendezvous for its keep-alive time", ends[1].stderr)
        for each in ends:
            self.assertNotRegex(each.stderr, r"(?m)^ddprun: rank")

    def test_a_frozen_node_is_the_report_s_cause_and_not_the_worker_that_missed_it(self):
        place = self.scratch()
        nodes = [self.start(*self.flags("--rdzv-conf=keep_alive_timeout=1", f"--events={place}/events.{host.name}.jsonl",
                                        f"--report={place}/{host.name}.json"), "sh", "-c",
                            f"echo up; [ {host.index} = 0 ] || exec sleep 600; until [ -e {place}/missed ]; do sleep 0.01; done; exit 1",
                            host=host) for host in self.hosts]
        for node in nodes:
            self.await_line(node, "up", stream="stdout")
        with self.frozen(self.hosts[1].pids()), open(place + "/missed", "w", encoding="ascii"):
            ends = [self.finish(nodes[0], code=75)]
        ends.append(self.finish(nodes[1], code=75))
        lost = r"node 1 \(node1, \S+\) was lost: nothing was heard of it for \d+ ms"
        self.assertRegex(ends[0].stderr, rf"(?m)^ddprun: {lost}")
        for each in ends:
            self.assertNotIn("FAILED: the first failure", each.stderr)
        facts = json.loads(self.ddprunctl("report", place, "--json", code=0).stdout)
        self.assertRegex(facts["reason"], rf"^{lost}")
        self.assertIsNone(facts["first_failure"])
        victim = r"rank 0 \(node 0, node0, pid \d+\) failed with exit code 1"
        self.assertRegex(facts["by_round"][0]["cause"], rf"^{lost}; then {victim}$")
        page = self.ddprunctl("report", place, "-o", "-", code=0).stdout
        self.assertRegex(page, rf'class="trouble">{lost}')

    @contextlib.contextmanager
    def frozen(self, pids):
        """Stops the processes, as if their node stood still, and continues them afterwards."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # a process that runs again may have ended this one
                    os.kill(pid, signal.SIGCONT)

    def test_nodes_with_different_numbers_of_workers(self):
        done = self.on_hosts(self.hosts, lambda h: [*self.flags(f"--nproc_per_node={1 + 2 * h.index}"),
                                                    "sh", "-c", harness.SHOW])
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        workers = harness.parse_shown("".join(each.stdout for each in done))
        self.assertEqual([w["rank"] for w in workers], ["0", "1", "2", "3"], self.transcript)
        self.assertEqual(sorted(w["local_world"] for w in workers), ["1", "3", "3", "3"])
        for worker in workers:  # ranks are contiguous on each node
            self.assertEqual(int(worker["rank"]) - int(worker["local"]),
                             0 if worker["group"] == "0" else 4 - int(worker["local_world"]))

    def test_a_failure_on_one_host_is_reported_on_both(self):
        done = self.on_hosts(self.hosts, lambda h: [
            *self.flags("--nproc_per_node=2"), "sh", "-c",
            f'if [ {h.index} = 1 ] && [ $LOCAL_RANK = 1 ]; then echo last words >&2; exit 9; fi; '
            'exec sleep 600'])
        self.assertEqual([each.returncode for each in done], [9, 9], self.transcript)
        for each in done:
            self.assertRegex(each.stderr, r"host +node1 \(node rank \d\)")
            self.assertIn("exit code 9", each.stderr)
            self.assertIn("| last words", each.stderr)

    def test_a_failure_restarts_every_node_with_one_count(self):
        meet = self.scratch()
        done = self.on_hosts(self.hosts, lambda h: [
            *self.flags("--nproc_per_node=2", "--max-restarts=2"), "sh", "-c",
            harness.SHOW + "; " + harness.MEET +
            f'; if [ $TORCHELASTIC_RESTART_COUNT = {h.index} ]; then '
            '[ $LOCAL_RANK = 1 ] && exit 1; exec sleep 600; fi; '
            '[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exec sleep 600'], lambda h: {"MEET": meet})
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        workers = harness.parse_shown("".join(each.stdout for each in done))
        self.assertEqual([(w["round"], w["restart"], w["rank"]) for w in workers],
                         [(str(n + 1), str(n), str(r)) for n in range(3) for r in range(4)],
                         self.transcript)
        self.assertEqual(len({w["master"] for w in workers}), 3, "a fresh store for each round")
        self.assertEqual(len({(w["node"], w["group"]) for w in workers}), 2, "ranks are stable")

    def test_sigterm_at_one_node_ends_the_job_on_both(self):
        running = [self.start(*self.flags(), "sh", "-c", "echo ready; exec sleep 600", host=h)
                   for h in self.hosts]
        for process in running:
            self.assertEqual(process.stdout.readline(), "ready\n")
        running[1].send_signal(signal.SIGTERM)
        done = [self.finish(process, timeout=20) for process in running]
        self.assertEqual(done[1].returncode, 128 + signal.SIGTERM, done[1].text)
        self.assertNotEqual(done[0].returncode, 0, done[0].text)
        for host in self.hosts:
            self.assertEqual(host.pids(), [])

    def test_the_node_that_serves_may_succeed_first(self):
        done = self.on_hosts(self.hosts, lambda h: [*self.flags(), "sh", "-c",
                                                    f"[ {h.index} = 0 ] || sleep 0.5"])
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)

    def test_either_host_may_come_first(self):
        late = self.start(*self.flags(), "sh", "-c", harness.SHOW, host=self.hosts[1])
        line = late.stderr.readline()  # the line says what it waits for
        self.assertIn(f"{self.hosts[0].address}:{PORT}", line)
        early = self.start(*self.flags(), "sh", "-c", harness.SHOW, host=self.hosts[0])
        self.assertEqual([self.finish(p).returncode for p in (early, late)], [0, 0])

    def test_fixed_ranks(self):
        master = self.hosts[1].address
        done = self.on_hosts(self.hosts, lambda h: [
            "--nnodes=2", "--nproc_per_node=2", f"--node-rank={1 - h.index}",
            f"--master-addr={master}", "--master-port=29511", "sh", "-c", harness.SHOW])
        workers = self.check_whole(done)
        self.assertEqual({w["master"] for w in workers}, {f"{master}:29511"})
        self.assertEqual({w["group"]: w["node"] for w in workers},
                         {"0": master, "1": self.hosts[0].address})

    def test_fixed_ranks_survive_a_restart_on_the_same_port(self):
        meet = self.scratch()
        master = self.hosts[0].address
        done = self.on_hosts(self.hosts, lambda h: [
            "--nnodes=2", "--max-restarts=1", f"--node-rank={h.index}", f"--master-addr={master}",
            "sh", "-c", harness.SHOW + "; " + harness.MEET + "; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || "
            f"{{ [ {h.index} = 1 ] && exit 1; exec sleep 600; }}"], lambda h: {"MEET": meet})
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        workers = harness.parse_shown("".join(each.stdout for each in done))
        self.assertEqual([(w["round"], w["rank"]) for w in workers],
                         [("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")], self.transcript)
        self.assertEqual({w["master"] for w in workers}, {f"{master}:29500"})

    def test_one_node_rank_given_twice_is_refused(self):
        first = self.start(*self.flags("--node-rank=0"), "true", host=self.hosts[0])
        self.await_line(first, "waiting")
        second = self.finish(self.start(*self.flags("--node-rank=0"), "true", host=self.hosts[1]), code=2)
        self.assertIn("node-rank", second.stderr)
        self.assertIsNone(first.poll(), "the first node isn't disturbed")

    def test_killing_ddprun_leaves_nothing_on_its_host(self):
        running = [self.start(*self.flags("--nproc_per_node=2"), "sh", "-c",
                              "trap '' TERM; setsid sleep 600 & echo ready; sleep 600", host=h)
                   for h in self.hosts]
        for process in running:
            for _ in range(2):
                self.assertIn("ready", process.stdout.readline())
        running[1].kill()
        harness.wait_until(lambda: not self.hosts[1].pids(), "nothing runs on node1", 5)


class NamesThatAreLoopback(harness.HostsCase):
    """The hosts' own names map to 127.0.1.1, as on Debian."""

    own_name_is_loopback = True

    def test_the_master_is_never_loopback(self):
        done = self.on_hosts(self.hosts, lambda h: [
            "--nnodes=2", "--nproc_per_node=2", f"--rdzv-endpoint=node0:{PORT}",
            "sh", "-c", harness.SHOW])
        self.check_whole(done)
        self.assertIn("all interfaces", done[0].stderr)

    def test_fixed_ranks_by_name(self):
        done = self.on_hosts(self.hosts, lambda h: [
            "--nnodes=2", "--nproc_per_node=1", f"--node-rank={h.index}", "--master-addr=node0",
            "sh", "-c", harness.SHOW])
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        workers = harness.parse_shown("".join(each.stdout for each in done))
        self.assertEqual([w["master"] for w in workers], ["node0:29500"] * 2)


if __name__ == "__main__":
    harness.main_on_hosts()
