# SPDX-License-Identifier: Apache-2.0
"""Finds the program `ddprun` that belongs to this package."""
from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def environment() -> dict[str, str]:
    """Returns this process' environment, in which ddprun runs scripts by this Python, unless PYTHON_EXEC is set."""
    return {"PYTHON_EXEC": sys.executable, **os.environ}


def path() -> str:
    """Returns $DDPRUN_PROGRAM, else the program installed with this package, else the first one in PATH.

    Throws FileNotFoundError."""
    named = os.environ.get("DDPRUN_PROGRAM")
    if named:
        return named
    here = os.path.dirname(os.path.abspath(__file__))
    beside = [os.path.join(sysconfig.get_path("scripts"), "ddprun"),
              os.path.join(os.path.dirname(sys.executable), "ddprun"),
              os.path.join(os.path.dirname(here), "bin", "ddprun"),  # pip install --target
              os.path.join(here, "../../../../bin/ddprun")]  # share/ddprun/python/ddprun; --user, --prefix
    for candidate in beside:
        if os.access(candidate, os.X_OK):
            return os.path.normpath(candidate)
    found = shutil.which("ddprun")
    if found is None:
        raise FileNotFoundError("there is no program ddprun beside this Python, nor in PATH: pip install ddprun")
    return found
