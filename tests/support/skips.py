# SPDX-License-Identifier: Apache-2.0
"""The exit status of a script that was skipped."""
import sys

SKIPPED = 77  # SKIP_RETURN_CODE in cmake/DdprunTargets.cmake


def skip_all(reason):
    """Ends the script: none of its tests can run here."""
    print(f"SKIPPED: {reason}", flush=True)
    sys.exit(SKIPPED)
