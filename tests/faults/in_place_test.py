#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests --recovery=inplace: workers whose peer was killed go on in their processes (docs/inplace.md), and the job has
the one right result. DDPRUN_FAULT_KILLS=N: how many jobs get a kill at a random moment (12)."""
import json
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../launcher"))
import harness  # noqa: E402
import seeds  # noqa: E402
from harness import wait_until  # noqa: E402

KILLS = int(os.environ.get("DDPRUN_FAULT_KILLS", "12"))
WORKER = os.path.join(harness.BIN, "in_place_worker")
PRIME, BATCH = 1_000_003, 4  # the constants of the worker
SAMPLES = 3_000
PEER_LOST = 144  # docs/internals/agent-socket.md: the word's offset


def result_of(history, num_samples):
    """Returns the expected weight at the end. `history`: (position, world size) at the begin and after each loss."""
    weights = {0: 1}
    for (begin, world), (end, _) in zip(history, [*history[1:], (num_samples, 0)]):
        position, weight = begin, weights[begin]
        while position < num_samples and (position < end or end == num_samples):
            taken = range(position, min(position + world * BATCH, num_samples))
            weight = (weight * 31 + sum((s * 48_271 + weight) % PRIME for s in taken)) % PRIME
            position += world * BATCH
            weights[position] = weight
        last = weight
    return last


class InPlace(harness.Case):
    def begin(self, *more, samples=SAMPLES, step_us=1_000, flags=(), nproc=3):
        self.meet = self.scratch()
        os.mkdir(os.path.join(self.meet, "pids"))
        self.samples = samples
        self.report = os.path.join(self.meet, "report.json")
        return self.start("--standalone", f"--nproc-per-node={nproc}", "--recovery=inplace",
                          f"--report={self.report}", "--max-restarts=3", "--shutdown-timeout=5", *flags,
                          WORKER, self.meet, str(samples), str(step_us), *more)

    def pid(self, rank, round_number):
        path = os.path.join(self.meet, "pids", f"{rank}.{round_number}")
        wait_until(lambda: os.path.exists(path), f"rank {rank} runs in round {round_number}")
        with open(path) as file:
            return int(file.read())

    def pids(self, world, round_number):
        return [self.pid(rank, round_number) for rank in range(world)]

    def await_snapshot(self):
        wait_until(lambda: os.path.exists(os.path.join(self.meet, "snapshot")), "a snapshot is written")

    def history(self):
        with open(os.path.join(self.meet, "history")) as file:
            lines = [line.split() for line in file.read().splitlines()]
        return [(int(number), int(position), int(world), how) for number, position, world, how in lines]

    def check_result(self, done):
        self.assertEqual(done.returncode, 0, done.text)
        history = self.history()
        with open(os.path.join(self.meet, "result")) as file:
            result = int(file.read())
        self.assertEqual(result, result_of([(p, w) for _, p, w, _ in history], self.samples), f"{history}\n{done.text}")
        return history

    def rounds(self):
        with open(self.report) as file:
            return [(each["round"], each["world_size"], each["in_place"])
                    for each in json.load(file)["written_by"]["rounds"]]


class OneKill(InPlace):
    def test_the_others_go_on_as_the_same_processes(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                job = self.begin()
                before = self.pids(3, 1)
                self.await_snapshot()
                os.kill(before[victim], signal.SIGKILL)
                self.assertEqual(self.pids(2, 2), before[:victim] + before[victim + 1:])
                done = self.finish(job)
                history = self.check_result(done)
                self.assertEqual([(number, world, how) for number, _, world, how in history],
                                 [(1, 3, "started"), (2, 2, "recovered")])
                self.assertEqual(self.rounds(), [(1, 3, False), (2, 2, True)])
                self.assertRegex(done.stderr, r"rank \d .* was killed by SIGKILL; restart 1 of 3 in place")

    def test_the_job_recovers_again_until_one_is_left(self):
        job = self.begin()
        self.await_snapshot()
        os.kill(self.pid(1, 1), signal.SIGKILL)
        first, second = self.pids(2, 2)
        os.kill(first, signal.SIGKILL)
        self.assertEqual(self.pids(1, 3), [second])
        history = self.check_result(self.finish(job))
        self.assertEqual([world for _, _, world, _ in history], [3, 2, 1])

    def test_processes_that_the_dead_one_left_behind_are_ended(self):
        script = f'[ $LOCAL_RANK = 1 ] && sleep 1000 & exec {WORKER} "$@"'
        self.meet = self.scratch()
        os.mkdir(os.path.join(self.meet, "pids"))
        self.samples = SAMPLES
        job = self.start("--standalone", "--nproc-per-node=2", "--recovery=inplace", "--max-restarts=1", "--no-python",
                         "sh", "-c", script, "sh", self.meet, str(SAMPLES), "1000")
        victim = self.pid(1, 1)
        with open(f"/proc/{victim}/task/{victim}/children") as file:
            child = int(file.read().split()[0])
        self.await_snapshot()
        os.kill(victim, signal.SIGKILL)
        self.pid(0, 2)
        wait_until(lambda: not os.path.exists(f"/proc/{child}"), "its child is gone")
        self.check_result(self.finish(job))


class Nccl(InPlace):
    """Communicators use a fake NCCL. Like NCCL, it doesn't report a dead peer; the agent does."""

    def test_the_others_go_on_until_one_is_left(self):
        job = self.begin("nccl")
        before = self.pids(3, 1)
        self.await_snapshot()
        os.kill(before[0], signal.SIGKILL)
        self.assertEqual(self.pids(2, 2), before[1:])
        os.kill(before[2], signal.SIGKILL)
        self.assertEqual(self.pids(1, 3), [before[1]])
        history = self.check_result(self.finish(job))
        self.assertEqual([(world, how) for _, _, world, how in history],
                         [(3, "started"), (2, "recovered"), (1, "recovered")])
        self.assertEqual(self.rounds(), [(1, 3, False), (2, 2, True), (3, 1, True)])

    def test_one_dies_between_two_operations(self):
        job = self.begin("nccl", samples=240, step_us=100_000)
        before = self.pids(3, 1)
        self.await_snapshot()
        os.kill(before[1], signal.SIGKILL)
        self.assertEqual(self.pids(2, 2), [before[0], before[2]])
        self.check_result(self.finish(job))


class Doubt(InPlace):
    """In these cases the job restarts, as without the option."""

    def restarts(self, *more, reason, flags=()):
        job = self.begin(*more, flags=flags)
        before = self.pids(3, 1)
        self.await_snapshot()
        os.kill(before[2], signal.SIGKILL)
        after = self.pids(3, 2)
        self.assertFalse(set(before) & set(after))
        done = self.finish(job)
        self.assertEqual([world for _, _, world, _ in self.check_result(done)], [3, 3])
        self.assertRegex(done.stderr, reason)
        self.assertEqual(self.rounds(), [(1, 3, False), (2, 3, False)])

    def test_a_program_that_never_offered(self):
        # Quick workers have already ended by themselves, as such programs do after the loss of a peer.
        self.restarts("mute", reason=r"can't go on in place: (rank \d \(pid \d+\) has not offered it|none is left on "
                                     r"this node|rank \d has ended, too)")

    def test_workers_that_are_not_kept_are_told_of_no_lost_peer(self):
        ready = os.path.join(self.scratch(), "ready")
        script = (f"import os, signal, sys, time; sys.path.insert(0, {os.path.join(harness.SOURCE, 'python')!r})\n"
                  "import ddprun; ddprun.step(1)\n"
                  "if os.environ['DDPRUN_ROUND'] != '1': sys.exit()\n"
                  "if os.environ['RANK'] == '0':\n"
                  f"    while not os.path.exists({ready!r}): time.sleep(0.01)\n"
                  "    os.kill(os.getpid(), signal.SIGKILL)\n"
                  "def leave(*_):\n"
                  f"    print('peer_lost', ddprun.progress._agent().words[{PEER_LOST // 8}], flush=True)\n"
                  "    os._exit(1)\n"
                  f"signal.signal(signal.SIGTERM, leave); open({ready!r}, 'w').close(); time.sleep(600)\n")
        done = self.ddprun("--standalone", "--nproc-per-node=2", "--recovery=inplace", "--max-restarts=1",
                           sys.executable, "-c", script, code=0)
        self.assertRegex(done.stdout, r"(?m)peer_lost 0$")
        self.assertRegex(done.stderr, r"can't go on in place: rank 1 \(pid \d+\) has not offered it")

    def test_the_option_is_not_given(self):
        self.restarts(flags=("--recovery=restart",), reason="restart 1 of 3\n")

    def test_a_store_that_outlives_its_round(self):
        self.restarts(flags=("--store=proxy",), reason=r"not in place: the workers' store is at the rendezvous")

    def test_the_budget_is_used_up(self):
        job = self.begin(flags=("--max-restarts=1",))
        self.await_snapshot()
        os.kill(self.pid(1, 1), signal.SIGKILL)
        os.kill(self.pid(1, 2), signal.SIGKILL)
        done = self.finish(job)
        self.assertEqual(done.returncode, 128 + signal.SIGKILL, done.text)


class TwoNodes(InPlace):
    def test_both_nodes_keep_what_is_left(self):
        self.meet = self.scratch()
        os.mkdir(os.path.join(self.meet, "pids"))
        self.samples = SAMPLES
        endpoint = f"127.0.0.1:{harness.free_port()}"
        nodes = [self.start(f"--rdzv-endpoint={endpoint}", "--rdzv-id=job", "--nnodes=2", "--nproc-per-node=2",
                            "--recovery=inplace", "--max-restarts=2", WORKER, self.meet, str(SAMPLES), "1000")
                 for _ in range(2)]
        before = self.pids(4, 1)
        self.await_snapshot()
        os.kill(before[1], signal.SIGKILL)
        self.assertEqual(self.pids(3, 2), [before[0], *before[2:]])
        for node in nodes:
            done = self.finish(node, code=0)
        self.assertEqual([world for _, _, world, _ in self.check_result(done)], [4, 3])


# A worker that speaks to its agent without the SDK (docs/agent-socket.md). Rank 3 is killed, and the others offer to go
# on. Rank 1 withdraws its offer when its own node has accepted it and the other node has not yet.
TAKES_IT_BACK = f"""
import json, mmap, os, signal, socket, struct, sys, time
meet, rank, number = sys.argv[1], int(os.environ["RANK"]), int(os.environ["DDPRUN_ROUND"])
place = lambda name: os.path.join(meet, name)
def await_all(*names):
    while not all(os.path.exists(place(name)) for name in names): time.sleep(0.005)
def connect(*events):
    agent = socket.socket(socket.AF_UNIX)
    agent.connect(os.environ["DDPRUN_AGENT_SOCKET"])
    for event in ({{"type": "hello", "version": 1, "round": number, "local_rank": int(os.environ["LOCAL_RANK"])}}, *events):
        agent.sendall(json.dumps(event).encode() + b"\\n")
    _, fds, _, _ = socket.recv_fds(agent, 4096, 1)
    return agent, mmap.mmap(fds[0], 4096)
if number > 1: sys.exit()
kept, page = connect({{"type": "offers_recovery"}})
open(place(f"ready{{rank}}"), "w").close()
await_all("ready0", "ready1", "ready2", "ready3")
if rank == 3: os.kill(os.getpid(), signal.SIGKILL)
if rank == 2: await_all("left")
asking, _ = connect({{"type": "recover"}})
if rank == 0: open(place("asked"), "w").close()
if rank == 1:
    await_all("asked")
    while struct.unpack_from("<Q", page, {PEER_LOST})[0] == 0: time.sleep(0.005)
    asking.close()
    open(place("left"), "w").close()
time.sleep(600)
"""


class TakenBack(InPlace):
    def test_a_worker_that_waits_no_more_is_the_one_that_is_named(self):
        meet, endpoint = self.scratch(), f"127.0.0.1:{harness.free_port()}"
        nodes = [self.start(f"--rdzv-endpoint={endpoint}", "--rdzv-id=job", "--nnodes=2", f"--node-rank={node}",
                            "--nproc-per-node=2", "--recovery=inplace", "--max-restarts=2", "--shutdown-timeout=5",
                            sys.executable, "-c", TAKES_IT_BACK, meet) for node in range(2)]
        done = [self.finish(node) for node in nodes]
        self.assertEqual([each.returncode for each in done], [0, 0], "\n".join(each.text for each in done))
        self.assertRegex(done[0].stderr, r"rank 1 \(.*could not go on in place: rank 1 does not wait for it any more")


class RandomKills(InPlace):
    def test_each_job_ends_with_its_result(self):
        choice = random.Random(seeds.seed())
        in_place = 0
        for number in range(KILLS):
            with self.subTest(number=number):
                job = self.begin(*(["nccl"] if number % 3 == 2 else []), samples=1_200, step_us=500)
                pids = self.pids(3, 1)
                time.sleep(choice.uniform(0, 0.06))
                try:
                    os.kill(choice.choice(pids), signal.SIGKILL)
                except ProcessLookupError:
                    pass  # the job was faster than the kill
                history = self.check_result(self.finish(job))
                in_place += history[-1][3] == "recovered"
        print(f"{in_place} of {KILLS} in place", end=" ", file=sys.stderr, flush=True)
        self.assertGreaterEqual(in_place, KILLS // 2)


if __name__ == "__main__":
    harness.main()
