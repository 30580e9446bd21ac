#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests train as a user runs it: alone, under ddprun, and with failures."""
import fcntl
import gzip
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(os.path.join(HERE, "../../..")))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402
import digits  # noqa: E402

BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/dev/bin"))
TRAIN = os.path.join(BIN, "train")
FEW = digits.few(4)
DDPRUN = [os.path.join(BIN, "ddprun"), "--standalone", "--nproc_per_node=2"]


def environment():
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "DDPRUN_RDZV", "PET_", "SLURM_")
    return {k: v for k, v in os.environ.items() if not k.startswith(dropped)}


def run(argv, timeout=120, **more):
    return subprocess.run(argv, env=environment(), text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)


def workers_of(pid):
    """Returns the processes named train below `pid`."""
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        try:
            with open(f"/proc/{parent}/task/{parent}/children") as f:
                children = [int(c) for c in f.read().split()]
            todo += children
            for child in children:
                with open(f"/proc/{child}/comm") as f:
                    if f.read().strip() == "train":
                        found.append(child)
        except OSError:
            pass
    return found


def rank_of(pid):
    with open(f"/proc/{pid}/environ") as f:
        return dict(entry.split("=", 1) for entry in f.read().split("\0") if "=" in entry).get("RANK")


def write_full_mnist(directory):
    """Writes a data set of MNIST's size and form. It repeats the shipped digits, moved by a few pixels."""
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        header, pixels = digits.read_idx(prefix + "-images-idx3-ubyte.gz")
        labels_header, labels = digits.read_idx(prefix + "-labels-idx1-ubyte.gz")
        images = [pixels[i:i + 784] for i in range(0, len(pixels), 784)]
        with gzip.open(os.path.join(directory, prefix + "-images-idx3-ubyte.gz"), "wb", compresslevel=1) as f:
            f.write(header[:4] + struct.pack(">I", count) + header[8:])
            for i in range(count):
                image = images[i % len(images)]
                shift = 28 * (i // len(images) % 3) + i // len(images) % 2
                f.write(image[shift:] + image[:shift])
        with gzip.open(os.path.join(directory, prefix + "-labels-idx1-ubyte.gz"), "wb") as f:
            f.write(labels_header[:4] + struct.pack(">I", count))
            f.write(bytes(labels[i % len(labels)] for i in range(count)))


class Train(unittest.TestCase):
    def start(self, argv):
        process = subprocess.Popen(argv, env=environment(), text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def read_until(self, process, part):
        for line in process.stdout:
            if part in line:
                return line
        self.fail(f"'{part}' was never printed")

    def test_two_ranks_learn_the_digits(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "summary.json")
            done = run(DDPRUN + [TRAIN, *digits.enough(24), "--json", path])
            self.assertEqual(done.returncode, 0, done.stdout)
            with open(path) as f:
                summary = json.load(f)
        self.assertGreaterEqual(summary["test_accuracy"], 0.88)  # launcher.main_line and the demo train on all digits
        self.assertEqual((summary["world_size"], summary["backend"]), (2, "host"))
        self.assertEqual([e["epoch"] for e in summary["epochs"]], [1, 2, 3, 4, 5])
        self.assertGreater(summary["epochs"][0]["train_loss"], summary["epochs"][4]["train_loss"])
        self.check_steps(summary, done.stdout)
        self.assertIn("epoch 5/5  loss ", done.stdout)
        self.assertNotIn("\r", done.stdout)

    def check_steps(self, summary, printed):
        steps = summary["steps"]
        self.assertEqual(steps["num_steps"], summary["last_step"] - 1)  # the first step warms up
        self.assertTrue(0 <= steps["bytes_per_step"] - 4 * 1_199_882 < 1024)  # the net's gradients, padded
        parts = ("step", "forward", "backward", "communication", "exposed", "loader")
        for part in parts:
            self.assertLessEqual(steps[part]["median"], steps[part]["p95"])
            self.assertGreaterEqual(steps[part]["median"], 0)
        step, forward, backward = (steps[part]["mean"] for part in parts[:3])
        self.assertGreater(min(forward, backward, steps["loader"]["mean"], steps["step"]["median"]), 0)
        self.assertGreaterEqual(step, forward + backward + steps["exposed"]["mean"] - 1e-6)
        self.assertTrue(0 <= steps["overlap"] <= 1, steps)
        self.assertRegex(printed, r"train: step \d+\.\d ms \(p95 \d+\.\d\): forward .*\(overlap \d+ %\), data \d")

    def test_a_data_set_of_the_size_of_mnist_is_trained(self):
        # A whole epoch takes two cores a minute and a half, so the test stops after the first steps.
        with tempfile.TemporaryDirectory() as directory:
            write_full_mnist(directory)
            master, slave = pty.openpty()
            self.addCleanup(os.close, master)
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
            process = subprocess.Popen(DDPRUN + [TRAIN, "--data", directory, "--epochs=1"], env=environment(),
                                       stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
            self.addCleanup(process.kill)
            os.close(slave)
            text, losses = "", []
            while len(losses) < 4 or losses[-1] > 0.7 * losses[0]:
                text += os.read(master, 65536).decode()  # EIO: train ended before it had learned anything
                losses = [float(loss) for loss in re.findall(r"\d+/938  loss (\d+\.\d+)", text)]
            process.send_signal(signal.SIGTERM)
            self.assertNotEqual(process.wait(timeout=60), 0)
            self.assertIn(f"60000 images, 10000 to test, from {directory}", text)
        print(f"loss {losses[0]} … {losses[-1]} of 938 steps an epoch")

    def test_alone_it_says_that_there_is_no_launcher(self):
        done = run([TRAIN, *FEW, "--epochs=1", "--threads=1"])
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("no launcher (WORLD_SIZE is not set): one rank alone", done.stdout)

    def test_same_seed_same_training(self):
        losses = [run([TRAIN, *FEW, "--epochs=1", "--threads=1", "--seed=7"]).stdout.split("samples/s")[0]
                  .rsplit("accuracy", 1)[0] for _ in range(2)]
        self.assertEqual(losses[0], losses[1])

    def test_a_terminal_gets_a_bar_that_redraws(self):
        master, slave = pty.openpty()
        process = subprocess.Popen([TRAIN, *FEW, "--epochs=1", "--threads=1"], env=environment(),
                                   stdin=subprocess.DEVNULL, stdout=slave, close_fds=True)
        os.close(slave)
        text = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # EIO: the last writer has closed
                break
            if not chunk:
                break
            text += chunk
        os.close(master)
        self.assertEqual(process.wait(timeout=10), 0)
        self.assertIn(b"\repoch 1/1 [", text)

    def test_missing_and_broken_data_are_named_with_exit_status_2(self):
        with tempfile.TemporaryDirectory() as directory:
            done = run([TRAIN, "--data", directory])
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(f"{directory}/train-images-idx3-ubyte[.gz]: no such file", done.stdout)
            with open(os.path.join(directory, "train-images-idx3-ubyte.gz"), "wb") as f:
                f.write(b"\x1f\x8b\x08\x00 no gzip")
            done = run(DDPRUN + [TRAIN, "--data", directory])
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(f"{directory}/train-images-idx3-ubyte.gz: ", done.stdout)
            os.mkfifo(os.path.join(directory, "train-images-idx3-ubyte"))
            done = run([TRAIN, "--data", directory], timeout=30)
            self.assertEqual((done.returncode, done.stdout),
                             (2, f"train: rank 0: {directory}/train-images-idx3-ubyte: is no regular file\n"))

    def test_wrong_usage_has_exit_status_2(self):
        for argv in (["--nonsense"], ["--json=/nonexistent/x"]):  # other cases: options_test.cc
            with self.subTest(argv=argv):
                done = run([TRAIN, *argv])
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertRegex(done.stdout, r"\Atrain: [^\n]{10,250}\n\Z")
                self.assertIn("/nonexistent/x" if "json" in argv[0] else argv[0].split("=")[0], done.stdout)
        self.assertEqual(run([TRAIN, "--help"]).returncode, 0)

    def test_a_variable_that_is_no_number_of_threads_is_refused(self):
        for value in ("0", "-1", "many", "2x"):
            done = run(["env", f"OMP_NUM_THREADS={value}", TRAIN])
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(f'train: rank 0: OMP_NUM_THREADS="{value}" is no number of threads: set it to 1 or more, unset it, or '
                          "give --threads N\n", done.stdout)

    def test_a_lack_of_memory_is_one_line_and_exit_status_74(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (900_000_000, 900_000_000))
        done = run([TRAIN, "--batch-size=1000000", "--threads=1"], preexec_fn=limit)
        if done.returncode == -signal.SIGABRT:
            self.skipTest("LibTorch doesn't start with so little memory")
        self.assertEqual(done.returncode, 74, done.stdout)
        self.assertRegex(done.stdout, r"\ntrain: rank 0: out of memory[^\n]*\n\Z")

    def test_nccl_without_a_gpu_is_refused(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("there is a GPU")
        done = run([TRAIN, "--backend=nccl"])
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("--backend nccl: no launcher", done.stdout)
        done = run(DDPRUN + [TRAIN, "--backend=nccl"])
        self.assertEqual(done.returncode, 2, done.stdout)
        for rank in (0, 1):
            self.assertIn(f"train: rank {rank}: backend \"nccl\" can't be used: rank 0 has no GPU of its "
                          "own: no NVIDIA driver", done.stdout)

    def test_the_ranks_agree_on_auto_and_say_once_why_it_is_the_host_backend(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("there is a GPU")
        done = run(DDPRUN + [TRAIN, *FEW, "--epochs=1"])
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.count("ddprun: using the host backend, not NCCL: rank 0 has no GPU of its own: "
                                           "no NVIDIA driver"), 1, done.stdout)

    def test_more_ranks_than_test_images(self):
        with tempfile.TemporaryDirectory() as directory:
            for prefix, count in (("train", 6), ("t10k", 1)):
                with open(os.path.join(directory, prefix + "-images-idx3-ubyte"), "wb") as f:
                    f.write(struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + bytes(count * 784))
                with open(os.path.join(directory, prefix + "-labels-idx1-ubyte"), "wb") as f:
                    f.write(struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(count))
            done = run([DDPRUN[0], "--standalone", "--nproc_per_node=3", TRAIN, "--epochs=1", "--data",
                        directory])
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("epoch 1/1  loss ", done.stdout)

    def test_sigterm_ends_it(self):
        process = self.start([TRAIN, *FEW, "--epochs=1000", "--threads=1"])
        self.read_until(process, "epoch 1/")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), -signal.SIGTERM)  # it ends long before its thousandth epoch

    def test_a_killed_rank_is_named_by_the_others(self):
        process = self.start(DDPRUN + [TRAIN, *FEW, "--epochs=1000"])
        self.read_until(process, "epoch 1/")
        os.kill(workers_of(process.pid)[-1], signal.SIGKILL)
        output = process.communicate(timeout=60)[0]
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("SIGKILL", output)

    def test_a_rank_that_stands_still_ends_the_others_after_the_operations_deadline(self):
        process = self.start(DDPRUN + [TRAIN, *FEW, "--epochs=100000", "--threads=1", "--operation-timeout=3"])
        self.read_until(process, "epoch 1/")
        stopped, = (pid for pid in workers_of(process.pid) if rank_of(pid) == "1")
        os.kill(stopped, signal.SIGSTOP)
        self.assertIn("on rank 0 timed out after 3000 ms: waiting for rank 1",
                      self.read_until(process, "timed out after"))
        report = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 1, report)
        self.assertRegex(report, r"operation +rank 1 never came to all_reduce #\d+ .*; rank 0 waited in it for \d+\.\d s")


if __name__ == "__main__":
    runner.main()
