#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests --hosts and --hostfile: one shell starts all nodes, over real sshds on hosts of their own."""
import hashlib
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time

import harness
import netns
import sshd

PORT = 2222
# Arguments with all characters that have a meaning in a shell.
HOSTILE = ["", "a b", "'", '"', "$(touch pwned)", "`id`", "new\nline", "\\", "a;b|c&d>e", "*", "~", "-x", "--hosts=z",
           "${HOME}", "ümlaut", "\x01\x7f", "#no", "!!", "%s", "=", "{endpoint}"]
SHOW_ARGV = "import json, os, sys; print('ARGV', json.dumps([os.environ['RANK'], sys.argv[1:], os.environ.get('ODD')]))"


def command_lines(host):
    """Returns pid → words, for every process on the host."""
    found = {}
    for pid in host.pids():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                found[pid] = f.read().decode(errors="replace").split("\0")[:-1]
        except OSError:
            pass
    return found


def state_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        return f.read().rsplit(")", 1)[1].split()[0]


class HostsCase(harness.Case):
    num_hosts = 3

    @classmethod
    def setUpClass(cls):
        cls.keys = sshd.Keys()
        cls.addClassCleanup(cls.keys.close)
        cls.keys.client_config(f"Host *\n  Port {PORT}\n")

    def setUp(self):
        self.hosts = netns.Hosts(self.num_hosts)
        self.addCleanup(self.hosts.close)
        self.servers = [sshd.Server(self.keys, host.address, PORT, host=host) for host in self.hosts]
        for server in self.servers:
            self.addCleanup(server.close)

    def launch(self, hosts, *args, on=0, config="ssh_config", **more):
        """Starts ddprun --hosts=… on one of the hosts, as a shell's job: in a process group of its own, which Ctrl-Z
        can stop."""
        return self.start(f"--hosts={hosts}", "--ssh=" + " ".join(self.keys.ssh_words(config)), *args,
                          host=self.hosts[on], preexec_fn=os.setpgrp, **more)

    def outcome(self, hosts, *args, timeout=harness.TIMEOUT, code=None, **more):
        return self.finish(self.launch(hosts, *args, **more), timeout, code)

    def jobs_processes(self, host):
        """Returns the host's processes, except the listening sshd."""
        return {pid: words for pid, words in command_lines(host).items()
                if words and "-D" not in words and not words[0].startswith("sshd:")}

    def await_quiet(self, *hosts, seconds=20):
        for host in hosts or self.hosts:
            harness.wait_until(lambda: not self.jobs_processes(host),
                               f"nothing of the job runs on {host.name}: {self.jobs_processes(host)}", seconds)

    def agents(self, host):
        return sum("--from-channel" in words and words[0].endswith("ddprun") for words in command_lines(host).values())

    def await_lines(self, stream, text, count):
        seen = []
        for line in stream:
            seen.append(line)
            count -= text in line
            if not count:
                return "".join(seen)
        self.fail(f"ended without {count} more of {text}: {seen}")


class Jobs(HostsCase):
    def test_ranks_follow_the_list_and_the_first_host_serves(self):
        done = self.outcome("node[2,0,1]:2", "sh", "-c", harness.SHOW, code=0)
        workers = harness.parse_shown(done.stdout)
        self.assertEqual([w["rank"] for w in workers], [str(r) for r in range(6)], done.text)
        addresses = [self.hosts[i].address for i in (2, 0, 1)]
        self.assertEqual([w["node"] for w in workers], [a for a in addresses for _ in range(2)], done.text)
        self.assertEqual({w["master"].rsplit(":", 1)[0] for w in workers}, {addresses[0]})
        self.assertEqual(len(done.stdout.splitlines()), 6, "whole lines, and no others")
        self.assertRegex(done.stdout, r"(?m)^\[5\] rank=5 ")
        self.await_quiet()

    def test_this_machine_is_started_without_ssh_and_may_serve(self):
        self.servers[0].close()  # nobody could reach this host by ssh
        done = self.outcome("node0,node1", "sh", "-c", harness.SHOW)
        workers = harness.parse_shown(done.stdout)
        self.assertEqual([w["node"] for w in workers], [self.hosts[0].address, self.hosts[1].address], done.text)
        self.assertEqual(done.returncode, 0, done.text)

    def test_a_launcher_that_is_not_among_the_hosts_and_a_hosts_file(self):
        path = self.write(self.scratch(), "hosts.txt", f"\ufeff# two\r\n{self.hosts[0].address} slots=1\r\nnode1:2 # b\r\n")
        done = self.finish(self.start(f"--hostfile={path}", "--ssh=" + " ".join(self.keys.ssh_words()),
                                      "sh", "-c", harness.SHOW, host=self.hosts[2]), code=0)
        self.assertEqual([w["group"] for w in harness.parse_shown(done.stdout)], ["0", "1", "1"], done.text)

    def test_arguments_and_environment_arrive_byte_for_byte_and_never_on_a_command_line_of_ssh(self):
        scratch = self.scratch()
        running = self.launch("node[1,2]", sys.executable, "-c",
                              SHOW_ARGV + "; sys.stdout.flush(); import time; time.sleep(600)", *HOSTILE, "s3cret-word",
                              ODD="a\n'$(x)' \xe9", HUSH="s3cret-variable")
        text = self.await_lines(running.stdout, "ARGV", 2)
        for line in re.findall(r"ARGV (.*)", text):
            _, argv, odd = json.loads(line)
            self.assertEqual(argv, HOSTILE + ["s3cret-word"])
            self.assertEqual(odd, "a\n'$(x)' \xe9")
        for words in command_lines(self.hosts[0]).values():
            if "ssh" in os.path.basename(words[0]):
                self.assertNotIn("s3cret", " ".join(words))
        self.assertFalse(os.path.exists(os.path.join(scratch, "pwned")) or os.path.exists("pwned"))
        running.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(running).returncode, 143)

    def test_the_workers_get_the_variables_that_they_should(self):
        code = 'echo "E $RANK/$NCCL_X/$TMPDIR/$GIVEN/$NOT/$DDPRUN_UNDER_CHANNEL/$(pwd)/$DDPRUN_SSH"'
        done = self.outcome("node1,node2", "--env", "GIVEN=a b=c", "--env=-NOT", "sh", "-c", code, NCCL_X="1",
                            TMPDIR=self.scratch(), NOT="x")
        found = sorted(line.split("E ", 1)[1] for line in done.stdout.splitlines())
        self.assertEqual(found, [f"{r}/1//a b=c///{os.getcwd()}/" for r in (0, 1)], done.text)

    def test_one_result_and_one_report(self):
        own = os.path.join(self.scratch(), "own.json")
        done = self.outcome("node[0-2]", "--max-restarts=1", "sh", "-c", '[ $RANK = 2 ] && exit 7; exec sleep 600',
                            TORCHELASTIC_ERROR_FILE=own, code=7)
        with open(own, encoding="utf-8") as f:
            self.assertRegex(f.read(), r'the first failure was rank 2.*"errorCode": ?"?7')
        self.assertEqual(done.stderr.count("sh FAILED: the first failure was rank 2"), 1, done.text)
        self.assertEqual(done.stderr.count("ddprun exits with 7"), 1, done.text)
        self.assertTrue(done.stderr.rstrip().endswith("-"), "the report is the last thing on screen")
        self.assertEqual(len(re.findall("round 1 is over", done.stderr)), 1, "said once, not by each node")
        self.await_quiet()

    def test_output_of_many_ranks_is_whole_lines(self):
        code = "import os\nfor i in range(3000): print('x' * 50, os.environ['RANK'], i, flush=i % 7 == 0)"
        done = self.outcome("node[0-2]:2", sys.executable, "-c", code)
        self.assertEqual(done.returncode, 0, done.text[-2000:])
        lines = sorted(done.stdout.splitlines())
        self.assertEqual(lines, sorted(f"[{r}] {'x' * 50} {r} {i}" for r in range(6) for i in range(3000)))

    def test_other_ways_than_ssh(self):
        ways = "".join(f"  {host.name}) shift; exec {' '.join(host.command([]))} \"$@\" ;;\n" for host in self.hosts)
        script = self.write(self.scratch(), "way.sh", f'#!/bin/sh\ncase "$1" in\n{ways}esac\n', 0o755)
        # No ssh reports node1's address, so its name is used.
        done = self.finish(self.start("--hosts=node[1,2]", f"--ssh={script} {{host}}", "sh", "-c", harness.SHOW))
        self.assertEqual(done.returncode, 0, done.text)
        workers = harness.parse_shown(done.stdout)
        self.assertEqual([w["node"] for w in workers], [self.hosts[1].address, self.hosts[2].address], done.text)


class Failures(HostsCase):
    def test_a_host_that_refuses_the_key(self):
        self.write(self.keys.directory, "wrong_key",
                   f"Host node2\n  IdentityFile {self.keys.path('stranger_key')}\nHost !node2 *\n"
                   f"  IdentityFile {self.keys.path('user_key')}\nHost *\n  Port {PORT}\n  IdentitiesOnly yes\n"
                   f"  UserKnownHostsFile {self.keys.path('known_hosts')}\n  IdentityAgent none\n")
        done = self.outcome("node[0-2]", "sleep", "600", config="wrong_key", code=2)
        self.assertRegex(done.stderr, r"node2: ssh ended with 255: .*Permission denied")
        self.await_quiet()

    def test_a_host_key_that_is_not_known(self):
        with open(self.keys.path("stranger_key.pub")) as f:
            other = " ".join(f.read().split()[:2])
        self.write(self.keys.directory, "other_hosts", f"* {other}\n")
        self.keys.client_config(f"Host *\n  Port {PORT}\n  UserKnownHostsFile {self.keys.path('other_hosts')}\n",
                                name="unknown")
        done = self.outcome("node1", "true", config="unknown", code=2)
        self.assertIn("node1: ssh ended with 255: Host key verification failed.", done.stderr)

    def test_a_host_that_is_down_is_named(self):
        self.hosts[2].kill()
        own = os.path.join(self.scratch(), "own.json")
        done = self.outcome("node[0-2]", "sleep", "600", TORCHELASTIC_ERROR_FILE=own, code=75)
        self.assertRegex(done.stderr, r"node2: ssh ended with 255: .*Connection refused")
        with open(own, encoding="utf-8") as f:
            self.assertIn("node2: ssh ended with 255", f.read())
        self.await_quiet(self.hosts[0], self.hosts[1])

    def test_a_host_that_is_silent_is_given_up_in_time(self):
        self.hosts[2].cut()
        done = self.outcome("node[0-2]", "--ssh-timeout=2", "sleep", "600", code=75)
        self.assertIn("node2: no answer within 2 s (--ssh-timeout)", done.stderr)
        self.await_quiet(self.hosts[0], self.hosts[1])

    def test_a_job_of_fewer_nodes_goes_on_without_it(self):
        self.hosts[0].kill()
        self.servers[1].close()
        self.servers[1] = sshd.Server(self.keys, self.hosts[1].address, PORT, host=self.hosts[1])
        done = self.outcome("node[0-2]", "--nnodes=2:3", "--last-call-timeout=1", "sh", "-c", harness.SHOW, on=1)
        self.assertEqual(done.returncode, 0, done.text)
        self.assertIn("node0: ssh ended with 255", done.stderr)
        self.assertIn("the job goes on without it", done.stderr)
        workers = harness.parse_shown(done.stdout)
        self.assertEqual([w["world"] for w in workers], ["2", "2"], done.text)

    def test_no_ddprun_there(self):
        done = self.outcome("node1", "--remote-ddprun=/no/where/dd'run", "true", code=2)
        self.assertIn("node1: no ddprun at /no/where/dd'run there", done.stderr)
        self.assertIn("--remote-ddprun", done.stderr)

    def test_a_login_shell_that_talks_is_no_obstacle_and_one_that_refuses_is_quoted(self):
        talks = self.write(self.scratch(), "talks", "#!/bin/sh\nshift\necho Welcome; echo >&2 news\nexec \"$@\"\n", 0o755)
        refuses = self.write(self.scratch(), "refuses", "#!/bin/sh\necho This account is not available.\nexit 1\n", 0o755)
        endpoint = f"--rdzv-endpoint=127.0.0.1:{PORT + 1}"
        done = self.finish(self.start("--hosts=a", f"--ssh={talks} {{host}}", endpoint, "echo", "hi", host=self.hosts[0]))
        self.assertEqual((done.returncode, done.stdout), (0, "[0] hi\n"), done.text)
        done = self.finish(self.start("--hosts=a", f"--ssh={refuses} {{host}}", endpoint, "true", host=self.hosts[0]))
        self.assertEqual(done.returncode, 2, done.text)
        self.assertIn("a: refuses ended with 1: This account is not available.", done.stderr)

    def test_a_program_or_directory_that_is_missing_on_one_host_ends_all_at_once(self):
        done = self.outcome("node[0-1]", "no-such-program", code=2)
        self.assertRegex(done.stderr, r"ddprun: node[01]: .*no-such-program")
        self.await_quiet()

    def test_workers_end_where_the_launcher_is_killed(self):
        scratch = self.scratch()
        running = self.launch("node[0-2]", "sh", "-c",
                              f"trap 'echo >{scratch}/$RANK; exit 1' TERM; echo ready; while :; do sleep 0.1; done")
        self.await_lines(running.stdout, "ready", 3)
        running.kill()
        self.await_quiet()
        self.assertEqual(sorted(os.listdir(scratch)), ["0", "1", "2"], "each was asked first")

    def test_workers_end_where_a_connection_is_cut(self):
        running = self.launch("node[0-2]", "sh", "-c", "echo ready; exec sleep 600")
        self.await_lines(running.stdout, "ready", 3)
        self.cut_connection("node2")
        done = self.finish(running, code=75)
        self.assertIn("node2: ssh was ended by SIGKILL", done.stderr)
        self.assertRegex(done.stderr, r"node 2 \(node2, .*\) left: the connection to its launcher was lost; "
                                      r"2 of 3 nodes are left")
        self.await_quiet()

    def cut_connection(self, name):
        """Kills the ssh to that host, as the kernel or an administrator might."""
        client = next(pid for pid, words in command_lines(self.hosts[0]).items() if name in words)
        os.kill(client, signal.SIGKILL)

    def test_a_job_of_fewer_nodes_goes_on_where_a_connection_or_a_cable_is_cut(self):
        worker = "echo ready; [ $WORLD_SIZE = 2 ] && exec echo two in round $DDPRUN_ROUND; exec sleep 600"
        for cut in (lambda: self.cut_connection("node2"), self.hosts[2].cut):
            running = self.launch("node[0-2]", "--nnodes=2:3", "--ssh-keep-alive=2", "--keep-alive-timeout=2",
                                  "sh", "-c", worker)
            self.await_lines(running.stdout, "ready", 3)
            cut()
            done = self.finish(running)
            self.assertEqual((done.returncode, done.stdout.count("two in round 2")), (0, 2), done.text)
            self.assertRegex(done.stderr, "node2: .*; the job goes on without it")
            self.await_quiet()

    def test_a_spare_takes_the_place_of_a_node_whose_connection_is_cut(self):
        running = self.launch("node[0-2]", "--spares=1", "sh", "-c",
                              "echo ready on $(hostname); [ $DDPRUN_ROUND = 2 ] && exec echo again; exec sleep 600")
        text = self.await_lines(running.stdout, "ready", 2)
        self.await_lines(running.stderr, "spare", 1)
        victim = "node1" if "node1" in text else "node2"  # the spare is the last one to come
        self.cut_connection(victim)
        done = self.finish(running)
        self.assertEqual((done.returncode, done.stdout.count("again")), (0, 2), done.text)
        self.assertIn(f"{victim}: ssh was ended by SIGKILL; the job goes on without it", done.stderr)
        self.await_quiet()

    def test_a_job_ends_with_the_connection_to_the_node_that_serves_its_rendezvous(self):
        running = self.launch("node[1,2]", "--nnodes=1:2", "sh", "-c", "echo ready; exec sleep 600")
        self.await_lines(running.stdout, "ready", 2)
        self.cut_connection("node1")
        done = self.finish(running, code=75)
        self.assertIn("node1: ssh was ended by SIGKILL", done.stderr)
        self.await_quiet()

    def test_an_agent_that_is_killed_takes_its_workers_with_it(self):
        for victim in ("--from-channel", "--node-rank=2"):
            with self.subTest(victim):
                running = self.launch("node[0-2]", "sh", "-c", "echo ready; exec sleep 600")
                self.await_lines(running.stdout, "ready", 3)
                pid = next(pid for pid, words in command_lines(self.hosts[2]).items()
                           if victim in words and words[0].endswith("ddprun"))
                os.kill(pid, signal.SIGKILL)
                done = self.finish(running, code=75)
                self.assertRegex(done.stderr, "(?m)node2: |node 2 ")
                self.await_quiet()

    def test_a_cable_that_is_out_is_noticed_at_both_ends(self):
        """No event reports the fault, and the rendezvous waits longer than ssh's keep-alive."""
        scratch = self.scratch()
        running = self.launch("node[0-2]", "--ssh-keep-alive=1", "--keep-alive-timeout=60", "sh", "-c",
                              f"trap 'echo >{scratch}/$RANK; exit 1' TERM; echo ready; while :; do sleep 0.1; done")
        self.await_lines(running.stdout, "ready", 3)
        begin = time.monotonic()
        self.hosts[2].cut()
        self.await_lines(running.stderr, "node2: nothing was heard of it for 1 s (--ssh-keep-alive)", 1)
        self.assertLess(time.monotonic() - begin, 5)
        self.await_quiet(self.hosts[2])
        self.assertEqual(os.listdir(scratch), ["2"], "it was asked first, and the others still run")
        self.finish(running, code=75)
        self.await_quiet()

    def test_a_launcher_that_stands_still_says_so_and_is_waited_for(self):
        go = os.path.join(self.scratch(), "go")
        running = self.launch("node[0-1]", "--ssh-keep-alive=0.5", "sh", "-c",
                              f"echo ready; until [ -e {go} ]; do sleep 0.1; done; echo done")
        self.await_lines(running.stdout, "ready", 2)
        for stops in (True, False):  # once stopped as by Ctrl-Z, once not
            if stops:
                running.send_signal(signal.SIGTSTP)
                harness.wait_until(lambda: state_of(running.pid) == "T", "it stands still")
            time.sleep(2)  # four times the keep-alive time
            self.assertEqual(self.agents(self.hosts[1]), 1)
            running.send_signal(signal.SIGCONT)
        open(go, "w").close()
        done = self.finish(running)
        self.assertEqual((done.returncode, done.stdout.count("done")), (0, 2), done.text)

    def test_a_launcher_that_is_stopped_without_a_word_is_lost(self):
        running = self.launch("node[0-1]", "--ssh-keep-alive=0.5", "sh", "-c", "echo ready; exec sleep 600")
        self.await_lines(running.stdout, "ready", 2)
        running.send_signal(signal.SIGSTOP)
        self.await_quiet(self.hosts[1])
        running.send_signal(signal.SIGCONT)
        self.assertNotEqual(self.finish(running).returncode, 0)

    def test_power_loss_of_a_host(self):
        running = self.launch("node[0-2]", "sh", "-c", "echo ready; exec sleep 600")
        self.await_lines(running.stdout, "ready", 3)
        self.hosts[2].kill()
        self.finish(running, code=75)
        self.await_quiet(self.hosts[0], self.hosts[1])


class StandardInput(HostsCase):
    """Tests standard input, which goes to global rank 0, as mpirun's users expect."""
    num_hosts = 2
    COUNT = 'echo "$RANK got $(sha256sum | cut -c1-64)"'

    def feed(self, hosts, *args, stdin, on=0, **more):
        """Does the same as launch(), with a standard input."""
        process = self.hosts[on].popen(
            [harness.DDPRUN, f"--hosts={hosts}", "--ssh=" + " ".join(self.keys.ssh_words()), *args], text=True,
            env=harness.environment(**more), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self._end, process)
        return process

    @staticmethod
    def sum_of(data):
        return hashlib.sha256(data).hexdigest()

    def test_a_file_and_a_pipe_arrive_byte_for_byte_at_rank_0_and_nothing_at_the_others(self):
        data = bytes(random.Random(1).randbytes(3_000_000))
        path = os.path.join(self.scratch(), "data")
        with open(path, "wb") as f:
            f.write(data)
        wanted = {f"[{rank}] {rank} got {self.sum_of(data if rank == 0 else b'')}" for rank in range(4)}
        with open(path, "rb") as f:
            done = self.finish(self.feed("node[1,0]:2", "sh", "-c", self.COUNT, stdin=f))
        self.assertEqual(set(done.stdout.splitlines()), wanted, done.text)
        cat = subprocess.Popen(["cat", path], stdout=subprocess.PIPE)
        done = self.finish(self.feed("node[1,0]:2", "sh", "-c", self.COUNT, stdin=cat.stdout))
        cat.stdout.close()
        self.assertEqual((cat.wait(), done.returncode), (0, 0), done.text)
        self.assertEqual(set(done.stdout.splitlines()), wanted, done.text)

    def test_it_is_for_the_rank_that_is_asked_for(self):
        for rank in (1, 3):
            running = self.feed("node[1,0]:2", f"--stdin-rank={rank}", "sh", "-c", 'read line; echo "$line"', stdin=subprocess.PIPE)
            running.stdin.write("typed\n")
            done = self.finish(running)
            self.assertEqual(set(done.stdout.splitlines()), {f"[{r}] " + "typed" * (r == rank) for r in range(4)}, done.text)

    def test_a_prompt_of_a_rank_with_stdin_is_shown(self):
        process, terminal = self.on_terminal(
            "--hosts=node[0,1]", "--ssh=" + " ".join(self.keys.ssh_words()), "--stdin-rank=1", "sh", "-c",
            '[ $RANK = 0 ] || { printf "name? "; read name; echo "hello $name"; }', host=self.hosts[0])
        self.await_shown(terminal, b"[1] name? ")
        os.write(terminal, b"you\n")
        self.await_shown(terminal, b"hello you")
        self.assertEqual(process.wait(harness.TIMEOUT), 0)

    def test_a_rank_that_is_not_there_is_told(self):
        done = self.outcome("node[0,1]", "--stdin-rank=2", "true", code=0)
        self.assertEqual(done.stderr.count("--stdin-rank=2: there is no rank 2, the last one is 1; no rank has stdin"), 1, done.text)

    def test_the_input_is_empty_if_there_is_none(self):
        done = self.outcome("node[0,1]", "sh", "-c", self.COUNT)
        self.assertEqual(set(done.stdout.splitlines()), {f"[{r}] {r} got {self.sum_of(b'')}" for r in (0, 1)}, done.text)

    def test_input_that_nobody_reads_is_left_where_it_was(self):
        """Memory is bounded, and the writer waits as with any pipe."""
        read_end, write_end = os.pipe()
        running = self.feed("node1,node0", "sh", "-c", "echo ready; exec sleep 600", stdin=read_end)
        os.close(read_end)
        self.await_lines(running.stdout, "ready", 2)
        os.set_blocking(write_end, False)
        taken = 0
        quiet_at = time.monotonic() + 1
        while time.monotonic() < quiet_at:
            try:
                taken += os.write(write_end, b"x" * 65536)
                quiet_at = time.monotonic() + 1
            except BlockingIOError:
                select.select([], [write_end], [], 0.1)
            self.assertLess(taken, 2_000_000)
        self.assertGreater(taken, 256 * 1024)
        running.terminate()
        self.assertEqual(self.finish(running).returncode, 143)
        with self.assertRaises(BrokenPipeError):
            os.write(write_end, b"x")
        os.close(write_end)

    def test_the_next_round_reads_on(self):
        running = self.feed("node[1,0]", "--max-restarts=1", "sh", "-c",
                            "if [ $RANK = 0 ]; then read line; echo $line in $DDPRUN_ROUND; [ $DDPRUN_ROUND = 2 ]; exit; fi; "
                            "[ $DDPRUN_ROUND = 2 ] || exec sleep 600",
                            stdin=subprocess.PIPE)
        running.stdin.write("one\ntwo\n")
        running.stdin.flush()
        done = self.finish(running, code=0)
        self.assertEqual(done.stdout.splitlines(), ["[0] one in 1", "[0] two in 2"])

    def test_it_follows_rank_0_to_another_node(self):
        worker = "[ $RANK = 0 ] || exec sleep 600; read line; echo $line in $DDPRUN_ROUND; [ $DDPRUN_ROUND = 2 ] || exec sleep 600"
        running = self.feed("node[0,1]", "--nnodes=1:2", f"--rdzv-endpoint={self.hosts[1].address}", "sh", "-c", worker,
                            on=1, stdin=subprocess.PIPE)
        running.stdin.write("one\n")
        running.stdin.flush()
        self.await_lines(running.stdout, "[0] one in 1", 1)
        client = next(pid for pid, words in command_lines(self.hosts[1]).items() if "node0" in words)
        os.kill(client, signal.SIGKILL)
        # Bytes that are sent before this line are lost with the killed ssh.
        self.await_lines(running.stderr, "goes on without it", 1)
        running.stdin.write("two\n")
        running.stdin.flush()
        self.await_lines(running.stdout, "[0] two in 2", 1)
        self.assertEqual(self.finish(running).returncode, 0)

    def test_a_job_in_the_background_leaves_the_terminal_to_the_shell(self):
        pid, terminal = pty.fork()
        if pid == 0:  # plays the shell: its job is in another process group, and it reads the typed text itself
            job = subprocess.Popen([harness.DDPRUN, "--hosts=localhost", "cat"], env=harness.environment(),
                                   preexec_fn=os.setpgrp)
            os.write(1, b"job ended with %d\n" % job.wait(30))
            os._exit(0 if sys.stdin.readline() == "typed\n" else 1)
        os.write(terminal, b"typed\n")
        shown = self.all_that_is_shown(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0, shown)
        self.assertIn(b"job ended with 0", shown)
        self.assertEqual(shown.count(b"typed"), 1, shown)  # the terminal's echo, no output of cat

    def test_input_that_is_typed_in_the_foreground_arrives_until_control_d(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(harness.DDPRUN, [harness.DDPRUN, "--hosts=localhost", "cat"], harness.environment())
        os.write(terminal, b"typed\n\x04")
        shown = self.all_that_is_shown(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0, shown)
        self.assertIn(b"[0] typed", shown)

    @staticmethod
    def all_that_is_shown(terminal):
        shown = b""
        while True:
            try:
                shown += os.read(terminal, 4096)
            except OSError:
                os.close(terminal)
                return shown


class Signals(HostsCase):
    num_hosts = 2

    def test_the_first_signal_ends_in_order_and_is_said_once(self):
        running = self.launch("node[0-1]", "sh", "-c", "trap 'echo bye; exit 5' INT TERM; echo ready; while :; do sleep 0.1; done")
        self.await_lines(running.stdout, "ready", 2)
        running.send_signal(signal.SIGINT)
        done = self.finish(running, code=130)
        self.assertEqual(done.stdout.count("bye"), 2, done.text)
        self.assertEqual(done.stderr.count("got SIGINT: stopping the workers"), 1, done.text)

    def test_the_second_one_kills(self):
        running = self.launch("node[0-1]", "sh", "-c", "trap '' INT TERM; echo ready; while :; do sleep 0.1; done")
        self.await_lines(running.stdout, "ready", 2)
        running.send_signal(signal.SIGINT)
        self.await_lines(running.stderr, "got SIGINT: stopping", 1)
        running.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(running, timeout=20).returncode, 130)
        self.await_quiet()

    def test_a_signal_while_hosts_are_being_reached(self):
        self.hosts[1].cut()
        running = self.launch("node[0-1]", "sleep", "600")
        harness.wait_until(lambda: any("node1" in words for words in command_lines(self.hosts[0]).values()), "ssh runs")
        running.send_signal(signal.SIGTERM)
        self.finish(running, timeout=20, code=143)

    def test_a_warning_of_preemption_reaches_the_workers_agents(self):
        running = self.launch("node[0-1]", "--preemption-notice=1", "sh", "-c", "echo ready; exec sleep 600")
        self.await_lines(running.stdout, "ready", 2)
        running.send_signal(signal.SIGUSR1)
        self.assertEqual(self.finish(running).returncode, 75)


class ManyHosts(HostsCase):
    num_hosts = 2

    def test_64_hosts_at_once(self):
        self.keys.client_config(f"Host n*\n  HostName {self.hosts[1].address}\n  Port {PORT}\n", name="many")
        done = self.outcome("n[01-64]", "--nproc-per-node=1", "sh", "-c", harness.SHOW, config="many", timeout=240)
        self.assertEqual(done.returncode, 0, done.text[-3000:])
        workers = harness.parse_shown(done.stdout)
        self.assertEqual([w["rank"] for w in workers], [str(r) for r in range(64)])
        self.assertEqual({w["world"] for w in workers}, {"64"})
        self.await_quiet()


if __name__ == "__main__":
    sshd.keys_or_skip().close()
    harness.main_on_hosts()
