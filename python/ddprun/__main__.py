# SPDX-License-Identifier: Apache-2.0
"""python -m ddprun FLAGS PROGRAM …: the launcher, as `ddprun FLAGS PROGRAM …`."""
import os
import sys

from .program import path

if __name__ == "__main__":
    try:
        program = path()
    except FileNotFoundError as error:
        sys.exit("ddprun: %s" % error)
    os.execv(program, ["ddprun"] + sys.argv[1:])
