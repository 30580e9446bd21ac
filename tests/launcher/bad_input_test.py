#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that each bad input gives one clear line and the documented exit code, without a stack trace or a hang."""
import os
import socket
import subprocess
import sys
import time

import harness
import seccomp


class BadInput(harness.Case):
    def refused(self, *args, code=2, **more):
        """Runs ddprun, which must refuse. Returns the one line that it prints."""
        done = self.ddprun(*args, timeout=20, code=code, **more)
        self.assertEqual(done.stdout, "", done.text)
        self.assertNotIn("terminate called", done.stderr)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 1, done.text)
        self.assertTrue(lines[0].startswith("ddprun: "), done.text)
        return lines[0]

    def test_unknown_flag_with_a_suggestion(self):
        self.assertIn("unknown flag --nproc_per_noed (did you mean --nproc-per-node?)",
                      self.refused("--nproc_per_noed=2", "true"))

    def test_a_flag_behind_the_program_is_warned_of(self):
        done = self.ddprun("--standalone", "echo", "--nproc_per_node=2")
        self.assertEqual((done.returncode, done.stdout), (0, "--nproc_per_node=2\n"), done.text)
        self.assertIn("warning: --nproc_per_node after echo goes to that program", done.stderr)

    def test_hang_flags(self):
        self.assertIn("--hang-action=kill: must be restart, report or off",
                      self.refused("--standalone", "--hang-action=kill", "true"))
        self.assertIn('--hang-timeout=30x: "30x" is no time',
                      self.refused("--standalone", "--hang-timeout=30x", "true"))
        self.assertIn("--hang-action is report here, but default on", self.refused_by_the_first_node())

    def refused_by_the_first_node(self):
        endpoint = f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}"
        flags = ["--nnodes=2", endpoint, "--rdzv-id=job", "--local-addr=127.0.0.1"]
        first = self.start(*flags, "true")
        first.stderr.readline()  # its line about waiting for the other node
        done = self.ddprun(*flags, "--hang-action=report", "true", code=2)
        first.terminate()
        return done.stderr

    def test_preemption_flags_that_cannot_be(self):
        for flag in ("--preemption-signals=SIGKILL", "--preemption-notice=0", "--time-limit=soon",
                     "--time-limit=30", "--max-preemptions=-1", "--no-progress-restarts=x"):
            self.assertIn(flag.split("=")[0], self.refused("--standalone", flag, "true"))
        self.assertIn("SLURM_JOB_END_TIME", self.refused("--standalone", "--time-limit=auto", "true"))

    def test_a_shared_folder_has_an_absolute_path_and_is_the_users_own(self):
        step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NODEID": "0",
                "SLURM_STEP_NUM_TASKS": "2"}
        line = self.refused("true", DDPRUN_SHARED_DIR="scratch", **step)
        self.assertIn("DDPRUN_SHARED_DIR=scratch: wants the absolute path", line)
        shared = self.scratch()
        planted = os.path.join(shared, f"ddprun-{os.geteuid()}")
        os.mkdir(planted, 0o777)
        os.chmod(planted, 0o777)  # without an error, any user could remove the token
        line = self.refused("true", DDPRUN_SHARED_DIR=shared, **step)
        self.assertIn(f"{planted}: others may change it: chmod 700 it. Mend that, or give --token-file", line)

    def test_preflight_flags_that_cannot_be(self):
        for value in ("0", "", "soon", "-1"):
            self.assertIn("--preflight-timeout", self.refused("--standalone", f"--preflight-timeout={value}", "true"))

    def test_output_flags_that_cannot_be(self):
        for flag in ("--redirects=4", "--tee=0:4", "--tee=", "--local-ranks-filter=a", "--ranks-filter=3-1",
                     "--slow-reader=kill", "--watch-output=maybe", "--stdin-rank=-1", "--stdin-rank=", "--log-max-size=10X", "--log-keep=-1"):
            self.assertIn(flag.split("=")[0], self.refused("--standalone", flag, "true"))
        self.assertIn("--stdin-rank=2: there is no rank 2, the last one is 1", self.refused("--standalone", "--nproc-per-node=2", "--stdin-rank=2", "true"))
        self.assertIn("--redirects=4: wants 0, 1 (stdout), 2 (stderr) or 3 (both)", self.refused("--standalone", "-r", "4", "true"))

    def test_a_log_directory_that_cannot_be(self):
        file = self.write(self.scratch(), "file", "x")
        self.assertIn(f"--log-dir={file} is no directory", self.refused("--standalone", f"--log-dir={file}", "true"))
        self.assertIn("can't be written to", self.refused("--standalone", "--log-dir=/proc", "true"))
        self.assertIn("PET_LOG_DIR", self.refused("--standalone", "true", PET_LOG_DIR="/proc"))

    def test_lists_of_hosts_that_cannot_be(self):
        folder = self.scratch()

        def hosts_file(text):
            return "--hostfile=" + self.write(self.scratch(), "h.txt", text)
        for flags, words in (
                ([hosts_file("n1 slots=4\r\n\r\nn[1-\r\n")], 'h.txt:3: "n[1-" is no host and no range'),
                ([hosts_file("n1\nn2\nn[2-3]\n")], "h.txt:3: n2 is named a second time (first: "),
                ([hosts_file("n1 slots=0")], "h.txt:1: slots 0"),
                ([hosts_file("n1:4\nn2\n")], "h.txt:2: n2 has no slots, but n1 has ("),
                ([hosts_file("# none\n")], "h.txt: names no host"),
                ([f"--hostfile={folder}/missing"], "--hostfile=" + folder + "/missing: No such file"),
                ([f"--hostfile={folder}"], "Is a directory"),
                (["--hosts=n[1-2"], "is no host"),
                (["--hosts="], "--hosts=: wants a value"),
                (["--hosts=n1:4", "--nproc-per-node=8"], "n1 has 4 slots, but --nproc-per-node=8"),
                (["--hosts=n[1-4]", "--nnodes=2"], "--nnodes=2: there are 4 hosts; leave --nnodes out, or give --spares"),
                (["--hosts=n[1-2]", "--nnodes=3"], "--nnodes=3: there are 2 hosts; leave --nnodes out"),
                (["--hosts=n[1-2]", "--spares=2"], "--spares=2: leaves no node"),
                (["--hosts=n1", "--hostfile=x"], "give one of the two"),
                (["--hosts=n1", "--standalone"], "--standalone: is for one node"),
                (["--hosts=n1", "--node-rank=0"], "the order of the hosts is that of the ranks"),
                (["--hosts=n1", "--ssh=ssh 'x"], "--ssh=ssh 'x: is no command line"),
                (["--hosts=n1", "--ssh-fanout=0"], "--ssh-fanout=0: wants a number from 1"),
                (["--hosts=n1", "--ssh-timeout=0"], "--ssh-timeout=0: wants a number of seconds"),
                (["--hosts=n1", "--ssh-keep-alive=0.1"], "--ssh-keep-alive=0.1: wants a number of seconds, from 0.2"),
                (["--hosts=n1", "--ssh-keep-alive=86401"], "--ssh-keep-alive=86401: wants a number of seconds"),
                (["--hosts=n1", "--env=A=1", "--env==x"], "wants NAME, NAME=VALUE or -NAME"),
                (["--hosts=n1,n2", "--exclude-hosts=n3"], "--exclude-hosts: n3 is not in the list"),
                (["--env=A=1"], "--env: is for the workers on the hosts"),
                (["--exclude-hosts=n3"], "of which?")):
            with self.subTest(flags):
                done = self.ddprun(*flags, "--ssh=false", "true") if "--ssh" not in "".join(flags) else \
                    self.ddprun(*flags, "true")
                self.assertEqual(done.returncode, 2, done.text)
                self.assertIn(words, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.text)

    def test_no_program(self):
        self.assertIn("PROGRAM is missing", self.refused("--standalone"))

    def test_program_not_found(self):
        self.assertIn("program not found: no-such-program",
                      self.refused("--standalone", "no-such-program"))
        self.assertIn("program not found: ./none", self.refused("--standalone", "./none"))

    def test_program_that_is_a_directory(self):
        self.assertIn("is a directory", self.refused("--standalone", "/usr"))

    def test_program_that_is_not_executable(self):
        script = self.write(self.scratch(), "x.sh", "#!/bin/sh\n")
        self.assertIn("is not executable", self.refused("--standalone", "--no-python", script))

    def test_program_that_the_kernel_refuses(self):
        script = self.write(self.scratch(), "x", "#!/no/such/interpreter\n", mode=0o755)
        done = self.ddprun("--standalone", script, code=126)
        self.assertIn(script, done.stderr)
        script = self.write(self.scratch(), "x", "echo without a first line\n", mode=0o755)
        done = self.ddprun("--standalone", script, code=126)
        self.assertIn("a script needs a first line like #!/bin/sh", done.stderr)

    def test_no_workers(self):
        self.assertIn("--nproc-per-node=0", self.refused("--standalone", "--nproc_per_node=0", "true"))

    def test_gpu_without_a_gpu(self):
        if os.path.exists("/proc/driver/nvidia/gpus"):
            self.skipTest("this machine has a GPU")
        self.assertIn("no NVIDIA GPU", self.refused("--standalone", "--nproc_per_node=gpu", "true"))

    def test_etcd_is_named_as_not_needed(self):
        self.assertIn("--ha=", self.refused("--rdzv-backend=etcd-v2", "true"))

    def test_values_out_of_range_or_without_sense(self):
        for flag, says in (("--nnodes=1000001", "at most 1000000"),
                           ("--rendezvous-timeout=0", "more than 0"),
                           ("--rendezvous-timeout=1e9", "from 0 to 86400000"),
                           ("--shutdown-timeout=1e9", "from 0 to 86400000"),
                           ("--rdzv-conf=is_host=maybe", "must be 1 or 0"),
                           ("--local-addr=a b", "host name or an address"),
                           ("--master-addr=10.0.0.1:5", "host name or an address, no port"),
                           ("--rdzv-endpoint=:::", "HOST:PORT"),
                           ("--rdzv-endpoint=a:99999", "port 99999 is above 65535"),
                           ("--metrics=:99999", "port 99999 is above 65535"),
                           ("--rdzv-endpoint=a\nb", "HOST:PORT"),
                           ("--rdzv-id=" + "9" * 1025, "at most 1024 bytes"),
                           ("--role=a\x1bb", "control characters"),
                           ("--standalone=x", "takes no value")):
            with self.subTest(flag):
                line = self.refused(flag, "true")
                self.assertIn(flag.split("=")[0], line)
                self.assertIn(says, line)

    def test_an_empty_number_is_not_taken_for_none(self):
        """--node-rank=$RANK, but RANK is unset."""
        for flag in ("--node-rank", "--master-port", "--rendezvous-timeout", "--shutdown-timeout"):
            with self.subTest(flag):
                self.assertIn(f"{flag}=: wants a number", self.refused(f"{flag}=", "true"))

    def test_an_empty_place_is_not_taken_for_none(self):
        """--rdzv-endpoint=$ENDPOINT, but ENDPOINT is unset."""
        for flag in ("--rdzv-endpoint", "--master-addr", "--rdzv-id"):
            with self.subTest(flag):
                self.assertIn(f"{flag}=: wants a value, got nothing", self.refused(f"{flag}=", "true"))
        self.assertEqual(self.ddprun("true", PET_RDZV_ENDPOINT="").returncode, 0)

    def test_an_ignored_variable_is_told(self):
        done = self.ddprun("--standalone", "true", DDPRUN_MAX_RESTART="3", DDPRUN_HOSTS="n1", DDPRUN_ROUND="1", DDPRUN_XYZZY="1")
        self.assertEqual(done.returncode, 0, done.text)
        self.assertIn("DDPRUN_MAX_RESTART is ignored (did you mean DDPRUN_MAX_RESTARTS?)", done.stderr)
        self.assertIn("DDPRUN_HOSTS is ignored: --hosts is for the command line", done.stderr)
        self.assertEqual(done.stderr.count("is ignored"), 2, done.stderr)

    def test_ranks_that_are_not_there_are_told(self):
        done = self.ddprun("--standalone", "--nproc-per-node=2", "-r", "7:3", "--local-ranks-filter=0,9", "--ranks-filter=0-1", "true")
        self.assertEqual(done.returncode, 0, done.text)
        self.assertIn("--redirects=7:3: this node has no local rank 7, its last one is 1", done.stderr)
        self.assertIn("--local-ranks-filter=0,9: this node has no local rank 9", done.stderr)
        self.assertEqual(done.stderr.count("this node has no"), 2, done.stderr)

    def test_a_wrong_number_of_workers_is_said_of_the_variable_that_gave_it(self):
        for value in ("0", "x", "1.5", "99999999"):
            self.assertIn(f"DDPRUN_NPROC_PER_NODE={value}: wants a number from 1 to ", self.refused("true", DDPRUN_NPROC_PER_NODE=value))

    def test_a_flag_without_its_value(self):
        done = self.ddprun("--nnodes")
        self.assertEqual(done.returncode, 2)
        self.assertIn("ddprun: --nnodes: wants a value, N|MIN:MAX\n", done.stderr)

    def test_a_value_with_line_breaks_stays_one_line(self):
        self.assertIn(r"--max-restarts=a\nb\x1b", self.refused("--max-restarts=a\nb\x1b", "true"))
        self.assertIn(r"./a\nb", self.refused("./a\nb"))
        self.assertIn(r"--max-restarts=\u202e3", self.refused("--max-restarts=\u202e3", "true"))

    def test_a_free_port_that_other_nodes_cannot_know(self):
        self.assertIn("give a number", self.refused("--nnodes=2", "--rdzv-endpoint=127.0.0.1:0", "true"))

    def test_nobody_listens_at_port_0(self):
        for flags in (["--standing-agents", "--rdzv-endpoint=127.0.0.1:0"], ["--rdzv-endpoint=192.0.2.1:0"],
                      ["--rdzv-conf=is_host=0", "--rdzv-endpoint=127.0.0.1:0"]):
            self.assertIn("nobody listens at port 0", self.refused(*flags, "true"))
        for program, *words in ((harness.DDPRUNCTL, "status"), (os.path.join(harness.BIN, "ddprun-agent"),)):
            done = self.finish(self.start(*words, "--rdzv-endpoint=127.0.0.1:0", program=program))
            self.check_one_line(done, "--rdzv-endpoint=127.0.0.1:0: nobody listens at port 0")

    def test_a_config_file_s_own_name_stays_one_line_and_a_link_says_where_it_leads(self):
        folder = self.scratch()
        path = self.write(folder, "a\nb", "zz = 1\n")
        self.assertIn(r"a\nb:1: unknown key zz", self.refused(f"--config={path}", "true"))
        os.symlink("/none", f"{folder}/link")
        self.assertIn("link is a link to /none, which does not exist", self.refused(f"--config={folder}/link", "true"))
        self.assertIn("link is a link to /none, which does not exist", self.refused(f"--hostfile={folder}/link", "true"))

    def test_all_problems_at_once(self):
        done = self.ddprun("--nnodes=0", "--max-restarts=x", "--node-rank=-1")
        self.assertEqual(done.returncode, 2)
        for flag in ("--nnodes", "--max-restarts", "--node-rank", "PROGRAM"):
            self.assertRegex(done.stderr, f"(?m)^ddprun: .*{flag}")

    def test_no_endpoint_shows_the_line_to_paste_at_once(self):
        """ddprun takes about as long as for --version, so it waits for nothing."""
        def seconds(*arguments):
            begin = time.monotonic()
            return self.ddprun(*arguments), time.monotonic() - begin
        pairs = [(seconds("--version"), seconds("--nnodes=2", "--nproc_per_node=4", "true", "a b")) for _ in range(10)]
        done = pairs[-1][1][0]
        self.assertEqual(done.returncode, 2, done.text)
        self.assertRegex(done.stderr, r"(?m)^    ddprun --rdzv-endpoint=[\d.]+:29400 "
                                      r"--nnodes=2 --nproc_per_node=4 true 'a b'$")
        version, shown = (min(took for _, took in each) for each in zip(*pairs))
        self.assertLess(shown, 5 * version)

    def test_an_endpoint_that_no_other_node_can_reach_is_refused(self):
        for host in ("0.0.0.0", "[::]"):
            line = self.refused("--nnodes=2", f"--rdzv-endpoint={host}:29400", "true")
            self.assertIn(f"{host}:29400", line)
            self.assertRegex(line, r"as in --rdzv-endpoint=\S+:29400$")
            port = harness.free_port()
            done = self.ddprun(f"--rdzv-endpoint={host}:{port}", "true")  # the job has one node, as with torchrun
            self.assertEqual(done.returncode, 0, done.text)
        for flags, line in (
                (["--master-addr=0.0.0.0", "--node-rank=1"], "--master-addr=HOST"),
                (["--rdzv-endpoint=0.0.0.0:7", "--rdzv-conf=is_host=0"], "--rdzv-endpoint=HOST:7"),
                (["--rdzv-endpoint=127.0.0.1:7", "--local-addr=0.0.0.0"], f"--local-addr={socket.gethostname()}")):
            with self.subTest(flags):
                self.assertTrue(self.refused("--nnodes=2", *flags, "true").endswith(f"as in {line}"))

    def test_a_lack_of_loopback_is_said_at_once(self):
        if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
            self.skipTest("no network name spaces")
        done = self.finish(self.start("--net", harness.DDPRUN, "true", program="unshare"), timeout=20)
        self.check_one_line(done, "the loopback interface is down", "ip link set lo up")

    def test_a_lack_of_127_0_0_1_is_said_at_once(self):
        bare = ["unshare", "--net", "sh", "-c", 'ip link set lo up && ip address del 127.0.0.1/8 dev lo && exec "$@"', "sh"]
        if subprocess.run([*bare, "true"], capture_output=True).returncode != 0:
            self.skipTest("no network name spaces")
        done = self.finish(self.start(*bare[1:], harness.DDPRUN, "true", program=bare[0]), timeout=20)
        self.check_one_line(done, "has no address 127.0.0.1", "ip address add 127.0.0.1/8 dev lo")

    def test_a_machine_without_a_free_port_is_told_as_such(self):
        holds = ('import os, socket, sys; s = socket.create_server(("127.0.0.1", 40000)); s.set_inheritable(True); '
                 'os.execv(sys.argv[1], sys.argv[1:])')
        one_port = ["unshare", "--net", "sh", "-c", 'ip link set lo up && echo 40000 40000 >/proc/sys/net/ipv4/ip_local_port_range '
                    '&& exec "$@"', "sh", sys.executable, "-c", holds]
        if subprocess.run([*one_port, "/bin/true"], capture_output=True).returncode != 0:
            self.skipTest("no network name spaces")
        done = self.finish(self.start(*one_port[1:], harness.DDPRUN, "true", program=one_port[0]), timeout=20)
        self.check_one_line(done, "no port is free at 127.0.0.1", "net.ipv4.ip_local_port_range")

    def test_a_config_file_that_is_wrong_is_named_with_its_line(self):
        folder = self.scratch()
        path = self.write(folder, "ddprun/ddprun.toml", "\nrdzv_endpont = 'x'\n")
        self.assertIn(f"{path}:2: unknown key rdzv_endpont (did you mean rdzv_endpoint?)",
                      self.refused("--nnodes=2", "true", XDG_CONFIG_HOME=folder))

    def test_all_that_is_wrong_in_config_files_is_told(self):
        folder = self.scratch()
        path = self.write(folder, "ddprun/ddprun.toml", "zz = 1\nhosts = 3\n")
        named = self.write(folder, "named.toml", "yy = 1\n")
        done = self.ddprun(f"--config={named}", "true", XDG_CONFIG_HOME=folder, code=2)
        self.assertEqual(done.stderr, f"ddprun: {named}:1: unknown key yy\nddprun: {path}:1: unknown key zz\n"
                                      f'ddprun: {path}:2: hosts wants ["host1", "host2"]\n')

    def test_a_config_file_that_never_ends_is_not_read(self):
        folder = self.scratch()
        path = os.path.join(folder, "ddprun", "ddprun.toml")
        os.mkdir(os.path.dirname(path))

        def said():
            line = self.refused("--nnodes=2", "true", XDG_CONFIG_HOME=folder)
            os.unlink(path)
            self.assertIn(f"can't read {path}: ", line)
            return line
        os.mkfifo(path)
        self.assertIn("no regular file", said())
        os.symlink("/dev/zero", path)
        self.assertIn("no regular file", said())
        self.write(folder, "ddprun/ddprun.toml", "#" * (2 << 20))
        self.assertIn("more than 1 MiB", said())

    def test_a_port_in_use_names_its_holder(self):
        with socket.create_server(("127.0.0.1", 0)) as foreign:
            port = foreign.getsockname()[1]
            line = self.refused("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "true")
        self.assertIn(f"127.0.0.1:{port}", line)
        self.assertIn("in use", line)
        self.assertIn(f"pid {os.getpid()}", line)

    def test_a_port_that_is_given_up_meanwhile_is_taken(self):
        """The foreign server is an earlier ddprun that was about to end."""
        with socket.create_server(("127.0.0.1", 0)) as foreign:
            foreign.settimeout(20)
            port = foreign.getsockname()[1]
            process = self.start("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "true")
            asking, _ = foreign.accept()  # ddprun's question about the server
        asking.close()
        self.assertIn("waiting for nodes: 1 of 2", process.stderr.readline())

    def test_a_rendezvous_that_dies_after_it_was_asked_is_succeeded(self):
        """The server says its name, then ends. The node that owns the address then serves the rendezvous itself."""
        with socket.create_server(("127.0.0.1", 0)) as foreign:
            foreign.settimeout(20)
            port = foreign.getsockname()[1]
            process = self.start("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "true")
            asking, _ = foreign.accept()
            asking.recv(100)
            asking.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"service":"ddprun-rendezvous"}')
            asking.close()
            asking, _ = foreign.accept()  # the agent's connection
        asking.close()
        self.assertIn("has ended: serving it here", process.stderr.readline())
        second = self.ddprun("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "true")
        self.assertEqual((second.returncode, self.finish(process).returncode), (0, 0), second.text)

    def test_a_job_that_comes_while_an_earlier_one_says_farewell_is_not_lost_with_it(self):
        """The earlier job's rendezvous ends with it, when its workers' store is unused."""
        port = harness.free_port()
        flags = ["--nnodes=1", f"--rdzv-endpoint=127.0.0.1:{port}", "--shutdown-timeout=3"]
        # A node of another job already waits at this port.
        early = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=next", "true"]
        go = os.path.join(self.scratch(), "go")
        first = self.start(*flags, "--rdzv-id=first", "sh", "-c",
                           f"echo ready; until [ -e {go} ]; do sleep 0.01; done; exit 3")
        self.assertEqual(first.stdout.readline(), "ready\n")
        waiting = self.start(*early)
        self.assertIn("waiting for nodes: 1 of 2", waiting.stderr.readline())
        open(go, "w", encoding="ascii").close()
        self.assertIn("ending with an earlier job; trying again", waiting.stderr.readline())
        done = self.finish(self.start(*early))
        self.assertEqual([done.returncode, self.finish(waiting).returncode], [0, 0], done.text)
        self.assertEqual(self.finish(first).returncode, 3)

    def test_a_port_that_needs_root(self):
        drop = ["setpriv", "--bounding-set=-all"] if os.geteuid() == 0 else []
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", encoding="ascii") as f:
            if int(f.read()) <= 1:
                self.skipTest("any port is anybody's here")
        done = subprocess.run([*drop, harness.DDPRUN, "--nnodes=2", "--rdzv-endpoint=127.0.0.1:1", "true"],
                              env=harness.environment(), text=True, capture_output=True, timeout=20)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr, "ddprun: can't listen on 127.0.0.1:1: Permission denied "
                                      "(a port below 1024 needs root: take another)\n")

    def test_a_fault_of_the_system_is_no_usage_error(self):
        seccomp.require()
        line = self.refused("--standalone", "true", code=70, preexec_fn=lambda: seccomp.forbid("getrandom"))
        self.assertIn("getrandom: Function not implemented", line)

    def test_a_master_port_in_use_names_its_holder(self):
        with socket.create_server(("127.0.0.1", 0)) as foreign:
            port = foreign.getsockname()[1]
            lines = [self.refused(f"--master-port={port}", "true"),
                     self.refused("--standalone", f"--master-port={port}", "true")]
        for line in lines:
            self.assertIn(f"127.0.0.1:{port}", line)
            self.assertIn(f"pid {os.getpid()}", line)

    def test_an_unreachable_endpoint_names_who_was_tried_and_for_how_long(self):
        port = harness.free_port()
        done = self.ddprun("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=is_host=0",
                           "--rendezvous-timeout=0.5", "true", timeout=20)
        self.assertEqual(done.returncode, 69, done.text)
        self.assertIn(f"127.0.0.1:{port}", done.stderr)
        self.assertIn("refused", done.stderr)
        self.assertRegex(done.stderr, r"tried \d+ times in [4-9]\d\d ms")

    def test_nodes_that_never_come_are_counted(self):
        port = harness.free_port()
        done = self.ddprun("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}",
                           "--rendezvous-timeout=0.5", "true", timeout=20)
        self.assertNotEqual(done.returncode, 0, done.text)
        self.assertIn("1 of 2", done.stderr)

    def test_nodes_whose_commands_differ_are_told_of_each_other(self):
        flags = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}",
                 "--rendezvous-timeout=4", "--shutdown-timeout=1", "echo"]
        for done in [self.finish(p) for p in [self.start(*flags, "a"), self.start(*flags, "b")]]:
            self.assertEqual(done.returncode, 75, done.text)
            self.assertRegex(done.stderr, r"Another job of yours, \d+-[0-9a-f]{12}, waits too \(1 of 2\)")

    def test_nodes_that_disagree_on_the_size(self):
        port = harness.free_port()
        flags = [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=j", "--shutdown-timeout=1"]
        first = self.start("--nnodes=2", *flags, "true")
        harness.wait_until(lambda: can_connect(port), "the first node serves")
        harness.wait_until(lambda: b"waiting" in first.stderr.buffer.peek(), "the first node waits")
        second = self.ddprun("--nnodes=3", *flags, "true", code=2)
        self.assertIn("nnodes", second.stderr)
        self.assertIsNone(first.poll(), "the first node isn't disturbed")


    def test_nodes_that_disagree_on_the_restarts(self):
        port = harness.free_port()
        flags = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=j", "--shutdown-timeout=1"]
        first = self.start(*flags, "--max-restarts=1", "true")
        self.assertIn("waiting for nodes: 1 of 2", first.stderr.readline())
        second = self.ddprun(*flags, "--max-restarts=2", "true", code=2)
        self.assertRegex(second.stderr, r"--max-restarts is 2 here, but 1 on ")
        agreeing = self.ddprun(*flags, "--max-restarts=1", "true")
        self.assertEqual((agreeing.returncode, self.finish(first).returncode), (0, 0), agreeing.text)


def can_connect(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


class Help(harness.Case):
    def test_help_starts_with_examples(self):
        done = self.ddprun("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertLess(done.stdout.index("Examples:"), done.stdout.index("--nnodes N|MIN:MAX"))
        self.assertEqual(done.stdout.count("Usage:"), 1)

    def test_version(self):
        self.assertRegex(self.ddprun("--version").stdout, r"^ddprun \d+\.\d+\.\d+")


if __name__ == "__main__":
    harness.main()
