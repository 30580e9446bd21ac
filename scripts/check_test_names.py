#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails if a Catch2 test has a semicolon in its name: CMake would make two names of it, and run neither.

    scripts/check_test_names.py               every test below tests/
    scripts/check_test_names.py --self-test   the check itself
"""
import pathlib
import re
import sys

CASE = re.compile(r'^(?:TEMPLATE_)?TEST_CASE(?:_METHOD)?\(\s*(?:\w[\w:<>]*,\s*)?((?:"(?:[^"\\]|\\.)*"\s*)+)', re.M)


def names_with_semicolon(text):
    for found in CASE.finditer(text):
        name = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found.group(1)))
        if ";" in name:
            yield text.count("\n", 0, found.start()) + 1, name


def self_test():
    bad = 'TEST_CASE("a; b") {\nTEST_CASE(\n    "c "\n    "d; e", "[x]") {\nTEST_CASE_METHOD(World, "f; g") {\n'
    good = 'TEST_CASE("a, b") {\n  f("c; d");\nTEST_CASE_METHOD(World,\n  "e") {\n  const char* t = "x;";\n'
    assert [line for line, _ in names_with_semicolon(bad)] == [1, 2, 5], list(names_with_semicolon(bad))
    assert not list(names_with_semicolon(good))
    print("check_test_names: self-test passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(__file__).resolve().parent.parent
    found = [(path, line, name) for path in sorted((root / "tests").rglob("*.cc"))
             for line, name in names_with_semicolon(path.read_text(encoding="utf-8"))]
    for path, line, name in found:
        print(f"{path.relative_to(root)}:{line}: a semicolon in the test's name: {name}")
    print(f"check_test_names: {len(found)} names that CMake would split")
    return sys.exit(1) if found else None


if __name__ == "__main__":
    main()
