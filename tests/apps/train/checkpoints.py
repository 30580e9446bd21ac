# SPDX-License-Identifier: Apache-2.0
"""Reads train's checkpoints as a program in another language would, and runs jobs of train that make some."""
import glob
import json
import os
import struct
import sys
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../launcher"))
import harness  # noqa: E402
import digits  # noqa: E402
import skips  # noqa: E402

TRAIN = os.path.join(harness.BIN, "train")
EPOCHS, STEPS_PER_EPOCH = 3, 24
LAST_STEP = EPOCHS * STEPS_PER_EPOCH
FEW = digits.few(STEPS_PER_EPOCH)
LONGER_STEPS = "--loader-delay-ms=20"  # gives a test time to act within a step
SHORT_RUN = [f"--epochs={EPOCHS}", "--seed=5", *FEW]


def skip_without_train():
    if not os.path.exists(TRAIN):
        skips.skip_all("train is not built (no LibTorch)")


def path_of(directory, step):
    return os.path.join(directory, f"step-{step:012}.safetensors")


def steps_in(directory):
    """Returns the steps that have a checkpoint, in ascending order."""
    names = glob.glob(os.path.join(directory, "step-*.safetensors"))
    return sorted(int(os.path.basename(name)[5:17]) for name in names)


def read(path):
    """Reads the safetensors format by hand: a file's metadata, its tensors' entries, and the bytes of all tensors."""
    with open(path, "rb") as f:
        length, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = f.read()
    metadata = header.pop("__metadata__")
    return metadata, header, data


def write(path, metadata, tensors, data):
    """Writes a file in the safetensors format, with the right checksum."""
    metadata = {k: v for k, v in metadata.items() if k != "crc32"}
    checksum = 0
    for key, value in sorted(metadata.items()):
        checksum = zlib.crc32(f"{key}\0{value}\0".encode(), checksum)
    header = {"__metadata__": {**metadata, "crc32": str(zlib.crc32(data, checksum))}, **tensors}
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def tensors_of(directory, step):
    """Returns name → dtype, shape and bytes of each tensor, from all shards if there are some."""
    metadata, _, _ = read(path_of(directory, step))
    paths = [path_of(directory, step)]
    if "shards" in metadata:
        paths = glob.glob(os.path.join(directory, f"step-{step:012}.{metadata['save']}.rank-*-of-{metadata['shards']}.safetensors"))
        assert len(paths) == int(metadata["shards"]), paths
    found = {}
    for path in paths:
        _, tensors, data = read(path)
        for name, entry in tensors.items():
            begin, end = entry["data_offsets"]
            found[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return found


class Undisturbed:
    """A training without an interruption: its summary, and its last checkpoint's tensors."""

    def __init__(self, summary, directory):
        self.summary = summary
        self.tensors = tensors_of(directory, LAST_STEP)

    def check_equal(self, case, summary, directory):
        """Checks that another training has the same parameters and averages bit for bit, and the same losses."""
        tensors = tensors_of(directory, LAST_STEP)
        case.assertEqual(sorted(tensors), sorted(self.tensors))
        differ = [name for name, content in tensors.items() if content != self.tensors[name]]
        case.assertEqual(differ, [], "parameters or running averages")
        case.assertEqual(summary["last_step"], LAST_STEP)
        for mine, theirs in zip(summary["epochs"], self.summary["epochs"], strict=True):
            for key in ("epoch", "test_loss", "test_accuracy"):
                case.assertEqual(mine[key], theirs[key], key)
            # Each checkpoint adds a summation of this loss over the ranks.
            case.assertAlmostEqual(mine["train_loss"], theirs["train_loss"], delta=1e-12)


def load_json(path):
    with open(path) as f:
        return json.load(f)
