# SPDX-License-Identifier: Apache-2.0
"""Gives tests the shipped digits, or small sets of them."""
import gzip
import os
import struct
import tempfile

SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../data/digits")
BATCH = 8  # images in a step; two cores share the work


def read_idx(name):
    """Returns the header and the elements of one of the shipped files."""
    with gzip.open(os.path.join(SHIPPED, name)) as f:
        data = f.read()
    header = 4 + 4 * data[3]
    return data[:header], data[header:]


def write_some(directory, num_train, num_test=40):
    """Writes the first digits: `num_train` for training and `num_test` for the test."""
    for prefix, count in (("train", num_train), ("t10k", num_test)):
        header, pixels = read_idx(prefix + "-images-idx3-ubyte.gz")
        labels_header, labels = read_idx(prefix + "-labels-idx1-ubyte.gz")
        with open(os.path.join(directory, prefix + "-images-idx3-ubyte"), "wb") as f:
            f.write(header[:4] + struct.pack(">I", count) + header[8:] + pixels[:count * 784])
        with open(os.path.join(directory, prefix + "-labels-idx1-ubyte"), "wb") as f:
            f.write(labels_header[:4] + struct.pack(">I", count) + labels[:count])


def enough(num_steps):
    """Returns flags of train for tests that check the learning."""
    return few(num_steps, num_test=100, batch=16)


_kept = []


def few(num_steps, num_test=40, batch=BATCH):
    """Returns flags of train for `num_steps` steps an epoch. The digits' files exist as long as this program runs."""
    _kept.append(tempfile.TemporaryDirectory(prefix="ddprun-test-"))
    write_some(_kept[-1].name, batch * num_steps, num_test)
    return f"--data={_kept[-1].name}", f"--batch-size={batch}"
