# SPDX-License-Identifier: Apache-2.0
"""A test's own directory, and files in it."""
import os
import tempfile


def scratch(case):
    """Returns the path of a new directory, which is removed at the end of `case`, a unittest.TestCase."""
    made = tempfile.TemporaryDirectory(prefix="ddprun-test-")
    case.addCleanup(made.cleanup)
    return made.name


def scratch_of_class(cls):
    """Like scratch(), for all tests of a class. Called in its setUpClass()."""
    made = tempfile.TemporaryDirectory(prefix="ddprun-test-")
    cls.addClassCleanup(made.cleanup)
    return made.name


def write(folder, name, text, mode=0o644):
    """Writes the file folder/name, and makes the folders above it. Returns its path."""
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def below(folder):
    """Returns the paths of all files in `folder` and below, relative to it."""
    return {os.path.relpath(os.path.join(path, name), folder) for path, _, names in os.walk(folder) for name in names}
