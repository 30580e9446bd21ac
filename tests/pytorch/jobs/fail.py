# SPDX-License-Identifier: Apache-2.0
"""Rank 1 ends with exit code 13 and last words while its peers wait for it."""
import sys

import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        print("the last words of rank 1", file=sys.stderr, flush=True)
        sys.exit(13)
    dist.barrier()


if __name__ == "__main__":
    main()
