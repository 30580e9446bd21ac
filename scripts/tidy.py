#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy (.clang-tidy: about ten checks, all errors) over the product's sources.

    scripts/tidy.py [--build DIR] [--all] [SOURCE…]

Reads compile_commands.json of --build (default build/release), whose files may be unity files: then one
run reads all of a unity file's sources. Looks at the sources that differ from the main branch or, on the
main branch, from 20 commits ago; a header counts for the source of its name. --all looks at every source.
Sources that include LibTorch are left out: a minute each.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
TOPS = ("common", "rendezvous", "agent", "launcher", "ctl", "worker_sdk", "examples")
HEAVY = ("worker_sdk/torch", "examples")


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return done.stdout.split() if done.returncode == 0 else []


def changed_files():
    """The files that differ from where the change began, as sources."""
    head = git("rev-parse", "HEAD")
    begin = git("merge-base", "origin/main", "HEAD") or git("merge-base", "main", "HEAD")
    if not begin or begin == head:
        begin = (git("rev-list", "--first-parent", "--max-count=21", "HEAD") or ["HEAD"])[-1:]
    files = git("diff", "--name-only", *begin) + git("ls-files", "--others", "--exclude-standard")
    return {re.sub(r"\.h$", ".cc", path) for path in files}


def sources_of(path):
    """The product's sources in what one command compiles."""
    files = [path]
    if "/Unity/" in path:
        with open(path, encoding="utf-8") as f:
            files = re.findall(r'^#include "(.*)"', f.read(), re.M)
    files = {os.path.relpath(file, ROOT) for file in files}
    return {file for file in files if file.startswith(TOPS) and not file.startswith(HEAVY)}


def tidy(tool, build, path):
    # GCC-only flags in the compile commands are not errors; neither is a sanitizer clang lacks.
    done = subprocess.run([tool, "--quiet", "-p", build, "--extra-arg=-Wno-unknown-warning-option",
                           path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


def main():
    parser = argparse.ArgumentParser(description="clang-tidy over the product's sources.")
    parser.add_argument("--build", default=os.path.join(ROOT, "build/release"))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("sources", nargs="*")
    args = parser.parse_args()
    tool = shutil.which("clang-tidy-14") or shutil.which("clang-tidy")
    if not tool:
        sys.exit("tidy: clang-tidy is missing: scripts/setup.sh full")
    try:
        with open(os.path.join(args.build, "compile_commands.json")) as f:
            files = {c["file"]: sources_of(c["file"]) for c in json.load(f)}
    except FileNotFoundError:
        sys.exit(f"tidy: no compile_commands.json in {args.build}: configure it first")
    ours = set().union(*files.values())
    wanted = ours if args.all else ours & (set(args.sources) or changed_files())

    bad = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for status, text in pool.map(lambda path: tidy(tool, args.build, path),
                                     sorted(path for path in files if files[path] & wanted)):
            if status != 0:
                bad += 1
                print(text, flush=True)
    print(f"tidy: {len(wanted)} of {len(ours)} sources, {bad} runs with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
