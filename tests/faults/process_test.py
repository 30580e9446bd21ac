#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests faults of a launcher: it is paused, gets SIGTERM while it starts workers, or its wall clock jumps."""
import glob
import os
import signal
import time

import fault_case
from fault_case import PATIENCE, wait_until

KEEP_ALIVE = 1.5


class StoppedAgent(fault_case.FaultCase):
    """A launcher under SIGSTOP neither answers nor fences itself."""

    def test_its_workers_are_gone_before_others_take_their_ranks(self):
        daemon = self.daemon(0)
        flags = ("--nnodes=1:2", "--nproc_per_node=2", "--max-restarts=5",
                 f"--rdzv-conf=keep_alive_timeout={KEEP_ALIVE},last_call_timeout=1.5")
        deaf = [fault_case.WORKER, self.meet, "deaf"]
        first = self.agent(1, *flags, program=deaf)
        self.await_round(world=2)  # makes sure that this host has rank 0
        second = self.agent(2, *flags, program=deaf)
        wait_until(lambda: "comes in with the next round" in self.output_of(second), "the second node waits")
        self.kill(self.named(1, "steady_worker")[0])
        self.await_round(world=4)
        before = self.last_round()
        begin = time.monotonic()
        first.send_signal(signal.SIGSTOP)
        wait_until(lambda: not self.named(1, "steady_worker"), "the stopped agent's workers are gone", KEEP_ALIVE + PATIENCE)
        self.await_round(after=before, world=2, seconds=KEEP_ALIVE + 2 + PATIENCE)
        self.assertGreater(time.monotonic() - begin, KEEP_ALIVE)
        self.check_one_rank_0()
        first.send_signal(signal.SIGCONT)
        self.check_end(first, {75}, "given up|was lost")
        self.finish_job()
        self.check_end(second, {0})
        self.check_clean(daemon)

    def test_a_short_stop_is_nothing(self):
        agents = [self.agent(index, "--nnodes=2", "--nproc_per_node=2") for index in (0, 1)]
        self.await_round(world=4)
        agents[1].send_signal(signal.SIGSTOP)
        time.sleep(1)
        agents[1].send_signal(signal.SIGCONT)
        self.finish_job()
        for agent in agents:
            self.check_end(agent, {0})
        self.assertEqual(self.rounds(), {1: 4})
        self.check_clean()


class SignalDuringStart(fault_case.FaultCase):
    num_hosts = 2

    def test_sigterm_at_random_moments_of_the_start(self):
        for number in range(15):
            with self.subTest(number=number, seed=self.seed):
                self.begin_job()
                agents = [self.agent(host.index, "--nnodes=2", "--nproc_per_node=8",
                                     "--rendezvous-timeout=3") for host in self.hosts]
                time.sleep(self.random.uniform(0, 0.15))
                index = self.random.randrange(2)
                agents[index].terminate()
                # −15: its signal handlers were not installed yet. 143: it handled the signal.
                self.check_end(agents[index], {-signal.SIGTERM, 128 + signal.SIGTERM})
                # 143: the agent was told which node left and why. 69, 75: it was alone from the begin.
                self.check_end(agents[1 - index], {128 + signal.SIGTERM, 69, 75}, seconds=3 + PATIENCE)
                self.check_clean()


class ClockJump(fault_case.FaultCase):
    """libfaketime moves the wall clock of all of ddprun's processes, not the monotonic one."""

    num_hosts = 2

    def test_the_wall_clock_jumps_and_nothing_happens(self):
        libraries = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
        if not libraries or os.environ.get("DDPRUN_SANITIZE"):
            self.skipTest("libfaketime is not installed, or a sanitizer is in its place")
        offset = os.path.join(self.meet, "offset")
        self.set_offset(offset, "+0")
        fake = {"LD_PRELOAD": libraries[0], "FAKETIME_TIMESTAMP_FILE": offset,
                "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1"}
        seen = self.hosts[0].run(["date", "+%s"], env={**os.environ, **fake}, stdout=-1, timeout=10)
        self.assertLess(abs(int(seen.stdout) - time.time()), 100)
        agents = [self.agent(host.index, "--nnodes=2", "--nproc_per_node=2", "--max-restarts=1",
                             "--rdzv-conf=keep_alive_timeout=1.5", **fake) for host in self.hosts]
        self.await_round(world=4)
        for jump in ("+3600s", "-3600s", "+10y"):
            self.set_offset(offset, jump)
            seen = self.hosts[0].run(["date", "+%s"], env={**os.environ, **fake}, stdout=-1, timeout=10)
            self.assertGreater(abs(int(seen.stdout) - time.time()), 3000)  # the clock did jump
            time.sleep(0.6)  # more than a third of the keep-alive time, so that pings pass
        self.assertEqual(self.rounds(), {1: 4})
        self.kill(self.named(1, "steady_worker")[0])
        self.await_round(after=1, world=4)
        self.finish_job()
        for agent in agents:
            self.check_end(agent, {0})
        for host in self.hosts:  # killed processes leave libfaketime's files
            host.run(["sh", "-c", "rm -f /dev/shm/faketime_* /dev/shm/sem.faketime_*"], timeout=10)
        self.check_clean()

    @staticmethod
    def set_offset(path, text):
        with open(path + ".part", "w") as f:
            f.write(text + "\n")
        os.rename(path + ".part", path)


if __name__ == "__main__":
    fault_case.main()
