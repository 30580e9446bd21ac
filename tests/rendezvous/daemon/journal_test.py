#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills ddprund --state-dir at any moment and starts it again. Jobs go on, and no worker notices."""
import ctypes
import datetime
import glob
import http.server
import json
import os
import random
import shutil
import sqlite3
import subprocess
import threading
import time
import urllib.error
import urllib.request
import zlib

from rounds_case import RoundsCase, harness, wait_until
import seeds


class Journal(RoundsCase):
    def setUp(self):
        super().setUp()
        self.state = os.path.join(self.scratch(), "state")
        self.port = harness.free_port()
        self.errors = os.path.join(self.meet, "ddprund")
        self.daemon = None

    def serve(self, *flags, prefix=(), wait=True):
        """Starts ddprund with the test's state directory. Its log is appended to self.errors."""
        with open(self.errors, "a") as errors:
            start = os.path.getsize(self.errors)
            self.daemon = subprocess.Popen(
                [*prefix, harness.DDPRUND, f"--listen=127.0.0.1:{self.port}",
                 f"--state-dir={self.state}", *flags],
                env=harness.environment(), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        daemon = self.daemon
        self.addCleanup(lambda: daemon.poll() is None and (daemon.kill(), daemon.wait()))
        if wait:
            wait_until(lambda: "listening on" in self.log()[start:] or daemon.poll() is not None,
                       "ddprund listens")
            self.assertIsNone(daemon.poll(), self.log())
        return daemon

    def log(self):
        with open(self.errors) as file:
            return file.read()

    def kill(self):
        self.daemon.kill()
        self.daemon.wait()

    def jobs(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/jobs", timeout=10) as answer:
            return json.load(answer)["jobs"]

    def agents(self, *flags, **how):
        return self.agents_at(f"127.0.0.1:{self.port}", *flags, **how)

    def test_killed_in_a_round_no_worker_notices(self):
        self.serve()
        agents = self.agents()
        pids = self.wait_for_round(1)
        for _ in range(3):
            self.kill()
            self.serve()
            wait_until(lambda: all(node["connected"] for node in self.jobs()[0]["nodes"]),
                       "the agents are back")
        self.assertEqual(self.jobs()[0]["round"], 1)
        self.go()
        for agent in agents:
            done = self.finish(agent, code=0)
            self.assertIn("the rendezvous is back", done.stderr)
        self.assertEqual(self.pids(1), pids)
        self.assertEqual(self.pids(2), {})

    def test_a_directory_that_is_removed_while_it_serves_is_made_anew(self):
        self.serve()
        agents = self.agents()
        pids = self.wait_for_round(1)
        for gone in (shutil.rmtree, lambda state: os.rename(state, state + ".moved")):
            gone(self.state)
            done = self.ddprun(f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=another", "--no-python", "true")
            self.assertEqual(done.returncode, 0, done.text)
            self.assertTrue(os.path.exists(os.path.join(self.state, "journal.db")), self.log())
        self.assertEqual(self.log().count("was removed, moved or replaced while it was in use"), 2, self.log())
        self.kill()
        self.serve()
        wait_until(lambda: all(node["connected"] for node in self.jobs()[0]["nodes"]), "the agents are back")
        self.check_end(agents, pids)

    def test_a_log_that_is_removed_alone_while_it_serves_costs_nothing(self):
        self.serve()
        agents = self.agents()
        pids = self.wait_for_round(1)
        os.remove(os.path.join(self.state, "journal.db-wal"))
        self.ddprun(f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=another", "--no-python", "true", code=0)
        self.assertEqual(self.log().count("journal.db-wal was removed, moved or replaced while it was in use"), 1,
                         self.log())
        self.kill()
        self.serve()
        wait_until(lambda: all(node["connected"] for node in self.jobs()[0]["nodes"]), "the agents are back")
        self.check_end(agents, pids)

    def test_a_log_that_is_removed_between_runs_is_missed_in_one_line(self):
        self.serve()
        agents = self.agents()
        self.wait_for_round(1)
        self.kill()
        os.remove(os.path.join(self.state, "journal.db-wal"))
        self.serve()
        self.assertRegex(self.log(), r"the last \d+ commits of the journal are missing: the disk lost them")
        for agent in agents:
            self.finish(agent, code=75)
        self.end_well(self.agents(run_id="next"))  # the daemon serves further jobs

    def test_something_else_that_answers_meanwhile_ends_no_job(self):
        """The other server is a proxy whose ddprund is down, or another program that took the port."""
        asked = []

        class Away(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_error(502)

            def log_message(self, *_):
                pass

        self.serve()
        agents = self.agents()
        pids = self.wait_for_round(1)
        self.kill()
        with http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Away) as proxy:
            thread = threading.Thread(target=proxy.serve_forever)
            thread.start()
            wait_until(lambda: len(asked) >= 4, "both agents have asked it twice")
            proxy.shutdown()
            thread.join()
        self.serve()
        self.end_well(agents)
        self.assertEqual(self.pids(1), pids)

    def test_killed_at_random_moments_nothing_is_decided_twice(self):
        """Three rounds fail and are restarted while the daemon is killed again and again."""
        moments = random.Random(seeds.seed())
        self.serve()
        agents = self.agents("--max-restarts=3", failing=3)
        self.wait_for_round(1)
        for number in (1, 2, 3, 4):
            # The daemon makes all decisions around a round's end and the next one's begin.
            self.go(number)
            for _ in range(2):
                time.sleep(moments.uniform(0, 0.03))
                self.kill()
                self.serve()
            if number < 4:
                self.wait_for_round(number + 1)
        for agent in agents:
            done = self.finish(agent)
            self.assertEqual(done.returncode, 0, done.text + self.log())
        for number in (1, 2, 3, 4):
            self.assertEqual(len(self.pids(number)), 4, f"round {number}")
        self.assertEqual(self.pids(5), {})

    def test_a_budget_is_not_forgotten(self):
        self.serve()
        agents = self.agents("--max-restarts=1", failing=3)
        for number in (1, 2):
            self.wait_for_round(number)
            self.kill()
            self.serve()
            self.go(number)
        for agent in agents:
            self.finish(agent, code=9)
        self.assertEqual(self.pids(3), {})

    def test_an_agent_that_dies_meanwhile_is_missed(self):
        self.serve()
        agents = self.agents("--max-node-losses=0")
        self.wait_for_round(1)
        self.kill()
        agents[0].kill()
        self.serve()
        done = self.finish(agents[1], code=75)
        self.assertIn("did not come back after the rendezvous was restarted", done.text)

    def test_jobs_that_wait_are_there_again(self):
        self.serve()
        first = self.agents(count=1)
        # Not earlier, because a node that isn't taken in yet may take the free port itself.
        wait_until(lambda: "joined with 2 workers" in self.log(), "a node waits")
        self.kill()
        self.serve()
        self.end_well(first + self.agents(count=1))

    def finished(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/jobs", timeout=10) as answer:
            return json.load(answer)["finished"]

    def rows(self):
        """Returns the names of the journal's rows. Called after its daemon's end."""
        database = sqlite3.connect(os.path.join(self.state, "journal.db"))
        names = [key for (key,) in database.execute("SELECT key FROM rows")]
        database.close()
        return names

    def test_jobs_that_are_over_are_told_after_restarts_and_expire_on_time(self):
        self.serve()
        agents = self.agents("--max-restarts=0", failing=1)
        self.wait_for_round(1)
        self.go()
        for agent in agents:
            self.finish(agent, code=9)
        wait_until(self.finished, "the job is over", 30)
        first, = self.finished()
        self.assertEqual((first["run_id"], first["exit_code"], first["rounds"], first["num_nodes"]), ("job", 9, 1, 2))
        for _ in range(2):
            self.kill()
            self.serve()
            again, = self.finished()
            for key in ("began", "ended"):  # the last second may be rounded differently
                at, before = (datetime.datetime.fromisoformat(job[key].rstrip("Z")) for job in (again, first))
                self.assertLessEqual(abs((at - before).total_seconds()), 1)
            self.assertEqual({**again, "began": 0, "ended": 0}, {**first, "began": 0, "ended": 0})
        self.kill()
        self.assertEqual(self.rows(), ["finished/1"])
        ended = datetime.datetime.fromisoformat(first["ended"].replace("Z", "+00:00")).timestamp()
        lives = int(time.time() - ended) + 4
        self.serve(f"--keep-finished={lives}s")
        wait_until(lambda: not self.finished(), "the job is forgotten", 30)
        self.assertGreaterEqual(time.time(), ended + lives - 1)
        self.daemon.terminate()
        self.assertEqual(self.daemon.wait(20), 0)
        self.assertEqual(self.rows(), [])

    def test_a_job_that_is_over_leaves_nothing(self):
        self.serve("--keep-finished=0")
        self.end_well(self.agents())
        wait_until(lambda: not self.jobs(), "the job is forgotten", 30)
        self.daemon.terminate()
        self.assertEqual(self.daemon.wait(20), 0)
        self.assertEqual(self.rows(), [])
        before = len(self.log())
        self.serve()
        self.assertEqual(self.jobs() + self.finished(), [])
        self.assertNotIn("goes on", self.log()[before:])

    def test_sigterm_says_that_jobs_go_on(self):
        self.serve()
        agents = self.agents()
        self.wait_for_round(1)
        self.daemon.terminate()
        self.assertEqual(self.daemon.wait(20), 0)
        self.assertIn("jobs go on when a ddprund with this --state-dir is back", self.log())
        self.serve("--durability=disk")
        self.end_well(agents)

    def test_a_damaged_journal_costs_what_it_says(self):
        self.serve()
        agents = self.agents()
        self.wait_for_round(1)
        self.kill()
        for name in ("journal.db", "journal.db-wal"):
            with open(os.path.join(self.state, name), "r+b") as file:
                file.write(b"no database at all")
        self.serve()
        self.assertRegex(self.log(), "the journal was damaged, and 0 rows could be read of it; it is kept as ")
        self.assertTrue(glob.glob(os.path.join(self.state, "journal.db.damaged-*")))
        for agent in agents:
            done = self.finish(agent, code=75)
            self.assertIn("does not know this agent any more", done.text)
        self.end_well(self.agents(run_id="next"))  # the daemon serves further jobs

    def test_a_full_disk_stops_no_job(self):
        disk, prefix = self.small_disk("1m")
        self.state = os.path.join(disk, "state")
        self.serve(prefix=prefix)
        inside = self.fill(self.daemon, disk)
        agents = self.agents("--max-restarts=1", failing=1)
        self.wait_for_round(1)
        wait_until(lambda: "jobs go on in memory" in self.log(), "it says that the disk is full")
        self.go(1)
        self.wait_for_round(2)
        os.truncate(inside, 0)
        wait_until(lambda: "is written again, and up to date" in self.log(), "it goes on keeping")
        self.end_well(agents)

    def test_sigterm_says_what_a_full_disk_has_not_taken(self):
        disk, prefix = self.small_disk("1m")
        self.state = os.path.join(disk, "state")
        self.serve(prefix=prefix)
        # This process in the same mount namespace lets the disk outlive the daemon.
        holder = subprocess.Popen(["nsenter", "-t", str(self.daemon.pid), "-m", "sleep", "600"])
        self.addCleanup(lambda: (holder.kill(), holder.wait()))
        mounts = lambda process: os.readlink(f"/proc/{process.pid}/ns/mnt")  # noqa: E731
        wait_until(lambda: mounts(holder) == mounts(self.daemon), "the disk is held")
        agents = self.agents("--max-restarts=1", failing=1)
        self.wait_for_round(1)
        inside = self.fill(self.daemon, disk).replace(str(self.daemon.pid), str(holder.pid))
        self.go(1)
        self.wait_for_round(2)
        wait_until(lambda: "jobs go on in memory" in self.log(), "it says that the disk is full")
        self.daemon.terminate()
        self.assertEqual(self.daemon.wait(20), 0)
        said = self.log().splitlines()[-2:]
        self.assertRegex(said[0], r"stopping: SIGTERM; can't write .*disk is full.*; that is tried once more; else these "
                                  r"jobs go on from what was kept before, or end with 75: job$")
        self.assertRegex(said[1], r"can't write .*disk is full.*; what was decided in the last \d+ s is not kept, and "
                                  r"lost with this ddprund$")
        os.truncate(inside, 0)
        self.serve(prefix=["nsenter", "-t", str(holder.pid), "-m"])
        for agent in agents:
            self.finish(agent, code=75)

    def keeping(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/jobs", timeout=20) as answer:
            return json.load(answer)["journal"]

    def thread_named(self, name):
        tasks = f"/proc/{self.daemon.pid}/task"
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/comm") as file:
                if file.read().strip() == name:
                    return int(task)
        return self.fail(f"ddprund has no thread {name}")

    def test_a_disk_that_hangs_stops_no_job(self):
        """Stops the thread that writes, as if it waited for a disk."""
        self.serve()
        self.assertEqual(self.keeping(), {"kept": True})
        thread = self.thread_named("journal")
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        ptrace.restype = ctypes.c_long
        seize, interrupt, detach, to_call, peek_user = 0x4206, 0x4207, 17, 24, 3
        if os.uname().machine != "x86_64" or ptrace(seize, thread, None, None) != 0:
            self.skipTest("no ptrace here")
        self.addCleanup(lambda: ptrace(detach, thread, None, None))
        self.assertEqual(ptrace(interrupt, thread, None, None), 0)
        os.waitpid(thread, 0x40000000)  # __WALL
        agents = self.agents("--max-restarts=1", failing=1)
        call = None
        while call != 18:  # pwrite64
            self.assertEqual(ptrace(to_call, thread, None, None), 0)
            os.waitpid(thread, 0x40000000)
            call = ptrace(peek_user, thread, 15 * 8, None)  # orig_rax
        pids = self.wait_for_round(1)
        self.assertEqual(len(pids), 4)
        self.assertEqual(self.log().count("the disk has not answered for 2000 ms; jobs go on in memory"), 1)
        keeping = self.keeping()
        self.assertFalse(keeping["kept"])
        self.assertIn("has not answered", keeping["trouble"])
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=20)
        self.assertEqual((refused.exception.code, refused.exception.read()),
                         (503, b"not ready: its journal can't be written: jobs go on in memory\n"))
        self.assertIn("not kept now, jobs go on in memory",
                      self.ddprunctl("jobs", f"--rdzv-endpoint=127.0.0.1:{self.port}").stdout)
        self.go(1)
        pids = self.wait_for_round(2)
        self.assertEqual(ptrace(detach, thread, None, None), 0)
        wait_until(lambda: "is written again, and up to date" in self.log(), "it goes on keeping")
        wait_until(lambda: self.keeping()["kept"], "the page says so")
        self.kill()
        self.serve()
        self.end_well(agents)
        self.assertEqual(self.pids(2), pids)

    def test_a_disk_that_becomes_read_only_stops_no_job(self):
        self.serve()
        files = glob.glob(os.path.join(self.state, "journal.db*"))

        def immutable(how):
            return subprocess.run(["chattr", f"{how}i", *files], capture_output=True).returncode == 0
        if not shutil.which("chattr") or not immutable("+"):
            self.skipTest("no immutable files here")
        self.addCleanup(immutable, "-")
        agents = self.agents("--max-restarts=1", failing=1)
        self.wait_for_round(1)
        wait_until(lambda: "jobs go on in memory" in self.log(), "it says so")
        self.assertFalse(self.keeping()["kept"])
        self.go(1)
        self.wait_for_round(2)
        self.assertTrue(immutable("-"))
        wait_until(lambda: "is written again, and up to date" in self.log(), "it goes on keeping")
        self.kill()
        self.serve()
        self.end_well(agents)

    def test_started_again_on_a_read_only_disk_jobs_go_on_in_memory(self):
        script = f'mount --bind {self.state} {self.state} && mount -o remount,ro,bind {self.state} && exec "$@"'
        prefix = ["unshare", "-m", "sh", "-c", script, "sh"]
        self.serve()
        agents = self.agents()
        pids = self.wait_for_round(1)
        if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
            self.skipTest("no mounts of our own")
        wait_until(lambda: all(node["phase"] == "running" for node in self.jobs()[0]["nodes"]), "it is kept")
        self.kill()
        self.serve(prefix=prefix)
        wait_until(lambda: "Read-only file system; jobs go on in memory" in self.log(), "it says so")
        self.end_well(agents)
        self.assertEqual(self.pids(1), pids)

    def serve_again_on_a_read_only_disk(self, mounts=""):
        script = (f'mount --bind {self.state} {self.state} && mount -o remount,ro,bind {self.state} && '
                  f'{mounts}exec "$@"')
        prefix = ["unshare", "-m", "sh", "-c", script, "sh"]
        self.serve()
        self.daemon.terminate()
        self.daemon.wait(timeout=30)
        if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
            self.skipTest("no mounts of our own")
        self.serve(prefix=prefix)
        wait_until(lambda: "Read-only file system; jobs go on in memory" in self.log(), "it says so")

    def test_started_again_on_a_read_only_disk_beside_a_full_memory_disk(self):
        self.serve_again_on_a_read_only_disk("mount -t tmpfs -o size=4k none /dev/shm && ")

    def test_a_loss_on_a_disk_that_was_read_only_at_the_start_is_noticed(self):
        self.serve_again_on_a_read_only_disk()
        subprocess.run(["nsenter", "-t", str(self.daemon.pid), "-m", "mount", "-o", "remount,rw,bind", self.state],
                       check=True)
        for run_id in ("first", "second"):
            done = self.ddprun(f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-id={run_id}", "--no-python", "true")
            self.assertEqual(done.returncode, 0, done.text)
            wait_until(lambda: "is written again, and up to date" in self.log(), "it goes on keeping")
        with open(os.path.join(self.state, "lock"), encoding="utf-8") as lock:
            self.assertEqual(int(lock.read().split()[0]), self.daemon.pid)
        self.kill()
        os.remove(os.path.join(self.state, "journal.db-wal"))
        self.serve()
        self.assertRegex(self.log(), r"the last \d+ commits of the journal are missing: the disk lost them")

    def change_rows(self, pattern, change):
        """Changes rows in the journal of an ended daemon, as a disk that lost single writes would leave them."""
        database = sqlite3.connect(os.path.join(self.state, "journal.db"))
        with database:
            for key, content in database.execute("SELECT key, content FROM rows WHERE key LIKE ?",
                                                 [pattern]).fetchall():
                row = json.loads(content)
                change(row)
                content = json.dumps(row)
                database.execute("UPDATE rows SET content = ?, checksum = ? WHERE key = ?",
                                 [content, zlib.crc32(f"{key}\0{content}".encode()), key])
        database.close()

    def test_a_journal_that_lost_what_agents_said_is_not_gone_on_with(self):
        self.serve()
        agents = self.agents()
        self.wait_for_round(1)
        wait_until(lambda: all(node["phase"] == "running" for node in self.jobs()[0]["nodes"]),
                   "both have said that their workers run")
        self.kill()
        self.serve()  # the daemon confirms the round when the agents come back
        wait_until(lambda: all(node["connected"] for node in self.jobs()[0]["nodes"]), "both are back")
        self.kill()
        self.change_rows("jobs/%/nodes/%", lambda node: node["channel"].update(received=0))
        self.serve()
        for agent in agents:
            done = self.finish(agent, code=75)
        self.assertIn("does not know what this node said last: its journal lost it", done.text)
        self.assertIn("are not known here any more: the journal lost its end", self.log())

    def test_one_directory_one_daemon(self):
        first = self.serve()
        # Both may have the same port, because a ddprund that can't read its journal yet takes no connections.
        second = self.serve(wait=False)
        self.assertEqual(second.wait(20), 2)
        self.assertIn(f"{self.state} is in use by pid {first.pid}", self.log())

    def test_bad_flags(self):
        for flags, what in ((["--durability=ram"], '"ram" is neither process nor disk'),
                            (["--state-dir", ""], "no directory given"), (["--token-file", ""], "no file given"),
                            (["--state-dir=/proc/none"], "can't make /proc/none")):
            with self.subTest(flags):
                done = self.finish(self.start("--listen=127.0.0.1:0", *flags, program=harness.DDPRUND), timeout=20)
                self.check_one_line(done, what)
        done = self.finish(self.start("--durability=disk", program=harness.DDPRUND), timeout=20)
        self.check_one_line(done, "--durability says how --state-dir is written")


if __name__ == "__main__":
    harness.main()
