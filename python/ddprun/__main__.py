# SPDX-License-Identifier: Apache-2.0
"""python -m ddprun FLAGS PROGRAM …: as `ddprun FLAGS PROGRAM …`, with this Python for scripts."""
import os
import sys

from .program import environment, path

if __name__ == "__main__":
    try:
        program = path()
    except FileNotFoundError as error:
        sys.exit("ddprun: %s" % error)
    os.execve(program, ["ddprun"] + sys.argv[1:], environment())
