# SPDX-License-Identifier: Apache-2.0
# Does the same as worker.py, under PyTorch's @record.
import sys

from torch.distributed.elastic.multiprocessing.errors import record

import worker


@record
def main():
    worker.main(sys.argv[1:])


main()
