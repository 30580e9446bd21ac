# SPDX-License-Identifier: Apache-2.0
"""Stops its job while it loads data, and goes on loading before it saves."""
import os
import signal

import torch
from torch.utils.data import DataLoader, TensorDataset

stopped = []


def main():
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    loader = DataLoader(TensorDataset(torch.arange(100_000)), batch_size=4, num_workers=2,
                        multiprocessing_context=os.environ["START_METHOD"])
    num_after = 0
    for num, _ in enumerate(loader):
        if num == 0:
            os.kill(os.getppid(), signal.SIGTERM)  # the parent is the launcher
        num_after += bool(stopped)
        if num_after == 1000:
            break
    print("saved", num_after, flush=True)


if __name__ == "__main__":
    main()
