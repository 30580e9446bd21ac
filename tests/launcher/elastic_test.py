#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests jobs whose nodes change: nodes are lost, replaced by spares, excluded, or late."""
import ctypes
import os
import re
import signal
import sys
import time

import harness
import netns

PORT = 29400
PTRACE_SEIZE = 0x4206

# A worker that runs on in the first round, and succeeds in later rounds.
ONE_ROUND = harness.SHOW + '; [ "$DDPRUN_ROUND" != 1 ] || exec sleep 600'


class Elastic(harness.HostsCase):
    def setUp(self):
        self.hosts = netns.Hosts(3)
        self.addCleanup(self.hosts.close)

    def agent(self, index, *args):
        return self.start(f"--rdzv-endpoint={self.hosts[0].address}:{PORT}", "--rdzv-id=job",
                          "--no-python", *args, host=self.hosts[index])

    def finish_all(self, *running):
        done = []
        for process in running:
            try:
                done.append(self.finish(process, timeout=30))
            except AssertionError as hung:
                for other in running:
                    other.kill()
                rest = [self.finish(other).text for other in running if other.poll() is None or
                        not other.stdout.closed]
                raise AssertionError("\n".join([str(hung), *rest])) from None
        self.transcript = "\n".join(each.text for each in done)
        return done

    def test_a_spare_takes_the_place_of_a_lost_node(self):
        flags = ["--nnodes=2", "--spares=1", "sh", "-c", ONE_ROUND]
        first = self.agent(0, *flags)
        self.await_line(first, "waiting for nodes")
        lost = self.agent(1, *flags)
        self.await_line(lost, "round=1", stream="stdout")
        spare = self.agent(2, *flags)
        self.await_line(spare, "ready as spare (1 of 1)")
        self.hosts[1].kill()
        done = self.finish_all(first, spare)
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        workers = harness.parse_shown(done[1].stdout)
        self.assertEqual([(w["round"], w["rank"], w["restart"]) for w in workers], [("2", "1", "1")],
                         self.transcript)
        self.assertIn("node1", done[0].stderr)  # the reason is the loss of this node
        for each in done:
            self.assertRegex(each.stderr, r"2 rounds; workers ran [\d.]+ s of [\d.]+ s \([\d.]+ %\); lost: ")

    def spare_takes_over(self, *program, code=0):
        """Runs a job that loses a node once its spare is ready. Returns the spare's output."""
        flags = ["--nnodes=2", "--spares=1", "--prewarm", "--nproc-per-node=2", *program]
        first = self.agent(0, *flags)
        self.await_line(first, "waiting for nodes")
        lost = self.agent(1, *flags)
        self.await_line(lost, "place: ", stream="stdout")
        spare = self.agent(2, *flags)
        if "python3" in program:  # reads a line of each worker, so that none stays in the stream's buffer
            self.warm = [self.await_line(spare, "[spare] warm", stream="stdout") for _ in range(2)]
        else:
            self.await_line(spare, "--prewarm: ")
        self.hosts[1].kill()
        done = self.finish_all(first, spare)
        self.assertEqual([each.returncode for each in done], [code, code], self.transcript)
        return done[1].stdout, done[1].stderr

    def test_a_prewarmed_spare_has_its_workers_ready(self):
        script = ("import os, sys, time; sys.path.insert(0, %r); import ddprun; "
                  "print('warm', os.getpid(), os.environ.get('RANK'), flush=True); ddprun.wait_for_place(); "
                  "e = os.environ; print('place:', os.getpid(), e['RANK'], e['WORLD_SIZE'], e['DDPRUN_ROUND'], "
                  "e['MASTER_PORT'] > '0', ddprun.connected(), flush=True); "
                  "time.sleep(600 if e['DDPRUN_ROUND'] == '1' else 0)" % os.path.join(harness.SOURCE, "python"))
        out, _ = self.spare_takes_over("python3", "-c", script)
        warm = re.findall(r"^\[spare\] warm (\d+) None$", "".join(self.warm), re.M)
        placed = dict(re.findall(r"^\[([23])\] place: (\d+) \1 4 2 True True$", out, re.M))
        self.assertEqual(sorted(placed), ["2", "3"], self.transcript)
        self.assertEqual(sorted(warm), sorted(placed.values()), self.transcript)

    def test_a_prewarmed_spare_s_workers_begin_with_their_imports(self):
        path = os.path.join(self.scratch(), "train.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write("import os, sys, time\nis_there = 'json.tool' in sys.modules\nsys.path.insert(0, %r)\nimport ddprun\n"
                       "print('warm', is_there, flush=True)\nddprun.wait_for_place()\nprint('place: ', flush=True)\n"
                       "time.sleep(600 if os.environ['DDPRUN_ROUND'] == '1' else 0)\n" % os.path.join(harness.SOURCE, "python"))
        self.spare_takes_over("--preload=json.tool", "python3", path)
        self.assertEqual(self.warm, ["[spare] warm True\n"] * 2)

    def test_a_prewarmed_worker_s_words_in_its_round_are_heard(self):
        script = ("import os, sys, time; sys.path.insert(0, %r); import ddprun; ddprun.phase('start-up'); "
                  "print('warm', flush=True); ddprun.wait_for_place(); print('place: ', flush=True); "
                  "ddprun.stop_job('enough', 9) if os.environ['RANK'] == '3' and "
                  "os.environ['DDPRUN_ROUND'] == '2' else 0; time.sleep(600)"
                  % os.path.join(harness.SOURCE, "python"))
        _, err = self.spare_takes_over("python3", "-c", script, code=9)
        self.assertIn("enough", err)

    def test_a_prewarmed_program_that_never_asks_is_started_with_its_ranks(self):
        script = "import os, time; print('warm', flush=True); r = os.environ.get('RANK'); " \
                 "print('place: ', r, flush=True); " \
                 "time.sleep(0 if os.environ['DDPRUN_ROUND'] == '2' else 600)"
        out, err = self.spare_takes_over("python3", "-c", script)
        self.assertEqual(sorted(re.findall(r"^\[\d\] place:  (\d)", out, re.M)), ["2", "3"], self.transcript)
        self.assertIn("not every worker waits for its place", err)

    def test_a_stop_request_while_prewarmed_workers_are_dismissed_is_for_the_next_ones(self):
        script = ("import os, sys, time; sys.path.insert(0, %r); import ddprun; print('warm', os.getpid(), flush=True)\n"
                  "while not ddprun.stop_requested(): ddprun.step(1); time.sleep(0.01)\n"
                  "print('asked', flush=True); sys.exit(75)" % os.path.join(harness.SOURCE, "python"))
        flags = ["--nnodes=2", "--spares=1", "--prewarm", "--preemption-notice=20", sys.executable, "-c", script]
        first = self.agent(0, *flags)
        self.await_line(first, "waiting for nodes")
        lost = self.agent(1, *flags)
        self.await_line(lost, "warm", stream="stdout")
        spare = self.agent(2, *flags)
        worker = int(self.await_line(spare, "warm", stream="stdout").split()[-1])
        # A tracer sees the worker's end first. Its parent sees it only after the tracer has.
        self.assertEqual(ctypes.CDLL(None).ptrace(PTRACE_SEIZE, worker, None, None), 0)
        self.hosts[1].kill()
        self.await_line(spare, "not every worker waits for its place")
        first.send_signal(signal.SIGUSR1)
        self.await_line(spare, "preemption: ")
        status = os.waitpid(worker, 0)[1]
        while os.WIFSTOPPED(status):  # a traced process reports a SIGCONT, too; the kill comes all the same
            status = os.waitpid(worker, 0)[1]
        self.assertEqual(status, signal.SIGKILL)
        done = self.finish_all(first, spare)
        self.assertEqual([each.returncode for each in done], [75, 75], self.transcript)
        self.assertIn("asked", done[1].stdout)
        self.assertIn("all workers have left", done[1].stderr)

    def test_a_prewarmed_program_that_does_not_wait_is_started_with_its_ranks(self):
        out, err = self.spare_takes_over(
            "sh", "-c", 'echo "place: ${RANK:?no rank}"; [ "$DDPRUN_ROUND" != 1 ] || exec sleep 600')
        self.assertEqual(sorted(re.findall(r"place: (\d)", out)), ["2", "3"], self.transcript)
        self.assertEqual(err.count("--prewarm: "), 0)  # it was printed once, and the test has read that line

    def test_the_job_goes_on_at_once_with_min_nodes_left_and_says_so(self):
        flags = ["--nnodes=1:2", "sh", "-c", ONE_ROUND]
        first = self.agent(0, *flags)
        lost = self.agent(1, *flags)
        self.await_line(lost, "world=2", stream="stdout")
        self.hosts[1].kill()
        begin = time.monotonic()
        done, = self.finish_all(first)
        self.assertLess(time.monotonic() - begin, 15, self.transcript)  # the first round's last call takes 30 s
        self.assertEqual(done.returncode, 0, self.transcript)
        self.assertEqual([w["world"] for w in harness.parse_shown(done.stdout)], ["2", "1"])
        self.assertIn("1 node is here, enough to go on; waiting up to 1 s for more (at most 2)", done.stderr)

    def test_the_loss_of_the_node_that_serves_the_rendezvous_is_worth_another_try(self):
        flags = ["--nnodes=1:2", "sh", "-c", ONE_ROUND]
        self.agent(0, *flags)
        other = self.agent(1, *flags)
        self.await_line(other, "world=2", stream="stdout")
        self.hosts[0].kill()
        done, = self.finish_all(other)
        self.assertEqual(done.returncode, 75, self.transcript)
        self.assertIn("lost the node that serves the rendezvous, without which the job can't go on: it was in that "
                      "node's ddprun and is gone with it, and no standby was named (several ddprund outlive each "
                      "other: --rdzv-endpoint=a,b, docs/ha.md); can't reach the rendezvous at ", done.stderr)

    def signalled(self, index):
        """Sends SIGTERM to one of two nodes; one is enough. Returns how they end. The first serves the rendezvous."""
        flags = ["--nnodes=1:2", "sh", "-c", ONE_ROUND]
        nodes = [self.agent(0, *flags), self.agent(1, *flags)]
        for node in nodes:
            self.await_line(node, "world=2", stream="stdout")
        nodes[index].send_signal(signal.SIGTERM)
        done = self.finish_all(*nodes)
        self.transcript = "\n".join(node.read["stdout"] + node.read["stderr"] for node in nodes)
        return done

    def test_a_signal_at_a_node_ends_that_node_alone_if_the_others_are_enough(self):
        done = self.signalled(1)
        self.assertEqual([each.returncode for each in done], [0, 128 + signal.SIGTERM], self.transcript)
        self.assertEqual([(w["round"], w["world"]) for w in harness.parse_shown(done[0].stdout)], [("2", "1")], self.transcript)
        self.assertRegex(done[0].stderr, r"round 1 is over: node 1 \(node1, \S+\) left: received SIGTERM")
        self.assertEqual(done[1].stdout, "", self.transcript)

    def test_a_signal_at_the_node_that_serves_the_rendezvous_ends_the_job(self):
        done = self.signalled(0)
        self.assertEqual([each.returncode for each in done], [128 + signal.SIGTERM] * 2, self.transcript)
        self.assertRegex(done[1].stderr, r"(?m)^ddprun: node 0 \(node0, \S+\) left: received SIGTERM$")
        self.assertEqual([each.stdout for each in done], ["", ""], self.transcript)

    def test_a_late_node_starts_a_new_round_if_asked_to(self):
        flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=0.2", "--on-join=restart", "sh", "-c",
                 harness.SHOW + '; [ "$WORLD_SIZE" != 1 ] || exec sleep 600']
        first = self.agent(0, *flags)
        self.await_line(first, "world=1", stream="stdout")
        late = self.agent(1, *flags)
        done = self.finish_all(first, late)
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        workers = harness.parse_shown("".join(each.stdout for each in done))
        self.assertEqual([(w["round"], w["world"]) for w in workers], [("2", "2")] * 2, self.transcript)
        self.assertIn("--on-join=restart", done[0].stderr)

    def excluded_owner(self, endpoint, *flags):
        """Excludes the node that serves the rendezvous. The others go on for longer than a farewell lasts."""
        spare_is_there = os.path.join(self.scratch(), "spare")
        program = (harness.SHOW + f'; if [ "$(hostname)" = node0 ]; then until [ -e {spare_is_there} ]; '
                   'do sleep 0.01; done; exit 7; fi; [ "$DDPRUN_ROUND" = 1 ] && exec sleep 600; sleep 12')
        flags = ["--nnodes=2", "--spares=1", "--exclude-after=1", "--max-restarts=5", "--shutdown-timeout=0.1",
                 *flags, "sh", "-c", program]
        start = lambda i: self.start(*endpoint(i), "--rdzv-id=job", "--no-python", *flags, host=self.hosts[i])
        owner = start(0)
        self.await_line(owner, "waiting for nodes")
        other = start(1)
        self.await_line(owner, "round=1", stream="stdout")
        spare = start(2)
        self.await_line(spare, "ready as spare (1 of 1)")
        open(spare_is_there, "w").close()
        done = self.finish_all(owner, other, spare)
        self.assertEqual([each.returncode for each in done], [75, 0, 0], self.transcript)
        self.assertEqual(done[0].stderr.count("serving it until the job is over"), 1, self.transcript)
        self.assertIn("first to fail 1 time (--exclude-after=1)", done[0].stderr)

    def test_an_excluded_node_serves_the_rendezvous_until_the_job_is_over(self):
        self.excluded_owner(lambda i: [f"--rdzv-endpoint={self.hosts[0].address}:{PORT}"])

    def test_a_preempted_node_goes_in_order_and_the_job_goes_on_without_it(self):
        code = ("import ddprun, os, sys, time\n"
                "print('round=' + os.environ['DDPRUN_ROUND'], 'world=' + os.environ['WORLD_SIZE'], flush=True)\n"
                "for step in range(1, 2000):\n"
                "    ddprun.step(step); time.sleep(0.01)\n"
                "    if ddprun.stop_requested(): sys.exit(75)\n"
                "    if os.environ['DDPRUN_ROUND'] == '2' and step == 5: break\n")
        os.environ["PYTHONPATH"] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python")
        self.addCleanup(os.environ.pop, "PYTHONPATH")
        flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=0.2", sys.executable, "-c", code]
        first = self.agent(0, *flags)
        preempted = self.agent(1, *flags)
        self.await_line(preempted, "world=2", stream="stdout")
        preempted.send_signal(signal.SIGUSR1)
        done = self.finish_all(first, preempted)
        self.assertEqual([each.returncode for each in done], [0, 75], self.transcript)
        self.assertIn("round=2 world=1", done[0].stdout)
        self.assertIn("got SIGUSR1; workers are asked to leave within 60 s", done[0].stderr)
        self.assertIn("goes on without it", done[1].stderr)

    def test_a_node_whose_workers_keep_failing_first_is_excluded(self):
        spare_is_there = os.path.join(self.scratch(), "spare")
        program = (harness.SHOW + f'; if [ "$(hostname)" = node1 ]; then until [ -e {spare_is_there} ]; '
                   'do sleep 0.01; done; exit 7; fi; [ "$DDPRUN_ROUND" = 3 ] || exec sleep 600')
        flags = ["--nnodes=2", "--spares=1", "--exclude-after=2", "--max-restarts=5",
                 "--max-restart-delay=0", "sh", "-c", program]
        first = self.agent(0, *flags)
        faulty = self.agent(1, *flags)
        self.await_line(faulty, "round=1", stream="stdout")
        spare = self.agent(2, *flags)
        self.await_line(spare, "ready as spare (1 of 1)")
        open(spare_is_there, "w").close()
        done = self.finish_all(first, faulty, spare)
        self.assertEqual([each.returncode for each in done], [0, 75, 0], self.transcript)
        self.assertIn("first to fail 2 times (--exclude-after=2)", done[1].stderr)


if __name__ == "__main__":
    harness.main_on_hosts()
