#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that every file and heading that a page of documentation links to exists, and every test in tests/CLAIMS.md."""
import collections
import functools
import glob
import os
import re
import subprocess
import sys

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
TREE = re.compile(r"`((?:common|rendezvous|agent|apps|launcher|worker_sdk|examples|tests|bench|configs|docs"
                  r"|cmake|scripts)/[\w./-]*[\w/])`")


def pages():
    listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "*.md"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True).stdout.split()
    return listed or ["README.md", "CONTRIBUTING.md", "tests/CLAIMS.md"] + sorted(
        os.path.relpath(page, SOURCE) for page in glob.glob(f"{SOURCE}/docs/**/*.md", recursive=True))


@functools.lru_cache
def anchors(page):
    """Returns the anchors of the page's headings, as GitHub makes them."""
    with open(page, encoding="utf-8") as f:
        prose = re.sub(r"^```.*?^```", "", f.read(), flags=re.S | re.M)
    found = collections.Counter()
    for heading in re.findall(r"^#+ (.*)$", prose, re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[slug] += 1
        if found[slug] > 1:
            found[f"{slug}-{found[slug] - 1}"] += 1
    return set(found)


def missing(page):
    with open(os.path.join(SOURCE, page), encoding="utf-8") as f:
        text = f.read()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)  # without this a lambda would look like a link
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
        if "://" not in target and not os.path.exists(os.path.join(SOURCE, os.path.dirname(page), target)):
            yield f"{page}: the link to {target} leads nowhere"
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", prose):
        path = os.path.join(SOURCE, os.path.dirname(page), target) if target else os.path.join(SOURCE, page)
        if path.endswith(".md") and "://" not in target and os.path.exists(path) and anchor not in anchors(os.path.normpath(path)):
            yield f"{page}: {target or 'this page'} has no heading #{anchor}"
    for target in TREE.findall(text):
        if not os.path.exists(os.path.join(SOURCE, target)):
            yield f"{page}: there is no {target}"


def missing_tests():
    """Returns each `x_test` and `folder.x` in tests/CLAIMS.md that is neither a ctest entry nor a file below tests/."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(os.path.join(SOURCE, "tests")) for name in names]
    known = {os.path.splitext(os.path.basename(file))[0] for file in files}
    for file in files:
        if os.path.basename(file) == "CMakeLists.txt":
            with open(file, encoding="utf-8") as f:
                known.update(re.findall(r"[\w.]+", f.read()))
    with open(os.path.join(SOURCE, "tests/CLAIMS.md"), encoding="utf-8") as f:
        named = re.findall(r"`(\w+_test|(?!torch\.(?:autocast|optim)\b)[a-z]+\.(?!py|md|cc|h|toml|json|jsonl)[a-z_]+)[`: ]", f.read())
    return [f"tests/CLAIMS.md: there is no test {name}" for name in sorted(set(named) - known)]


def plain(text):
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def missing_cases():
    """Returns each quoted case in tests/CLAIMS.md that begins no test's name, or, after "…", is no part of one."""
    names = []
    for file in glob.glob(f"{SOURCE}/tests/**/*", recursive=True):
        if file.endswith((".cc", ".py", "CMakeLists.txt")):
            with open(file, encoding="utf-8") as f:
                text = f.read()
            for case in re.findall(r'\b(?:TEST_CASE(?:_METHOD\(\w+,|\()|SECTION\()\s*((?:"(?:\\.|[^"\\])*"\s*)+)', text):
                case = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', case))
                names += [plain(case), plain(case.split(": ", 1)[-1])]
            names += map(plain, re.findall(r"def test_(\w+)", text) + re.findall(r'add_test\(NAME "([^"]+)"', text))
    with open(os.path.join(SOURCE, "tests/CLAIMS.md"), encoding="utf-8") as f:
        quoted = [part for part in re.findall(r'"([^"\n]+)"', f.read()) if plain(part)]
    return [f'tests/CLAIMS.md: there is no case "{part}"' for part in quoted
            if not any(plain(part) in name if part.startswith("…") else name.startswith(plain(part)) for name in names)]


def main():
    problems = [problem for page in pages() for problem in missing(page)] + missing_tests() + missing_cases()
    print("\n".join(problems) or f"{len(pages())} pages, every link and path leads somewhere")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
