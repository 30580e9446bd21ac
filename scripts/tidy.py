#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy (.clang-tidy: about ten checks, all errors) over the product's sources.

    scripts/tidy.py [--build DIR] [--seconds N] [FILE…]

Reads compile_commands.json of --build (default build/release). Files that git sees as changed
against the main branch come first, then the others, pure cores before Asio users; files that include
LibTorch are left out (a minute each). At --seconds (default 420) it stops and says how many are left.
"""
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
TOPS = ("common", "rendezvous", "agent", "launcher", "ctl", "worker_sdk", "examples")
HEAVY = ("worker_sdk/torch", "examples")


def changed_files():
    for base in ("origin/main", "main"):
        done = subprocess.run(["git", "diff", "--name-only", "--merge-base", base], cwd=ROOT,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if done.returncode == 0:
            return set(done.stdout.split())
    return set()


def cost(path):
    """Cheap first: Asio's headers cost clang-tidy ten times what the rest does."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        text = f.read()
    return ("boost/" in text, len(text))


def tidy(tool, build, path):
    # GCC-only flags in the compile commands are not errors; neither is a sanitizer clang lacks.
    done = subprocess.run([tool, "--quiet", "-p", build, "--extra-arg=-Wno-unknown-warning-option",
                           path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return path, done.returncode, done.stdout


def main():
    parser = argparse.ArgumentParser(description="clang-tidy over the product's sources.")
    parser.add_argument("--build", default=os.path.join(ROOT, "build/release"))
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    tool = shutil.which("clang-tidy-14") or shutil.which("clang-tidy")
    if not tool:
        sys.exit("tidy: clang-tidy is missing: scripts/setup.sh full")
    try:
        with open(os.path.join(args.build, "compile_commands.json")) as f:
            known = {os.path.relpath(c["file"], ROOT) for c in json.load(f)}
    except FileNotFoundError:
        sys.exit(f"tidy: no compile_commands.json in {args.build}: configure it first")
    files = args.files or [p for p in known if p.startswith(TOPS) and not p.startswith(HEAVY)]
    changed = changed_files()
    files.sort(key=lambda p: (p not in changed, cost(p)))

    end = time.monotonic() + args.seconds
    done, bad = 0, []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        def one(path):
            return tidy(tool, args.build, path) if time.monotonic() < end else None
        for result in pool.map(one, files):
            if result is None:
                continue
            done += 1
            if result[1] != 0:
                bad.append(result[0])
                print(result[2], flush=True)
    left = f", {len(files) - done} not reached in {args.seconds:.0f} s" if done < len(files) else ""
    print(f"tidy: {done} files, {len(bad)} with findings{left}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
