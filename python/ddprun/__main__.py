# SPDX-License-Identifier: Apache-2.0
"""python -m ddprun FLAGS PROGRAM …: does the same as `ddprun FLAGS PROGRAM …`, and runs scripts by this Python."""
import os
import sys

from .program import environment, path

if __name__ == "__main__":
    try:
        program = path()
    except FileNotFoundError as error:
        sys.exit("ddprun: %s" % error)
    os.execve(program, ["ddprun"] + sys.argv[1:], environment())
