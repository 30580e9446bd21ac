# SPDX-License-Identifier: Apache-2.0
"""Rank 1 raises an exception under PyTorch's own @record."""
import os

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("a number that is not one")
    import time
    time.sleep(600)  # stopped by the launcher


if __name__ == "__main__":
    main()
