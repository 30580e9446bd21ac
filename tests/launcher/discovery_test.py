#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that `ddprun --nnodes=2 --nproc_per_node=2 PROGRAM`, typed on two hosts, finds its rendezvous in each
of the ways of docs/launcher.md: flags, environment, Slurm's step variables, configuration files."""
import os
import subprocess

import harness

LINE = ["--nnodes=2", "--nproc_per_node=2", "sh", "-c", harness.SHOW]


class Daemon:
    """Tests with `self.hosts`: a cluster has a ddprund, and an /etc that names it."""

    def serve(self):
        """Starts a ddprund on the first host, for all tests."""
        listen = f"{self.hosts[0].address}:29400"
        daemon = self.hosts[0].popen([harness.DDPRUND, "--insecure", "--listen", listen], stderr=subprocess.PIPE,
                                     env=harness.environment(), text=True)
        self.addCleanup(self._end_daemon, daemon)
        harness.wait_until(lambda: self.hosts[0].run(
            ["sh", "-c", "grep -q ':72D8 .* 0A ' /proc/net/tcp"]).returncode == 0, "ddprund listens")
        return listen

    @staticmethod
    def _end_daemon(daemon):
        daemon.kill()
        daemon.wait()
        daemon.stderr.close()

    def give_each_host_an_etc(self, toml):
        folder = self.scratch()
        for host in self.hosts:
            etc = os.path.join(folder, host.name)
            host.run(["sh", "-c", f"cp -a /etc {etc} && mkdir -p {etc}/ddprun && "
                                  f"mount --bind {etc} /etc"], check=True, timeout=60)
            self.write(etc, "ddprun/ddprun.toml", toml)


class Discovery(Daemon, harness.HostsCase):
    def typed(self, **variables):
        return self.on_hosts(self.hosts, lambda h: LINE, lambda h: variables)

    def test_flags(self):
        done = self.on_hosts(self.hosts, lambda h: [f"--rdzv-endpoint={self.hosts[0].address}", *LINE])
        self.check_whole(done)

    def test_environment(self):
        for name in ("DDPRUN_RDZV_ENDPOINT", "PET_RDZV_ENDPOINT"):
            with self.subTest(name):
                self.check_whole(self.typed(**{name: f"{self.hosts[1].address}:29777"}))

    def test_pet_master_addr_and_node_rank(self):
        done = self.on_hosts(self.hosts, lambda h: LINE, lambda h: {
            "PET_MASTER_ADDR": self.hosts[0].address, "PET_MASTER_PORT": "29512",
            "PET_NODE_RANK": str(h.index)})
        workers = self.check_whole(done)
        self.assertEqual({w["master"] for w in workers}, {f"{self.hosts[0].address}:29512"})

    def test_slurm_step(self):
        done = self.on_hosts(self.hosts, lambda h: LINE, lambda h: {
            "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[0-1]",
            "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": str(h.index)})
        workers = self.check_whole(done)
        self.assertEqual({w["id"] for w in workers}, {"slurm-4711.0"})
        self.assertEqual({w["group"]: w["node"] for w in workers},
                         {str(h.index): h.address for h in self.hosts})

    def test_pbs_job_by_its_node_file(self):
        """Each host runs the line as pbsdsh does. The file has one line for each slot."""
        nodes = self.write(self.scratch(), "nodes", "".join(f"{host.name}\n" * 2 for host in self.hosts))
        pbs = {"PBS_JOBID": "4712.head", "PBS_NODEFILE": nodes}
        done = self.on_hosts(self.hosts, lambda h: LINE[1:], lambda h: {**pbs, "PBS_TASKNUM": str(h.index + 2)})
        workers = self.check_whole(done)
        self.assertEqual({w["id"] for w in workers}, {"pbs-4712.head"})
        self.assertEqual({w["group"]: w["node"] for w in workers},
                         {str(h.index): h.address for h in self.hosts})
        for unreadable in ("/nowhere", "/dev/zero"):
            done, = self.on_hosts([self.hosts[1]], lambda h: LINE[1:],
                                  lambda h: {**pbs, "PBS_NODEFILE": unreadable, "PBS_TASKNUM": "3"})
            self.check_one_line(done, f"PBS job 4712.head: its PBS_NODEFILE={unreadable} can't be read on this node")

    def test_user_file_against_a_daemon(self):
        listen = self.serve()
        folder = self.scratch()
        self.write(folder, "ddprun/ddprun.toml", f'rdzv_endpoint = "{listen}"\n')
        self.check_whole(self.typed(XDG_CONFIG_HOME=folder))
        self.check_whole(self.typed(XDG_CONFIG_HOME=folder))  # the daemon serves a further job

    def test_user_file_with_hosts(self):
        folder = self.scratch()
        addresses = ", ".join(f'"{h.address}"' for h in self.hosts)
        self.write(folder, "ddprun/ddprun.toml", f"hosts = [{addresses}]\n")
        self.check_whole(self.typed(XDG_CONFIG_HOME=folder))

    def test_etc_file_against_a_daemon(self):
        listen = self.serve()
        self.give_each_host_an_etc(f'rdzv_endpoint = "{listen}"\n')
        self.check_whole(self.typed())

    def test_nothing_found(self):
        done = self.typed()
        self.assertEqual([each.returncode for each in done], [2, 2], self.transcript)
        for host, each in zip(self.hosts, done):
            self.assertIn(f"    ddprun --rdzv-endpoint={host.address}:29400 --nnodes=2 ", each.stderr)

    def test_a_daemon_on_the_port_is_joined_by_its_own_host_too(self):
        listen = self.serve()
        self.check_whole(self.typed(DDPRUN_RDZV_ENDPOINT=listen))


if __name__ == "__main__":
    harness.main_on_hosts()
