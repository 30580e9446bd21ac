#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy (.clang-tidy: about ten checks, all errors) over the product's sources.

    scripts/tidy.py [--build DIR] [--all] [--alone] [SOURCE…]

Reads compile_commands.json of --build (default build/tidy), which has a command for each source. Checks
the sources that differ from the main branch or, on the main branch, from 20 commits ago. A changed header counts as
the source of the same name, else as one that includes it. --all checks every source, and so does a clone without the
commit before the change. The sources of a target are read as one file, because their headers take most of the time.
--alone reads each by itself, which shows a missing include. Sources of a target with LibTorch are always read as one,
because each takes a minute. A changed source that no target has is read like one beside it. A changed file that can't
be read fails.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
TOPS = ("common", "rendezvous", "agent", "launcher", "ctl", "worker_sdk", "apps", "examples")


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return done.stdout.split() if done.returncode == 0 else []


def changed_files():
    """Returns the files that differ from the commit before the change. None: this clone doesn't have that commit."""
    head = git("rev-parse", "HEAD")
    begin = git("merge-base", "origin/main", "HEAD") or git("merge-base", "main", "HEAD")
    if not begin or begin == head:
        begin = git("rev-list", "--first-parent", "--max-count=21", "HEAD")[-1:]
    if not begin or (begin == head and git("rev-parse", "--is-shallow-repository") == ["true"]):
        return None
    return set(git("diff", "--name-only", *begin) + git("ls-files", "--others", "--exclude-standard"))


def includers(ours):
    """Returns header → files that include it, for all that the sources read."""
    by, todo = collections.defaultdict(set), sorted(ours)
    for path in todo:  # it grows
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            for header in re.findall(r'^#include "(.+?)"', f.read(), re.M):
                if header not in by and os.path.exists(os.path.join(ROOT, header)):
                    todo.append(header)
                by[header].add(path)
    return by


def add_changed(changed, commands):
    """Adds the changed sources that no target has, each with the command of a source of its folder."""
    for path in sorted(changed):
        beside = min((each for each in commands if os.path.dirname(each) == os.path.dirname(path)), default=None)
        if beside and path not in commands and path.endswith(".cc") and os.path.exists(os.path.join(ROOT, path)):
            old, file = commands[beside]["file"], os.path.join(ROOT, path)
            commands[path] = {**commands[beside], "file": file, "command": commands[beside]["command"].replace(old, file)}


def source_of(header, ours, by):
    """Returns the source of the same name, else one that includes the header, or a header that does. None: none does."""
    namesake = re.sub(r"\.h$", ".cc", header)
    ring = seen = {namesake} if namesake in ours else {header}
    while ring and not ring & ours:
        ring = set().union(*(by[path] for path in ring)) - seen
        seen = seen | ring
    return min(ring & ours, key=lambda path: (os.path.dirname(path) != os.path.dirname(header), path), default=None)


def group_of(entry):
    """Returns (folder, target, flags). Sources with the same value are read as one file."""
    words = shlex.split(entry["command"])
    output = words.index("-o")
    flags = [*words[1:output], *(word for word in words[output + 2:] if word not in ("-c", entry["file"]))]
    return entry["directory"], words[output + 1].split(".dir/")[0], tuple(flags)


def tidy(tool, directory, flags, file):
    # Flags that only g++ has are not errors, and neither are sanitizers that clang lacks.
    done = subprocess.run([tool, "--quiet", f"--config-file={ROOT}/.clang-tidy", file, "--", *flags,
                           "-Wno-unknown-warning-option", "-Wno-ignored-optimization-argument"],
                          cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


def tidy_together(tool, directory, flags, file, sources):
    """Checks `file`, which includes the sources. If they can't be read as one, checks each by itself."""
    status, text = tidy(tool, directory, flags, file)
    if status == 0 or len(sources) == 1 or "[clang-diagnostic-error]" not in text:
        return status, text
    found = [tidy(tool, directory, flags, source) for source in sources]
    return max(status for status, _ in found), "".join(text for _, text in found)


def main():
    parser = argparse.ArgumentParser(description="clang-tidy over the product's sources.")
    parser.add_argument("--build", default=os.path.join(ROOT, "build/tidy"))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("sources", nargs="*")
    args = parser.parse_args()
    tool = shutil.which("clang-tidy-14") or shutil.which("clang-tidy")
    if not tool:
        sys.exit("tidy: clang-tidy is missing: scripts/setup.sh full")
    try:
        with open(os.path.join(args.build, "compile_commands.json")) as f:
            commands = {os.path.relpath(entry["file"], ROOT): entry for entry in json.load(f)}
    except FileNotFoundError:
        sys.exit(f"tidy: no compile_commands.json in {args.build}: configure it first")
    changed = set(args.sources) or (None if args.all else changed_files())
    add_changed(changed or (), commands)
    ours = {path for path in commands if path.startswith(TOPS)}
    wanted, unread = ours, []
    if changed is not None:
        by = includers(ours)
        read = {path: source_of(path, ours, by) if path.endswith(".h") else path for path in changed
                if path.startswith(TOPS) and path.endswith((".h", ".cc")) and os.path.exists(os.path.join(ROOT, path))}
        wanted = ours & set(read.values())
        unread = sorted(path for path in read if read[path] not in ours)
        for path in unread:
            print(f"tidy: not in this build: {path}")
    elif not args.all:
        print("tidy: this clone doesn't have the commit before the change, so all sources are read")

    groups = collections.defaultdict(list)
    for path in sorted(wanted):
        is_alone = args.alone and "/torch/include" not in commands[path]["command"]
        groups[group_of(commands[path]), path if is_alone else ""].append(os.path.join(ROOT, path))
    bad = 0
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = []
        for (group, _), files in sorted(groups.items(), key=lambda item: -len(item[1])):
            directory, _, flags = group
            file = files[0]
            if len(files) > 1:
                file = os.path.join(scratch, f"{len(runs)}.cc")
                with open(file, "w") as f:
                    f.writelines(f'#include "{path}"\n' for path in files)
            runs.append(pool.submit(tidy_together, tool, directory, flags, file, files))
        for run in runs:
            status, text = run.result()
            if status != 0:
                bad += 1
                print(text, flush=True)
    print(f"tidy: {len(wanted)} of {len(ours)} sources in {len(runs)} runs, {bad} with findings")
    return 1 if bad or unread else 0


if __name__ == "__main__":
    sys.exit(main())
