#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests limits of workers on this machine, whatever it can enforce: the messages, refusals and tables, and the cgroups
themselves."""
import json
import os
import subprocess

import harness


class BadLimits(harness.Case):
    def test_an_invalid_limit_is_refused_in_one_line(self):
        for flag, why in (("--worker-memory=64", "wants a size of at least 1M"),
                          ("--worker-pids=many", "wants a number from 1 to 4194304, or none"),
                          ("--worker-cpuset=all", "wants a list of CPUs, as in 0-7,16, or binding, or none"),
                          ("--worker-cpuset=binding", "of which plan? Give --numa-binding, too"),
                          ("--worker-cpuset=1000", ": this process may use CPUs "),
                          ("--worker-io=/data", "wants DEVICE:rbps=SIZE,wbps=SIZE,riops=N,wiops=N, or none"),
                          ("--worker-io=/proc:rbps=1M", "/proc: no block device is there, or below its file system"),
                          ("--worker-io=999:999:rbps=1M", "999:999: no block device is there"),
                          ("--worker-limits=yes", "must be required or best-effort")):
            with self.subTest(flag):
                done = self.ddprun("--standalone", flag, "true")
                self.check_one_line(done, f"ddprun: {flag.split('=')[0]}", why)

    def test_several_disks_are_several_flags_or_one_value(self):
        done = self.ddprun("--standalone", "--worker-io=/proc:rbps=1M", "--worker-io=/sys:wbps=1M", "true")
        self.assertEqual((done.returncode, done.stderr.count("no block device")), (2, 2), done.text)
        done = self.ddprun("--standalone", "true", DDPRUN_WORKER_IO="/proc:rbps=1M;/sys:wbps=1M")
        self.assertEqual((done.returncode, done.stderr.count("no block device")), (2, 2), done.text)


class Shown(harness.Case):
    FLAGS = ("--worker-memory=64M", "--worker-pids=90")

    def test_a_dry_run_shows_them_and_makes_nothing(self):
        done = self.ddprun("--dry-run", "--standalone", *self.FLAGS, "true")
        self.assertIn("\neach worker   worker-memory 64 MiB, worker-pids 90\n", done.stdout)
        done = self.ddprun("--dry-run", "--json", "--standalone", *self.FLAGS, "true")
        limits = json.loads(done.stdout)["worker_limits"]
        self.assertEqual((limits["worker-memory"], limits["worker-pids"], limits["required"]), (["64 MiB"], ["90"], False))
        self.assertEqual(set(limits["not_enforced"]) - {"worker-memory", "worker-pids"}, set())
        done = self.ddprun("--dry-run", "--json", "--standalone", "true")
        self.assertEqual(json.loads(done.stdout)["worker_limits"], {})

    def test_the_configuration_has_them_from_wherever_they_come(self):
        config = self.write(self.scratch(), "own.toml", 'worker_memory = "64M"\nworker_pids = 90\n')
        done = self.ddprun("--show-config", f"--config={config}", DDPRUN_WORKER_CPUSET="0")
        self.assertIn(f'worker_memory = "64M"  # {config}:1\n', done.stdout)
        self.assertIn(f"worker_pids = 90  # {config}:2\n", done.stdout)
        self.assertIn("worker_cpuset = 0  # DDPRUN_WORKER_CPUSET\n", done.stdout)
        self.assertIn('#worker_io = "none"', done.stdout)


class Leaves(harness.Case):
    def test_each_worker_has_a_leaf_that_is_gone_with_the_job(self):
        plan = json.loads(self.ddprun("--dry-run", "--json", "--standalone", "--worker-pids=90", "true").stdout)
        place = plan["worker_limits"]["cgroup"]
        if place is None:
            self.skipTest(plan["worker_limits"]["not_enforced"]["worker-pids"])
        done = self.ddprun("--standalone", "--nproc-per-node=2", "--worker-pids=90", "sh", "-c",
                           'sh -c "grep ^0:: /proc/self/cgroup"', code=0)
        for rank in (0, 1):
            self.assertRegex(done.stdout, rf"\[{rank}\] 0::\S*/ddprun-round-\d+-1/worker-{rank}\n")
        pid = done.stdout.split("ddprun-round-")[1].split("-")[0]
        self.assertEqual([each for each in os.listdir(place) if each.startswith(f"ddprun-round-{pid}-")], [])


class WithoutCgroups(harness.Case):
    """Tests in a mount namespace without cgroups."""

    def without(self, *args):
        script = 'umount -R -l /sys/fs/cgroup && exec "$@"'
        if subprocess.run(["unshare", "-m", "sh", "-c", "umount -R -l /sys/fs/cgroup"], capture_output=True).returncode != 0:
            self.skipTest("no mount namespace without cgroups can be made here: needs root")
        return self.finish(self.start("-m", "sh", "-c", script, "sh", harness.DDPRUN, *args, program="unshare"))

    def test_one_line_says_so_and_the_job_runs(self):
        done = self.without("--standalone", "--worker-memory=64M", "--worker-pids=90", "sh", "-c", "echo ran")
        self.check_one_line(done, "--worker-memory, --worker-pids can't be enforced: no cgroup v2 is mounted", code=0)
        self.assertEqual(done.stdout, "ran\n")

    def test_cpus_are_bound_by_affinity_instead(self):
        cpu = min(os.sched_getaffinity(0))
        done = self.without("--standalone", f"--worker-cpuset={cpu}", "sh", "-c", "grep Cpus_allowed_list /proc/self/status")
        self.assertEqual(done.stdout.split(), ["Cpus_allowed_list:", str(cpu)], done.text)
        self.check_one_line(done, "the CPUs are bound by affinity, which a worker may change", code=0)

    def test_a_node_that_lacks_required_limits_is_refused(self):
        done = self.without("--standalone", "--worker-limits=required", "--worker-pids=90", "echo", "ran")
        self.check_one_line(done, "--worker-limits=required: --worker-pids can't be enforced")
        done = self.without("--nnodes=2", "--rdzv-endpoint=127.0.0.1:1", "--worker-limits=required", "--worker-pids=90", "echo", "ran")
        self.check_one_line(done, "--worker-limits=required", code=75)


if __name__ == "__main__":
    harness.main()
