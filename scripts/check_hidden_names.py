#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails if a function in an anonymous namespace hides one of an outer namespace that a header declares.

Sources of a target may be compiled as one file (docs/architecture.md). Then every other source of the
target calls the hiding function, too. No compiler warns of it if the arguments fit both.

    scripts/check_hidden_names.py     exit status 1 and a line each; it tests itself first
"""
import collections
import glob
import os
import re
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
TOPS = ("common", "rendezvous", "agent", "launcher", "ctl", "worker_sdk", "apps", "examples")
BELOW = ("common", "rendezvous")  # every folder may use these
FUNCTION = re.compile(r"(?:[\w:<>,*&\s\[\]]*[\s&*>\]])?(\w+)\s*\(")


def functions(text):
    """Yields (namespaces, name) of each apparent function at namespace scope; "" is an anonymous namespace."""
    text = re.sub(r"""R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'|//[^\n]*|/\*.*?\*/|^\s*\#[^\n]*""",
                  lambda found: "0" if found[0][0] in "R\"'" else "", text, flags=re.S | re.M)
    text = re.sub(r"=\s*\{[^{}]*\}(?=\s*[,)])", "", text)  # default arguments
    spaces, begin = [], 0
    for found in re.finditer(r"[{};]", text):
        head = text[begin:found.start()].strip()
        begin = found.end()
        if found[0] == "}":
            del spaces[-1:]
            continue
        name = FUNCTION.match(head)
        if name and None not in spaces and not re.match(r"(using|typedef|static_assert|struct|class|enum)\b", head):
            yield tuple(spaces), name[1]
        if found[0] == "{":
            space = re.search(r"\bnamespace\s*([\w:]*)$", head)
            spaces.append(space[1] if space else None)


def hidden(files):
    """Yields the hiding functions. `files`: path → text."""
    declared = collections.defaultdict(set)
    for path, text in files.items():
        if path.endswith(".h"):
            for spaces, name in functions(text):
                declared[name].add(("::".join(spaces), path))
    for path, text in sorted(files.items()):
        for spaces, name in sorted(set(functions(text))):
            if path.endswith(".h") or "" not in spaces:
                continue
            inside = "::".join(filter(None, spaces))
            for outer, header in sorted(declared[name]):
                if inside.startswith(outer + "::") and header.startswith((*BELOW, path.split("/")[0])):
                    yield f"{path}: {name} in an anonymous namespace hides {outer}::{name} of {header}"


def self_test():
    header = {"common/a.h": "namespace ddprun {\nint f(const X& x = {}, int y = 0);\n}  // namespace ddprun\n"}
    source = "namespace ddprun::ctl {{\n{0} int {1}(int y) {{ return y; }}\n{2}}}\n"
    for spaces, name, bad in (("namespace {", "f", 1), ("namespace {", "g", 0), ("namespace b {", "f", 0)):
        found = list(hidden({**header, "ctl/b.cc": source.format(spaces, name, "}\n")}))
        assert len(found) == bad, (spaces, name, found)


def main():
    self_test()
    files = {}
    for path in (p for top in TOPS for end in ("h", "cc")
                 for p in glob.glob(f"{top}/**/*.{end}", root_dir=ROOT, recursive=True)):
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            files[path] = f.read()
    found = list(hidden(files))
    print(*found, f"check_hidden_names: {len(files)} files, {len(found)} hidden names", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
