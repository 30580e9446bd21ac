#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `ddprunctl doctor --tier=standard` on all nodes of a job, as workers of ddprun on hosts of their own."""
import glob
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launcher"))
import harness  # noqa: E402
import netns  # noqa: E402
import sshd  # noqa: E402

FAKETIME = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
OF_NODES = ("nodes", "reachability", "latency", "bandwidth", "full_frames", "node_mtu", "node_interfaces",
            "node_names", "node_clocks", "ddprun_versions", "kernel_versions")
# Little is sent, so that a slow cable costs little time. The thresholds ignore a busy machine's own noise.
LITTLE = "[bandwidth]\nbytes = 4194304\nseconds = 0.25\nfactor = 20\n[latency]\nleast = 0.2\n"


class DoctorOfNodes(harness.Case):
    num_hosts = 3

    def setUp(self):
        self.hosts = netns.Hosts(self.num_hosts)
        self.addCleanup(self.hosts.close)
        self.thresholds = self.write(self.scratch(), "doctor.toml", LITTLE)

    def doctor_flags(self, *flags):
        return ["doctor", "--tier=standard", "--timeout=10", f"--thresholds={self.thresholds}", *flags]

    def start_on(self, host, *program, **env):
        return self.start(f"--nnodes={len(self.hosts)}", f"--rdzv-endpoint={self.hosts[0].address}:29400",
                          "--rdzv-id=doctor", "--no-python", *program, host=host, **env)

    def look(self, *flags, on_host=lambda host: None, env_of=lambda host: {}):
        """Runs doctor on all hosts. `on_host`: a host's program; None: ddprunctl. Returns the first one's output."""
        running = [self.start_on(host, *(on_host(host) or [harness.DDPRUNCTL, *self.doctor_flags(*flags)]),
                                 **env_of(host)) for host in self.hosts]
        done = [self.finish(process) for process in running]
        self.transcript = "\n".join(each.text for each in done)
        self.assertEqual({each.returncode for each in done}, {done[0].returncode}, self.transcript)
        self.assertEqual([each.stdout for each in done[1:]], [""] * (len(done) - 1), self.transcript)
        return done[0]

    def page_of(self, done):
        page = json.loads(done.stdout)
        self.assertEqual(page["exit_code"], done.returncode, self.transcript)
        return page, {finding["check"]: finding for finding in page["findings"]}

    def test_good_nodes_are_one_table_well_below_30_seconds(self):
        began = time.monotonic()
        done = self.look("--json", f"--only={','.join(OF_NODES)},somaxconn")
        took = time.monotonic() - began
        page, found = self.page_of(done)
        self.assertLess(took, 20)
        self.assertEqual(page["tier"], "standard")
        self.assertEqual([node["host"] for node in page["nodes"]], ["node0", "node1", "node2"])
        for name in OF_NODES:
            self.assertEqual(found[name]["verdict"], "ok", (found[name], self.transcript))
        self.assertEqual(sorted((pair["from"], pair["to"]) for pair in page["pairs"]), [(0, 1), (0, 2), (1, 2)])
        for pair in page["pairs"]:
            self.assertGreater(min(pair["bits_per_second"], pair["bits_per_second_back"]), 1e6)
        # A finding that is the same on all nodes is printed once.
        self.assertEqual(found["somaxconn"]["nodes"], [0, 1, 2])
        self.assertEqual(sum(finding["check"] == "somaxconn" for finding in page["findings"]), 1)

    def test_a_slow_cable_another_mtu_and_a_skewed_clock_are_named(self):
        slow, small, late = self.hosts
        for end in (slow.enter_switch("tc", "qdisc", "add", "dev", slow.port, "root", "tbf", "rate", "20mbit",
                                      "burst", "16kb", "latency", "40ms"),
                    slow.command(["tc", "qdisc", "add", "dev", slow.interface, "root", "tbf", "rate", "20mbit",
                                  "burst", "16kb", "latency", "40ms"])):
            made = harness.subprocess.run(end, capture_output=True, text=True, timeout=20)
            if made.returncode != 0:
                self.skipTest("no tbf here: " + made.stderr.strip())
        small.run(["ip", "link", "set", small.interface, "mtu", "1400"], check=True, timeout=20)
        can_fake = FAKETIME and not os.environ.get("DDPRUN_SANITIZE")
        skewed = {"LD_PRELOAD": FAKETIME[0], "FAKETIME": "-90s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"} if can_fake else {}
        # This changes the clock of the program, not that of its ddprun.
        wrapped = ["env", *[f"{name}={value}" for name, value in skewed.items()], harness.DDPRUNCTL,
                   *self.doctor_flags("--json", "--only=ways,alike")]
        done = self.look("--json", "--only=ways,alike", on_host=lambda host: wrapped if host is late else None)
        page, found = self.page_of(done)
        self.assertEqual(found["bandwidth"]["verdict"], "warn", self.transcript)
        self.assertEqual(found["bandwidth"]["nodes"], [0], self.transcript)
        self.assertIn("node0 with everybody: sends ", found["bandwidth"]["seen"])
        # A single bad measurement blames no node: only this node's paths were measured again.
        self.assertEqual({(pair["from"], pair["to"]): pair["times"] for pair in page["pairs"]},
                         {(0, 1): 2, (0, 2): 2, (1, 2): 1}, self.transcript)
        self.assertEqual(found["node_mtu"]["verdict"], "warn", self.transcript)
        self.assertEqual(found["node_mtu"]["seen"], "1500 on node[0,2]; 1400 on node1")
        self.assertEqual(found["node_mtu"]["nodes"], [1])
        self.assertEqual(found["full_frames"]["verdict"], "warn", self.transcript)
        self.assertIn("frames of 1500 bytes vanish on the way", found["full_frames"]["seen"])
        if can_fake:
            self.assertEqual(found["node_clocks"]["nodes"], [2], self.transcript)
            self.assertRegex(found["node_clocks"]["seen"], r"^node2 is (89\.9|90\.0)\d\d s behind$")

    def test_a_pair_that_is_blocked_one_way_is_named_with_its_direction(self):
        _, one, other = self.hosts
        one.run(["ip", "route", "add", "blackhole", f"{other.address}/32"], check=True, timeout=20)
        done = self.look("--only=reachability,nodes")
        self.assertEqual(done.returncode, 2, self.transcript)
        self.assertRegex(done.stdout, r"(?m)^fail    reachability +node1 → node2: Invalid argument, "
                                      r"node2 → node1: no answer; wanted: ")
        self.assertRegex(done.stdout, r"(?m)^3 nodes: fail \(1 fail, ")

    def test_a_node_that_never_answers_is_named_at_the_deadline(self):
        mute = self.hosts[2]
        began = time.monotonic()
        done = self.look("--only=nodes,reachability", "--deadline=3",
                         on_host=lambda host: ["sleep", "600"] if host is mute else None)
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual(done.returncode, 2, self.transcript)
        self.assertRegex(done.stdout, r"(?m)^fail    nodes +node 2 gave no answer in time; ")

    def test_the_full_tier_sums_over_all_ranks(self):
        self.write(os.path.dirname(self.thresholds), "doctor.toml", LITTLE + "[all_reduce]\nbytes = 1048576\n")
        hosts, self.hosts = self.hosts, self.hosts[:2]
        self.addCleanup(setattr, self, "hosts", hosts)
        flags = ["doctor", "--tier=full", "--timeout=10", f"--thresholds={self.thresholds}", "--json",
                 "--only=nodes,collectives"]
        done = self.look(on_host=lambda host: ["--nproc-per-node=2", "--log-line-prefix-template=",
                                               harness.DDPRUNCTL, *flags])
        page, found = self.page_of(done)
        self.assertEqual((page["tier"], found["all_reduce"]["verdict"]), ("full", "ok"), self.transcript)
        self.assertRegex(found["all_reduce"]["seen"], r"^1 MiB over 4 ranks: .* bus bandwidth$")
        self.assertIn(found["all_reduce_nccl"]["verdict"], ("skipped", "ok"))  # this depends on the machine's GPUs

    def test_hosts_are_reached_over_ssh(self):
        keys = sshd.Keys()
        self.addCleanup(keys.close)
        keys.client_config("Host *\n  Port 2222\n")
        for host in self.hosts[:2]:
            server = sshd.Server(keys, host.address, 2222, host=host)
            self.addCleanup(server.close)
        done = self.ddprunctl("doctor", "--hosts=node0,node1", "--json", "--only=nodes,node_names",
                              host=self.hosts[0], DDPRUN_SSH=" ".join(keys.ssh_words("ssh_config")))
        self.transcript = done.text
        page, found = self.page_of(done)
        self.assertEqual([node["host"] for node in page["nodes"]], ["node0", "node1"], done.text)
        self.assertEqual({finding["verdict"] for finding in found.values()}, {"ok"}, done.text)

    def test_a_host_that_cannot_be_had_is_unknown_said_once(self):
        done = self.ddprunctl("doctor", "--hosts=nowhere", host=self.hosts[0],
                              DDPRUN_SSH="sh -c 'echo no route >&2; exit 255'")
        self.check_one_line(done, "nowhere", "no route", code=3)


class WithoutAJob(harness.Case):
    def test_the_standard_tier_outside_of_a_job_is_one_line_that_says_how(self):
        done = self.ddprunctl("doctor", "--tier=standard")
        self.check_one_line(done, "looks at all nodes of a job", "ddprun --nnodes=N", code=3)
        done = self.ddprunctl("doctor", "--tier=standart")
        self.check_one_line(done, "--tier=standart", "(did you mean standard?)", code=3)


if __name__ == "__main__":
    harness.main_on_hosts()
