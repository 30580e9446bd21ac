#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tests that ctest's last run skipped are those that may be skipped on this machine.

    scripts/check_skips.py BUILD_DIR LIST   tests/allowed_skips.txt is the list for CI's machine
    scripts/check_skips.py --self-test      the check itself

A skip is the name of a ctest entry, or "entry: Class.test" for one test of a script. A line of the list
is "name # why", where a name may end with "*"; "[release]" above lines holds them to the build folder of
that name, "[any]" to all. Fails with the name and the reason of each skip that isn't on the list.
"""
import pathlib
import re
import sys
import tempfile

ENTRY = re.compile(r"^\d+/\d+ Test: (.*?)\nCommand: .*?\nOutput:\n-+\n(.*?)<end of output>\n.*?\nTest (\w+)", re.M | re.S)
SKIPPED = re.compile(r"^(?:\[[^]\n]*\]:? ?)?SKIPPED: (?:(\w+\.\w+): )?(.*)", re.M)


def skips(folder):
    """Name → reason, of what ctest last ran in that build folder."""
    logs = pathlib.Path(folder) / "Testing/Temporary"
    found = {}
    for entry, output, outcome in ENTRY.findall((logs / "LastTest.log").read_text(errors="replace")):
        if outcome == "Passed":  # ctest's word for a skipped one, too
            for test, reason in SKIPPED.findall(output):
                found[f"{entry}: {test}" if test else entry] = reason
    disabled = logs / "LastTestsDisabled.log"
    for line in disabled.read_text().splitlines() if disabled.exists() else []:
        entry = line.partition(":")[2]
        if entry and not any(name == entry or name.startswith(entry + ": ") for name in found):
            found[entry] = "no reason given"
    return found


def allowed(text, build):
    names, section = set(), "any"
    for line in filter(None, (line.strip() for line in text.splitlines())):
        if line.startswith("["):
            section = line.strip("[]")
        elif not line.startswith("#"):
            name, separator, why = line.rpartition(" # ")
            if not separator or not why:
                sys.exit(f"check_skips: a line without its reason: {line}")
            names |= {name.strip()} if section in ("any", build) else set()
    return names


def check(folder, text):
    """The names of the skips that aren't allowed."""
    found, may = skips(folder), allowed(text, pathlib.Path(folder).resolve().name)
    wrong = sorted(name for name in found.keys() - may
                   if not any(each.endswith("*") and name.startswith(each[:-1]) for each in may))
    for name in wrong:
        print(f"not allowed: {name}: {found[name]}")
    print(f"check_skips: {len(found)} skips, {len(wrong)} of them not allowed")
    return wrong


LOG = """Start testing: now
----------------------------------------------------------
{}End testing: now
"""
TEST = """1/9 Testing: {name}
1/9 Test: {name}
Command: "x" "SKIPPED: in a command"
Directory: /
Output:
----------------------------------------------------------
{said}
<end of output>
Test time = 0.01 sec
----------------------------------------------------------
Test {outcome}.
"""


def self_test():
    with tempfile.TemporaryDirectory() as scratch:
        logs = pathlib.Path(scratch, "asan/Testing/Temporary")
        logs.mkdir(parents=True)
        tests = ((("a:case, one", "SKIPPED: no etcd", "Passed"), ("b", "x\nSKIPPED: C.t: no root\ny", "Passed"),
                  ("c", "fine", "Passed"), ("d", "[w]: SKIPPED: no GPU", "Passed"), ("e", "silent", "Passed"),
                  ("f", "SKIPPED: and fails", "Failed")))
        (logs / "LastTest.log").write_text(LOG.format("".join(
            TEST.format(name=name, said=said, outcome=outcome) for name, said, outcome in tests)))
        (logs / "LastTestsDisabled.log").write_text("1:a:case, one\n4:d\n5:e\n\n")
        every = ["a:case, one", "b: C.t", "d", "e"]
        assert check(logs.parents[1], "# none") == every
        assert check(logs.parents[1], "".join(f"{name} # why\n" for name in every)) == []
        assert check(logs.parents[1], "a:* # why\n[release]\nd # why\n[asan]\ne # why") == ["b: C.t", "d"]
    print("check_skips: self-test passed")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        sys.exit(1 if check(sys.argv[1], pathlib.Path(sys.argv[2]).read_text()) else 0)
