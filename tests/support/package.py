# SPDX-License-Identifier: Apache-2.0
"""Finds the Python package and `ddprun`: this build's, or those that are installed beside this Python."""
import os

_SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
_BIN = os.environ.get("DDPRUN_BIN_DIR")

# Variables for a process that imports ddprun. Empty without DDPRUN_BIN_DIR: a wheel is installed.
VARIABLES = {"PYTHONPATH": os.path.join(_SOURCE, "python"), "DDPRUN_PROGRAM": os.path.join(_BIN, "ddprun")} if _BIN else {}


def environment(**more):
    """This environment with them, without a user's configuration of ddprun."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("DDPRUN_")}
    return {**own, **VARIABLES, "PYTHONDONTWRITEBYTECODE": "1", **more}
