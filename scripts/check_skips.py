#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails if ctest's last run skipped tests that must not be skipped on this machine.

    scripts/check_skips.py RESULTS LIST     ctest's --output-junit; tests/allowed_skips.txt is the list for CI's machine
    scripts/check_skips.py LIST             fails if what it allows in one build folder runs in no other
    scripts/check_skips.py --self-test      the check itself

A skip is the name of a ctest entry, or "entry: Class.test" for one test of a script. A line of the list
is "name # why", where a name may end with "*". "[release]" above lines holds them to results in the build
folder of that name, "[any]" to all. Fails with the name and the reason of each skip that isn't on the list.
"""
import pathlib
import re
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
SKIPPED = re.compile(r"^(?:\[[^]\n]*\]:? ?)?SKIPPED: (?:(\w+\.\w+): )?(.*)", re.M)


def skips(results):
    """Returns name → reason of each entry, or part of an entry, that was skipped."""
    found = {}
    for entry in ElementTree.parse(results).iter("testcase"):
        name, said = entry.get("name"), {}
        if entry.find("failure") is not None:
            continue
        for test, reason in SKIPPED.findall(entry.findtext("system-out") or ""):
            said[f"{name}: {test}" if test else name] = reason
        if entry.get("status") != "run" and not said:  # ctest skipped it
            said[name] = "no reason given"
        found.update(said)
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


def check(results, text):
    """Returns the skips that aren't allowed."""
    found, may = skips(results), allowed(text, pathlib.Path(results).resolve().parent.name)
    wrong = sorted(name for name in found.keys() - may
                   if not any(each.endswith("*") and name.startswith(each[:-1]) for each in may))
    for name in wrong:
        print(f"not allowed: {name}: {found[name]}")
    print(f"check_skips: {len(found)} skips, {len(wrong)} of them not allowed")
    return wrong


def run_nowhere(text, cmake):
    """Returns what may be skipped in build/asan though its test is LOGIC, which CI has nowhere else. `cmake`: all lists."""
    logic = {name for name, words in re.findall(r"ddprun_(?:script_)?test\(([\w.]+)([^)]*)\)", cmake) if "LOGIC" in words.split()}
    wrong = sorted(name for name in allowed(text, "asan") - allowed(text, "any") if name.split(":")[0] in logic)
    for name in wrong:
        print(f"runs nowhere: {name}: take LOGIC from its test")
    print(f"check_skips: {len(logic)} tests with LOGIC, {len(wrong)} skips of them allowed under AddressSanitizer")
    return wrong


CASE = '<testcase name="{}" status="{}">{}<system-out>{}</system-out></testcase>'


def self_test():
    with tempfile.TemporaryDirectory() as scratch:
        results = pathlib.Path(scratch, "asan/results.xml")
        results.parent.mkdir()
        tests = (("a:case, one", "notrun", "<skipped/>", "SKIPPED: no etcd"), ("b", "run", "", "x\nSKIPPED: C.t: no root\ny"),
                 ("c", "run", "", "fine"), ("d", "notrun", "<skipped/>", "[w]: SKIPPED: no GPU"),
                 ("e", "notrun", "<skipped/>", "silent"), ("f", "fail", "<failure/>", "SKIPPED: and fails"),
                 ("g", "disabled", "", ""))
        results.write_text("<testsuite>" + "".join(CASE.format(*test) for test in tests) + "</testsuite>")
        every = ["a:case, one", "b: C.t", "d", "e", "g"]
        assert check(results, "# none") == every
        assert check(results, "".join(f"{name} # why\n" for name in every)) == []
        assert run_nowhere("[any]\na # why\n[asan]\nb: C.t # why\nc:x # why\nd # why", "ddprun_test(a DEPS a LOGIC)\n"
                           "ddprun_script_test(b SCRIPT b.py\n  LOGIC)\nddprun_test(c LOGIC)\nddprun_test(d)") == ["b: C.t", "c:x"]
        assert check(results, "a:* # why\n[release]\nd # why\n[asan]\ne # why\ng # why") == ["b: C.t", "d"]
    print("check_skips: self-test passed")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    elif len(sys.argv) == 2:
        lists = [path.read_text() for path in ROOT.glob("tests/**/CMakeLists.txt")]
        sys.exit(1 if run_nowhere(pathlib.Path(sys.argv[1]).read_text(), "\n".join(lists)) else 0)
    else:
        sys.exit(1 if check(sys.argv[1], pathlib.Path(sys.argv[2]).read_text()) else 0)
