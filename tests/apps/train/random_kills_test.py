#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills train by SIGKILL at random moments: it ends bit for bit like an undisturbed run. DDPRUN_NUM_KILLS: number of
kills (5). DDPRUN_TEST_SEED: selects moments and ranks; each test prints it."""
import os
import random
import signal
import struct
import time

import checkpoints
import harness
import seeds
from checkpoint_test import PHASE, STEPS_DONE, progress_page_word, workers_of
from checkpoints import LAST_STEP, LONGER_STEPS, SHORT_RUN, TRAIN, path_of, steps_in

NUM_KILLS = int(os.environ.get("DDPRUN_NUM_KILLS", 5))


def progress_of(pid):
    """Returns (steps done, phase); None: the rank is gone, or has no page yet."""
    try:
        return progress_page_word(pid, STEPS_DONE), progress_page_word(pid, PHASE)
    except (OSError, ValueError, struct.error):
        return None


class RandomKills(harness.Case):
    def job(self, directory, *args, flags=()):
        summary = os.path.join(directory, "summary.json")
        return self.start("--standalone", "--nproc_per_node=2", *flags, TRAIN, *SHORT_RUN, "--checkpoint-dir", directory,
                          "--json", summary, *args)

    def undisturbed(self):
        directory = self.scratch()
        self.finish(self.job(directory), timeout=120, code=0)
        return checkpoints.Undisturbed(checkpoints.load_json(os.path.join(directory, "summary.json")), directory)

    def kill_at_random(self, running, draw, directory, at_step):
        """Kills a random rank at some moment within `at_step` or a later step, sometimes while the rank starts."""
        rank, starting, part = draw.randrange(2), draw.random() < 0.2, draw.random()
        now = []

        def time_has_come():
            if running.poll() is not None:
                return True
            pid = workers_of(running.pid).get(rank)
            if pid is None or pid in self.known:  # the worker belongs to a round that is over
                return False
            now[:] = [pid, *(progress_of(pid) or (0, 0))]
            return starting or now[1] >= at_step

        while True:
            harness.wait_until(time_has_come, f"rank {rank} comes to step {at_step}", 60)
            if running.poll() is not None:
                return "ended"
            time.sleep(part * (0.3 if starting else 0.02))  # any moment of a start, a step, a save, an evaluation
            self.known |= {now[0], *workers_of(running.pid).values()}
            try:
                os.kill(now[0], signal.SIGKILL)
                break
            except ProcessLookupError:  # its round was over
                pass
        newest = (steps_in(directory) or [0])[-1]
        return f"rank {rank} {'in its start' if starting else f'at step {now[1]}'}, newest {newest}"

    @classmethod
    def setUpClass(cls):
        cls.reference = None

    def check(self, *args):
        """Trains with random kills and checks the result. Returns the names of the last checkpoint's files."""
        RandomKills.reference = RandomKills.reference or self.undisturbed()
        draw, reference = random.Random(seeds.seed()), self.reference
        directory = self.scratch()
        running = self.job(directory, LONGER_STEPS, "--checkpoint-every=1", *args,
                           flags=[f"--max-restarts={NUM_KILLS}", "--max-restart-delay=0"])
        self.known = set()  # workers of rounds that are over
        steps = sorted(draw.randint(1, LAST_STEP - 12) for _ in range(NUM_KILLS))
        kills = [self.kill_at_random(running, draw, directory, step) for step in steps]
        done = self.finish(running, timeout=120)
        print("\n".join(kills), flush=True)
        self.assertEqual(done.returncode, 0, done.text)
        self.assertNotIn("ended", kills)
        reference.check_equal(self, checkpoints.load_json(os.path.join(directory, "summary.json")), directory)
        return sorted(name for name in os.listdir(directory) if name != "summary.json")

    def test_checkpoints_of_rank_0(self):
        self.assertEqual(self.check(), [os.path.basename(path_of("", step)) for step in (LAST_STEP - 1, LAST_STEP)])

    def test_shards_of_each_rank(self):
        names = self.check("--checkpoint-sharded")
        self.assertEqual(len(names), 2 * 3, names)
        self.assertEqual([name for name in names if ".tmp-" in name or ".damaged" in name], [])


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main()
