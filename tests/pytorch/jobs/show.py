# SPDX-License-Identifier: Apache-2.0
"""Writes this worker's arguments, environment and session as JSON to DIR/RANK.json."""
import json
import os
import sys


def main():
    directory = os.environ["SHOW_DIRECTORY"]
    given = {"argv": sys.argv[1:], "environment": dict(os.environ), "name": __name__,
             "package": __package__, "unbuffered": sys.stdout.write_through or sys.flags.unbuffered,
             "own_session": os.getsid(0) == os.getpid(), "executable": sys.executable}
    path = os.path.join(directory, os.environ["RANK"] + ".json")
    with open(path + ".part", "w") as f:
        json.dump(given, f)
    os.rename(path + ".part", path)


if __name__ == "__main__":
    main()
