#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Interrupts train on one host. Its checkpoints are whole, torn or foreign, or the disk has no room for them."""
import array
import json
import math
import os
import re
import resource
import signal
import struct
import subprocess
import urllib.request

import checkpoints
import digits
import harness
from checkpoints import FEW, LAST_STEP, LONGER_STEPS, SHORT_RUN, TRAIN, path_of, steps_in

DISK_FULL = 74
PHASE, STEPS_DONE, OWN_COUNT = 64, 80, 88  # offsets in the progress page: docs/internals/agent-socket.md
TRAIN_PHASE, CHECKPOINT_PHASE, EVALUATE_PHASE = 1, 2, 3


def progress_page_word(pid, offset):
    """Returns a word of the page that worker `pid` shares with its agent."""
    with open(f"/proc/{pid}/maps") as f:
        start, = [line.split("-")[0] for line in f if "memfd:ddprun-progress" in line]
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as f:
        f.seek(int(start, 16) + offset)
        return struct.unpack("<Q", f.read(8))[0]


def is_stopped(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"


def workers_of(pid):
    """Returns rank → pid of the workers below ddprun."""
    found, todo = {}, [pid]
    while todo:
        parent = todo.pop()
        try:
            with open(f"/proc/{parent}/task/{parent}/children") as f:
                todo += [int(child) for child in f.read().split()]
            with open(f"/proc/{parent}/environ") as f:
                environment = dict(entry.split("=", 1) for entry in f.read().split("\0") if "=" in entry)
            with open(f"/proc/{parent}/comm") as f:
                if f.read() == "train\n" and "RANK" in environment:
                    found[int(environment["RANK"])] = parent
        except OSError:
            pass
    return found


class Checkpoints(harness.Case):
    @classmethod
    def setUpClass(cls):
        cls.undisturbed = None
        cls.first_epoch = None

    def job(self, directory, *args, flags=(), epochs=SHORT_RUN, **more):
        """Starts ddprun with two ranks."""
        return self.start("--standalone", "--nproc_per_node=2", *flags, TRAIN, *epochs,
                          "--checkpoint-dir", directory, *args, **more)

    def run_job(self, directory, *args, code=0, **more):
        done = self.finish(self.job(directory, *args, **more), timeout=120, code=code)
        self.assertNotIn("terminate called", done.text)
        return done

    def reference(self):
        """Returns a run without an interruption, which all tests share."""
        if not Checkpoints.undisturbed:
            directory = self.scratch()
            summary = os.path.join(directory, "summary.json")
            done = self.run_job(directory, "--json", summary)
            self.assertIn(f"train: no checkpoint in {directory}: begins anew", done.stdout)
            self.assertEqual(steps_in(directory), [48, LAST_STEP])
            Checkpoints.undisturbed = checkpoints.Undisturbed(checkpoints.load_json(summary), directory)
            with open(path_of(directory, 48), "rb") as f:
                Checkpoints.second_epoch = f.read()
        return Checkpoints.undisturbed

    def one_epoch(self):
        """Returns a new directory with a checkpoint of the first epoch. That epoch is trained once for all tests."""
        directory = self.scratch()
        if not Checkpoints.first_epoch:
            self.run_job(directory, epochs=["--epochs=1", "--seed=5", *FEW])
            self.assertEqual(steps_in(directory), [24])
            with open(path_of(directory, 24), "rb") as f:
                Checkpoints.first_epoch = f.read()
        with open(path_of(directory, 24), "wb") as f:
            f.write(Checkpoints.first_epoch)
        return directory

    def refused(self, directory, *args, code=2, **more):
        """Checks that each rank prints the problem once and that no checkpoint is lost. Returns the problem."""
        before = steps_in(directory) if os.path.isdir(directory) else []
        done = self.run_job(directory, *args, code=code, **more)
        lines = re.findall(r"^\[(\d)\] train: rank \1: (.*)$", done.stderr, re.M)
        self.assertEqual(len({text for _, text in lines}), 1, done.text)
        self.assertEqual(len({rank for rank, _ in lines}), len(lines), done.text)
        if os.path.isdir(directory):
            self.assertEqual(steps_in(directory)[:len(before)], before)
        return lines[0][1]

    def refused_alone(self, directory, *args, epochs=SHORT_RUN):
        """Does the same with one rank. Other tests show that each rank prints its problem once."""
        before = steps_in(directory)
        done = subprocess.run([TRAIN, *epochs, "--threads=1", "--checkpoint-dir", directory, *args], env=harness.environment(),
                              text=True, timeout=60, capture_output=True)
        self.assertEqual((done.returncode, steps_in(directory)), (2, before), done.stderr)
        return re.fullmatch("train: rank 0: (.*)\n", done.stderr).group(1)

    def test_a_killed_worker_costs_the_steps_since_the_last_checkpoint(self):
        reference, directory = self.reference(), self.scratch()
        summary = os.path.join(directory, "summary.json")
        port = harness.free_port()
        running = self.start("--nnodes=1", f"--rdzv-endpoint=127.0.0.1:{port}", "--nproc_per_node=2",
                             "--max-restarts=1", TRAIN, *SHORT_RUN, "--checkpoint-dir", directory,
                             "--checkpoint-every=7", "--checkpoint-async=no", "--json", summary)
        harness.wait_until(lambda: 35 in steps_in(directory), "step 35 is saved", 60)
        workers = workers_of(running.pid)
        for pid in workers.values():
            os.kill(pid, signal.SIGSTOP)
        harness.wait_until(lambda: all(is_stopped(pid) for pid in workers.values()), "both stand still")
        done = max(progress_page_word(pid, STEPS_DONE) for pid in workers.values())
        saved = steps_in(directory)[-1]
        os.kill(workers[1], signal.SIGKILL)
        text = ""
        while "epoch 2/3  loss" not in text:  # until the second round has come to this epoch
            line = running.stdout.readline()
            self.assertTrue(line, text)
            text += line
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/jobs", timeout=10) as answer:
            first, second = json.load(answer)["jobs"][0]["rounds"]
        self.finish(running, timeout=120, code=0)
        self.assertIn(f"goes on from step {saved + 1}, epoch 2/3: {path_of(directory, saved)}", text)
        # Rank 0 may have completed its step when it was continued, to be stopped.
        self.assertIn(first["last_step"], (done, done + 1))
        self.assertEqual(second["first_step"], saved + 1)
        self.assertEqual(first["steps_redone"], first["last_step"] - saved)
        self.assertLess(first["steps_redone"], 9)
        reference.check_equal(self, checkpoints.load_json(summary), directory)

    def test_killed_again_and_again_it_ends_where_it_would_have(self):
        reference, directory = self.reference(), self.scratch()
        summary = os.path.join(directory, "summary.json")
        running = self.job(directory, LONGER_STEPS, "--checkpoint-every=3", "--json", summary,
                           flags=["--max-restarts=9", "--max-restart-delay=0"])
        for step in (3, 9, 24, 30, 51):  # the job may be further
            harness.wait_until(lambda: (steps_in(directory) or [0])[-1] >= step, f"step {step} is saved", 60)
            harness.wait_until(lambda: len(workers_of(running.pid)) == 2, "two workers")
            os.kill(workers_of(running.pid)[step % 2], signal.SIGKILL)
        self.finish(running, timeout=120, code=0)
        reference.check_equal(self, checkpoints.load_json(summary), directory)

    def test_a_preempted_job_ends_with_75_and_goes_on_with_the_same_command(self):
        reference, directory = self.reference(), self.scratch()
        summary = os.path.join(directory, "summary.json")
        running = self.job(directory, "--json", summary)
        while "epoch 1/3" not in running.stdout.readline():
            pass
        running.send_signal(signal.SIGUSR1)
        done = self.finish(running, code=75)
        step = int(re.search(r"train: asked to leave before step (\d+): saved", done.stdout).group(1))
        self.assertEqual(steps_in(directory)[-1], step - 1)
        self.assertFalse(os.path.exists(summary) and os.path.getsize(summary))
        done = self.run_job(directory, "--json", summary)
        self.assertIn(f"goes on from step {step}, epoch {(step - 1) // 24 + 1}/3", done.stdout)
        self.assertEqual(checkpoints.load_json(summary)["first_step"], step)
        reference.check_equal(self, checkpoints.load_json(summary), directory)

    def test_a_job_whose_time_is_over_ends_with_124_and_goes_on_with_the_same_command(self):
        directory = self.scratch()
        flags = ["--time-limit=30", "--preemption-notice=24"]
        done = self.run_job(directory, flags=flags, epochs=["--epochs=1000", "--seed=5", *FEW], code=124)
        step = int(re.search(r"train: asked to leave before step (\d+): saved", done.stdout).group(1))
        self.assertEqual(steps_in(directory)[-1], step - 1)
        done = self.run_job(directory, epochs=[f"--epochs={(step - 1) // 24 + 1}", "--seed=5", *FEW])
        self.assertIn(f"goes on from step {step}, ", done.stdout)

    def test_saving_and_evaluating_are_phases_of_their_own(self):
        running = self.job(self.scratch(), "--checkpoint-every=1", epochs=["--epochs=1000", *FEW])
        while "epoch 1/" not in running.stdout.readline():
            pass
        seen, workers = {0: set(), 1: set()}, workers_of(running.pid)

        def all_phases_seen():
            for rank, pid in workers.items():
                seen[rank].add(progress_page_word(pid, PHASE))
                self.assertEqual(progress_page_word(pid, OWN_COUNT), 0)
            return all({TRAIN_PHASE, CHECKPOINT_PHASE, EVALUATE_PHASE} <= phases for phases in seen.values())

        harness.wait_until(all_phases_seen, "each phase on each rank", 60)
        running.terminate()
        self.finish(running)

    def test_a_preempted_job_without_a_directory_says_that_nothing_is_saved(self):
        running = self.start("--standalone", "--nproc_per_node=2", TRAIN, *FEW, "--epochs=1000")
        while "epoch 1/" not in running.stdout.readline():
            pass
        running.send_signal(signal.SIGUSR1)
        done = self.finish(running, code=75)
        self.assertRegex(done.stdout, r"asked to leave before step \d+: nothing is saved without --checkpoint-dir")

    def test_a_torn_file_is_named_and_the_one_before_it_taken(self):
        reference, directory = self.reference(), self.one_epoch()
        with open(path_of(directory, 48), "wb") as f:
            f.write(Checkpoints.second_epoch[:5_000_000])
        summary = os.path.join(directory, "summary.json")
        done = self.run_job(directory, "--json", summary)
        self.assertEqual(done.stderr.count("is damaged"), 1, done.text)
        self.assertIn(f"{path_of(directory, 48)} is damaged (it is cut off: ", done.stderr)
        self.assertIn("goes on from step 25, epoch 2/3", done.stdout)
        self.assertEqual(os.path.getsize(path_of(directory, 48) + ".damaged"), 5_000_000)
        reference.check_equal(self, checkpoints.load_json(summary), directory)

    def test_none_that_is_whole_is_the_users_to_decide(self):
        directory = self.one_epoch()
        os.truncate(path_of(directory, 24), 0)
        self.assertEqual(self.refused(directory), f"no whole checkpoint is left: {path_of(directory, 24)}: "
                         "it has 0 bytes; move it away to begin anew")

    def test_a_full_disk_ends_it_with_74_and_the_earlier_checkpoint_stays(self):
        directory = self.one_epoch()
        room = os.path.join(self.scratch(), "room")
        os.mkdir(room)
        copy = f"mount -t tmpfs -o size=24m tmpfs {room} && cp {directory}/*.safetensors {room}"
        job = [harness.DDPRUN, "--standalone", "--nproc_per_node=2", TRAIN, *SHORT_RUN, "--checkpoint-dir", room]
        script = f'{copy} || exit 99; "$@"; code=$?; ls {room}; exit $code'
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        done = subprocess.run(["unshare", *user, "--mount", "sh", "-c", script, "sh", *job], text=True, timeout=120,
                              env=harness.environment(), stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode in (1, 99) and "train" not in done.stdout:
            self.skipTest(f"no tmpfs of our own: {done.stderr}")
        self.assertEqual(done.returncode, DISK_FULL, done.stdout + done.stderr)
        self.assertRegex(done.stderr, rf"train: rank \d: can't write the checkpoint {path_of(room, 48)}: No space left on "
                         r"device: it takes 14\.\d MB, (9|10|11)\.\d MB are free")
        self.assertEqual(done.stdout.splitlines()[-1], os.path.basename(path_of(room, 24)))
        self.assertNotIn(".tmp", done.stdout)

    def test_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_the_name_after_it(self):
        """The system calls show the order: fsync of the temporary file, rename, fsync of the directory."""
        directory, calls = self.scratch(), os.path.join(self.scratch(), "calls")
        done = subprocess.run(["strace", "-f", "--seccomp-bpf", "-y", "-o", calls, "-e",
                               "trace=fsync,fdatasync,rename,renameat,renameat2", TRAIN, *FEW, "--epochs=1", "--seed=5",
                               "--threads=1", "--checkpoint-dir", directory], env=harness.environment(), text=True,
                              timeout=120, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(calls) as file:
            ours = [line for line in file if directory in line]
        renamed = [number for number, line in enumerate(ours) if re.search(r"rename\w*\(", line)]
        self.assertTrue(renamed, ours)
        for number in renamed:
            temporary = re.search(r'rename\w*\((?:\w+(?:<[^>]*>)?, )?"([^"]*)"', ours[number]).group(1)
            self.assertRegex(ours[number - 1], rf"fsync\(\d+<{re.escape(temporary)}>\) += 0", "".join(ours))
            self.assertRegex(ours[number + 1], rf"fsync\(\d+<{re.escape(directory)}>\) += 0", "".join(ours))

    def test_a_limit_on_file_sizes_is_like_a_full_disk(self):
        # The job has one rank, because the limit also applies to the memory that several ranks would share.
        directory = self.scratch()
        alone = [TRAIN, *SHORT_RUN, "--threads=1", "--checkpoint-dir", directory]
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, 10_000_000))
        done = subprocess.run(alone, env=harness.environment(), text=True, timeout=60, capture_output=True,
                              preexec_fn=limit)
        self.assertEqual(done.returncode, DISK_FULL, done.stderr)
        self.assertEqual(done.stderr, f"train: rank 0: can't write the checkpoint {path_of(directory, 24)}: "
                         "File too large\n")
        self.assertEqual(os.listdir(directory), [])

    def test_a_directory_that_cannot_be_written_to(self):
        file = self.write(self.scratch(), "file", "a file")
        self.assertEqual(self.refused(file), f"can't write to the checkpoint directory {file}: Not a directory")
        if os.geteuid() != 0:
            closed = os.path.join(self.scratch(), "closed")
            os.mkdir(closed, 0o555)
            self.assertIn("Permission denied", self.refused(closed))
        self.assertIn("can't write to the checkpoint directory /proc/none: ", self.refused("/proc/none"))

    def test_a_second_training_in_the_directory_is_refused(self):
        directory = self.scratch()
        first = self.job(directory, "--checkpoint-every=1", epochs=["--epochs=1000", "--seed=5", *FEW])
        harness.wait_until(lambda: steps_in(directory), "a step is saved", 60)
        owner = workers_of(first.pid)[0]
        done = self.run_job(directory, code=2)
        # Each rank may print this. When the first one ends, the others are stopped.
        self.assertRegex(done.stderr, rf"train: rank \d: process {owner} uses the checkpoint directory {directory}: one training "
                                      "per directory; end that one, or give another directory")
        before = steps_in(directory)[-1]
        harness.wait_until(lambda: steps_in(directory)[-1] > before, "the first one goes on", 60)
        first.terminate()
        self.finish(first)

    def test_a_checkpoint_of_other_options_is_refused(self):
        directory = self.one_epoch()
        for option, text in (("--seed=6", "--seed is 5 there, 6 here"), ("--lr=0.5", "--lr is 1 there, 0.5 here"),
                             ("--batch-size=32", f"--batch-size is {digits.BATCH} there, 32 here"),
                             ("--gamma=0.5", "--gamma is 0.7 there, 0.5 here"),
                             ("--batch-norm", "--batch-norm is set here, not there")):
            with self.subTest(option):
                others = [each for each in SHORT_RUN if each.split("=")[0] != option.split("=")[0]]
                self.assertEqual(
                    self.refused_alone(directory, option, epochs=others),
                    f"can't go on from {path_of(directory, 24)}: {text}; give what it was trained with, or another "
                    "checkpoint directory")

    def test_another_number_of_threads_is_said_once(self):
        for threads, warnings in (("1", 0), ("2", 1)):  # ddprun gives each of two workers one thread
            done = self.run_job(self.one_epoch(), "--threads", threads, epochs=["--epochs=2", "--seed=5", *FEW])
            self.assertIn("goes on from step 25", done.stdout)
            self.assertEqual(done.stderr.count("the checkpoint is of a run with --threads 1, this one has 2: "), warnings,
                             done.text)

    def test_a_checkpoint_of_another_model_or_program_is_refused(self):
        directory = self.one_epoch()
        path = path_of(directory, 24)
        metadata, tensors, data = checkpoints.read(path)
        renamed = {("fc3.bias" if k == "fc2.bias" else k): v for k, v in tensors.items()}
        reshaped = {**tensors, "fc2.bias": {**tensors["fc2.bias"], "shape": [5, 2]}}
        for change, text in (((metadata, renamed), "it is of another model: it has no fc2.bias"),
                             ((metadata, reshaped), "another model: fc2.bias is F32 [5, 2] there, F32 [10] here"),
                             (({**metadata, "ddprun_train": "9"}, tensors), "it is of version 9 of this format"),
                             (({"who": "else"}, tensors), "it has no ddprun_train"),
                             (({**metadata, "step": "23"}, tensors), "it is of step 23")):
            with self.subTest(text):
                checkpoints.write(path, *change, data)
                self.assertIn(text, self.refused_alone(directory))
        checkpoints.write(path, metadata, tensors, data)
        self.assertIn("goes on from step 25", self.run_job(directory, epochs=["--epochs=2", "--seed=5", *FEW]).stdout)

    def test_other_images_are_refused(self):
        directory, data = self.one_epoch(), self.scratch()
        num_images = digits.BATCH * checkpoints.STEPS_PER_EPOCH
        digits.write_some(data, num_images)
        flags = [f"--data={data}", f"--batch-size={digits.BATCH}", "--seed=5"]
        self.assertIn("goes on", self.run_job(directory, epochs=["--epochs=2", *flags]).stdout)
        with open(os.path.join(data, "train-labels-idx1-ubyte"), "r+b") as f:
            f.seek(8 + num_images - 1)
            last = f.read(1)
            f.seek(8 + num_images - 1)
            f.write(bytes([(last[0] + 1) % 10]))
        self.assertIn("the training images are others", self.refused(directory, epochs=["--epochs=3", *flags]))

    def test_other_numbers_of_ranks_go_on_with_it(self):
        directory = self.scratch()
        running = self.job(directory)
        while "epoch 1/3" not in running.stdout.readline():
            pass
        running.send_signal(signal.SIGUSR1)
        self.assertEqual(self.finish(running).returncode, 75)
        step = steps_in(directory)[-1]
        alone = subprocess.run([TRAIN, *FEW, "--epochs=2", "--seed=5", "--threads=1", "--checkpoint-dir", directory],
                               env=harness.environment(), text=True, timeout=120, capture_output=True)
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.assertIn(f"goes on from step {step + 1}, epoch ", alone.stdout)
        self.assertEqual(steps_in(directory)[-1], 48)
        three = self.finish(self.start("--standalone", "--nproc_per_node=3", TRAIN, *SHORT_RUN,
                                       "--checkpoint-dir", directory), timeout=120, code=0)
        self.assertIn("goes on from step 49, epoch 3/3", three.stdout)
        accuracy = re.findall(r"test accuracy ([\d.]+)", three.stdout)
        self.assertGreater(float(accuracy[-1]), 0.7)

    def test_epochs_that_are_trained_already_are_said(self):
        directory = self.one_epoch()
        summary = os.path.join(directory, "summary.json")
        done = self.run_job(directory, "--json", summary, epochs=["--epochs=1", "--seed=5", *FEW])
        self.assertIn(f"train: 1 epochs are trained already: {path_of(directory, 24)}", done.stdout)
        self.assertEqual([e["epoch"] for e in checkpoints.load_json(summary)["epochs"]], [1])

    def test_weights_that_are_no_numbers_are_never_saved(self):
        slow_disk = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=fsync", "-e", "inject=fsync:delay_enter=300ms", "-o", "/dev/null"]
        for disk, flags in ((slow_disk, ["--checkpoint-every=1"]), ((), ["--checkpoint-every=1", "--checkpoint-sharded"]), ((), [])):
            with self.subTest(flags):
                directory = self.scratch()
                text = self.refused(directory, "--optimizer=sgd", "--lr=1e30", *flags, flags=disk)
                step = int(re.match(r"the training has diverged: after step (\d+) weights are infinite or not a number; "
                                    r"try a lower --lr.*\. Earlier checkpoints are kept$", text).group(1))
                steps = sorted(set(steps_in(directory)))
                self.assertEqual(steps, list(range(max(1, step - 2), step)) if flags else [])
                for saved in steps:
                    for dtype, _, data in checkpoints.tensors_of(directory, saved).values():
                        self.assertEqual(dtype, "F32")
                        self.assertTrue(all(map(math.isfinite, array.array("f", data))))


if __name__ == "__main__":
    checkpoints.skip_without_train()
    harness.main()
