# SPDX-License-Identifier: Apache-2.0
"""The seed of a test that draws at random. seed.h does the same for C++."""
import functools
import os
import random
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _path():
    """Returns the file that keeps the script's seed; None: ctest, which names the folder, did not start the script."""
    folder = os.environ.get("DDPRUN_TEST_SEEDS")
    script = os.path.relpath(os.path.abspath(sys.argv[0]), TESTS)
    return folder and os.path.join(folder, script.replace(os.sep, "_"))


def _choose():
    given = os.environ.get("DDPRUN_TEST_SEED")
    if given:
        return int(given)
    path = _path()
    if path and os.path.exists(path):
        with open(path) as file:
            return int(file.read())
    chosen = random.SystemRandom().randrange(10**6)
    if path:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(f"{chosen}\n")
    return chosen


@functools.cache
def seed():
    """Prints and returns the seed of the script: $DDPRUN_TEST_SEED, else the one with which it failed last, else a new
    one. The seed is kept from this call on, so that a killed script gets it again, too."""
    chosen = _choose()
    print(f"DDPRUN_TEST_SEED={chosen}", file=sys.stderr, flush=True)
    return chosen


def forget():
    """Removes the kept seed. runner.main() calls it after a success."""
    if _path() and os.path.exists(_path()):
        os.unlink(_path())
