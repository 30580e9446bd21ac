#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The hosts of netns.py have the properties on which other tests rely."""
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import netns
import runner

ANSWER = """
import socket
s = socket.socket(); s.bind(('', 0)); s.listen()
print(s.getsockname()[1], flush=True)
c, peer = s.accept()
c.sendall(peer[0].encode())
"""
ASK = "import socket,sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).recv(99).decode())"


class NetnsTest(unittest.TestCase):
    def test_hosts_reach_each_other_by_name_and_are_seen_with_their_own_address(self):
        with netns.Hosts(3) as hosts:
            server = hosts[0].popen([sys.executable, "-c", ANSWER], stdout=subprocess.PIPE, text=True)
            port = server.stdout.readline().strip()
            done = hosts[2].run([sys.executable, "-c", ASK, "node0", port], timeout=20, text=True,
                                stdout=subprocess.PIPE)
            self.assertEqual(done.stdout.strip(), hosts[2].address)
            server.wait(timeout=5)
            server.stdout.close()

    def test_name_and_shared_memory_are_the_hosts_own(self):
        name = f"ddprun-netns-test-{os.getpid()}"
        with netns.Hosts(2) as hosts:
            hosts[0].run(["touch", f"/dev/shm/{name}"], check=True, timeout=10)
            self.assertFalse(os.path.exists(f"/dev/shm/{name}"))
            seen = hosts[1].run(["test", "-e", f"/dev/shm/{name}"], timeout=10)
            self.assertEqual(seen.returncode, 1)
            self.assertEqual(hosts[1].run(["hostname"], timeout=10, stdout=subprocess.PIPE).stdout,
                             b"node1\n")
        self.assertNotEqual(socket.gethostname(), "node1")

    def test_commands_run_where_the_caller_says_or_is(self):
        with netns.Hosts(1) as hosts, tempfile.TemporaryDirectory() as directory:
            pwd = lambda **more: hosts[0].run(["pwd", "-P"], timeout=10, text=True,
                                              stdout=subprocess.PIPE, **more).stdout.strip()
            self.assertEqual(pwd(cwd=directory), os.path.realpath(directory))
            self.assertEqual(pwd(), os.path.realpath(os.getcwd()))

    def test_a_faulty_cable_delays_loses_and_is_silent_in_one_direction(self):
        count = ("import socket,sys; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 999));"
                 "s.settimeout(20); print('up', flush=True); n = 0\n"
                 "while s.recv(9) != b'end': n += 1\n"
                 "print(n)")
        send = ("import socket,sys,time; s = socket.socket(type=socket.SOCK_DGRAM)\n"
                "for i in range(int(sys.argv[2])): s.sendto(b'x', (sys.argv[1], 999)); time.sleep(1e-4)")
        end = ("import socket,sys; socket.socket(type=socket.SOCK_DGRAM).sendto(b'end', (sys.argv[1], 999))")
        with netns.Hosts(2, faulty_cables=True) as hosts:
            def arrived(sender, receiver, number=500, **faults):
                counter = receiver.popen([sys.executable, "-c", count], stdout=subprocess.PIPE, text=True)
                counter.stdout.readline()
                hosts[1].cable.set(**faults)
                sender.run([sys.executable, "-c", send, receiver.address, str(number)], timeout=20)
                hosts[1].cable.set()
                sender.run([sys.executable, "-c", end, receiver.address], timeout=20)
                text = counter.communicate(timeout=25)[0]
                return int(text)
            self.assertEqual(arrived(*hosts), 500)
            self.assertEqual(arrived(*hosts, cut_to_host=True), 0)
            self.assertEqual(arrived(*hosts, cut_from_host=True), 500)
            lossy = arrived(*hosts, loss=0.3, seed=1)
            self.assertTrue(300 < lossy < 400, lossy)
            self.assertEqual(arrived(hosts[1], hosts[0], cut_from_host=True), 0)
            hosts[1].cable.set(delay=0.1)
            begin = time.monotonic()
            hosts[0].run([sys.executable, "-c", "import socket,sys\n"
                          "try: socket.create_connection((sys.argv[1], 1), 5)\n"
                          "except ConnectionRefusedError: pass", hosts[1].address], timeout=20, check=True)
            self.assertGreater(time.monotonic() - begin, 0.2)

    def test_signals_and_exit_codes_are_the_commands_own(self):
        with netns.Hosts(1) as hosts:
            sleeper = hosts[0].popen(["sleep", "100"])
            sleeper.terminate()
            self.assertEqual(sleeper.wait(timeout=5), -15)
            self.assertEqual(hosts[0].run(["sh", "-c", "exit 7"], timeout=10).returncode, 7)

    def test_a_cut_host_is_silent_until_mended(self):
        with netns.Hosts(2) as hosts:
            ping = lambda: hosts[0].run(
                [sys.executable, "-c",
                 "import socket,sys\ns=socket.socket(); s.settimeout(0.3)\n"
                 "try: s.connect((sys.argv[1], 9))\n"
                 "except ConnectionRefusedError: print('refused')\n"
                 "except OSError: print('silent')", hosts[1].address],
                timeout=20, text=True, stdout=subprocess.PIPE).stdout.strip()
            self.assertEqual(ping(), "refused")
            hosts[1].cut()
            self.assertEqual(ping(), "silent")
            hosts[1].mend()
            for _ in range(20):
                if ping() == "refused":
                    return
            self.fail("mend() did not bring the host back")

    def test_nothing_survives_close_or_kill(self):
        with netns.Hosts(2) as hosts:
            first = hosts[0].popen(["sh", "-c", "setsid sleep 100 & echo up; exec sleep 100"],
                                   stdout=subprocess.PIPE)
            second = hosts[1].popen(["sleep", "100"])
            first.stdout.readline()
            hosts[0].kill()
            self.assertEqual(hosts[0].pids(), [])
            self.assertEqual(first.wait(timeout=5), -9)
            first.stdout.close()
            self.assertIsNone(second.poll())
        self.assertEqual(second.wait(timeout=5), -9)

    def test_nothing_survives_the_death_of_the_test_itself(self):
        with tempfile.TemporaryDirectory() as directory:
            mark = os.path.join(directory, "alive")
            files = os.path.join(directory, "files")
            os.mkdir(files)
            os.mkfifo(mark)
            script = (f"import sys; sys.path.insert(0, {os.path.dirname(netns.__file__)!r})\n"
                      "import netns, os\nh = netns.Hosts(1)\n"
                      f"h[0].popen(['sh', '-c', 'exec sleep 100 > {mark}'])\nimport signal; signal.pause()")
            test = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "TMPDIR": files})
            with open(mark) as alive:  # the open returns once the sleeper has opened the file, too
                test.kill()
                test.wait()
                self.assertEqual(alive.read(), "")  # the read ends when the sleeper is gone
            self.assertEqual(os.listdir(files), [])

    def test_the_command_line_runs_on_every_host(self):
        done = subprocess.run([sys.executable, netns.__file__, "--hosts", "2", "--", "sh", "-c",
                               "echo {host}:$DDPRUN_TEST_HOST:{addr1}; exit {host}"],
                              stdout=subprocess.PIPE, text=True, timeout=20)
        self.assertEqual(sorted(done.stdout.split()), ["0:0:10.77.0.2", "1:1:10.77.0.2"])
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    netns.hosts_or_skip(1).close()
    runner.main()
