#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests for gloo on gloo, and again with the backend "ddprun" in gloo's place.

    scripts/torch_suite.py [-k PATTERN]... [--file FILE] [--write TITLE] [--world-size N] [--limit SECONDS]

They are torch.testing._internal.distributed.distributed_test, which the wheel brings along: PyTorch's
test/distributed/test_distributed_spawn.py. Or another FILE of test/distributed in a clone of PyTorch, at the tag of the
PyTorch that is installed: test_c10d_gloo.py. Prints a row of a table for each group of cases, and the cases that differ.
--write keeps all cases in docs/internals/torch-suite.md.
Needs a release build, PyTorch with all its dependencies, and PyPI's expecttest, which it fetches. 5 minutes on an idle
machine. Output: build/torch_suite.json.
"""
import argparse
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
PACKAGES = os.path.join(ROOT, "build/torch_suite")
PAGE = os.path.join(ROOT, "docs/internals/torch-suite.md")


def put_ours_in_gloos_place():
    import torch
    import torch.distributed as dist
    sys.path.insert(0, os.path.join(ROOT, "python"))
    os.environ.setdefault("DDPRUN_PROGRAM", os.path.join(ROOT, "build/release/bin/ddprun"))
    import ddprun.torch
    backend_type = dist.ProcessGroup.BackendType.CUSTOM
    dist.Backend.backend_type_map["gloo"] = backend_type
    dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(ddprun.torch._make, False)
    options_type = dist.ProcessGroupGloo._Options

    def make_group(store, rank, size, options=None, timeout=None):
        """Replaces ProcessGroupGloo's constructor. The group has the calls that the tests use, with all their forms."""
        group = dist.ProcessGroup(store, rank, size)
        group._register_backend(torch.device("cpu"), backend_type,
                                ddprun.torch._make(store, rank, size, options._timeout if options else timeout))
        group._set_default_backend(backend_type)
        return group

    make_group._Options = options_type
    make_group.create_device = dist.ProcessGroupGloo.create_device
    dist.ProcessGroupGloo = make_group


def cases_of(replace, path):
    """Returns {name: (TestCase class, method)}. Processes are forked from this one, which has PyTorch imported."""
    sys.path.append(PACKAGES)
    import torch
    from torch.testing._internal import common_distributed
    torch.set_num_threads(1)
    if replace:
        put_ours_in_gloos_place()
    fork = torch.multiprocessing.get_context("fork").Process
    common_distributed.MultiProcessTestCase._spawn_processes = lambda case: case._start_processes(fork)
    if path:
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        module = __import__(os.path.splitext(os.path.basename(path))[0])
        classes = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, unittest.TestCase)
                   and each.__module__ == module.__name__]
        # Cases in this process come last, so that forked ones don't inherit what they leave behind.
        classes.sort(key=lambda each: not issubclass(each, common_distributed.MultiProcessTestCase))
    else:
        from torch.testing._internal.distributed import distributed_test
        if replace:  # the profiler shows c10d's events, but none of ours
            distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
            distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()

        class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
            def setUp(self):
                super().setUp()
                self._spawn_processes()

        classes = [Suite]
    return {("%s.%s" % (each.__name__, name) if path else name): (each, name) for each in classes
            for name in unittest.defaultTestLoader.getTestCaseNames(each)}


def run_one_side(cases, path):
    """Writes {case: [outcome, last line of its error, seconds]} to `path`, again after each case."""
    import torch.distributed as dist
    found = {}
    for name, (suite, method) in cases.items():
        if dist.is_initialized():  # a case in this process has left its group
            dist.destroy_process_group()
        result = unittest.TestResult()
        start = time.monotonic()
        suite(method).run(result)
        problem = [text for _, text in result.failures + result.errors]
        outcome = "fails" if problem else "skips" if result.skipped else "passes"
        errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Warning): .*", "\n".join(problem), re.M)
        found[name] = [outcome, errors[-1][:300] if errors else "", round(time.monotonic() - start, 1)]
        print("%-7s %5.1f s  %s  %s" % (*found[name][::2], name, found[name][1][:100]), flush=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(found, file)


def group_of(name):
    if "." in name:
        return name.split(".")[0]
    found = re.match(r"test_(all_gather|all_reduce|all_to_all|barrier|broadcast|ddp|DistributedDataParallel|gather|isend|"
                     r"monitored_barrier|new_subgroups|reduce_scatter|reduce|scatter|send_recv|sparse_all_reduce)", name)
    return found[1].replace("DistributedDataParallel", "ddp") if found else "others"


def print_table(ours, gloos):
    print("\n| cases | gloo passes | ddprun passes | of |\n|---|---|---|---|")
    ran = [name for name in gloos if gloos[name][0] != "skips"]
    for group in sorted({group_of(name) for name in ran}) + [""]:
        names = [name for name in ran if group in ("", group_of(name))]
        counts = [sum(side.get(name, [""])[0] == "passes" for name in names) for side in (gloos, ours)]
        print("| %s | %d | %d | %d |" % (group or "all", *counts, len(names)))
    for name in ran:
        if ours.get(name, [""])[0] != gloos[name][0]:
            print("%s: ddprun %s, gloo %s: %s" % (name, ours.get(name, ["?"])[0], gloos[name][0],
                                                  (ours.get(name, ["", ""])[1] or gloos[name][1])))


def write_cases(ours, gloos, name, title):
    """Replaces this file's part of the page, or adds it at the end."""
    lines = [f"<!--begin:{name}-->", f"## {title}", "", "| case | gloo | ddprun |", "|---|---|---|"]
    lines += [f"| `{case}` | {gloos[case][0]} | {ours.get(case, ['missing'])[0]} |"
              for case in gloos if gloos[case][0] != "skips"]
    part = "\n".join(lines + [f"<!--end:{name}-->", ""])
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    head, begin, rest = page.partition(lines[0])
    page = head + part + rest.partition(f"<!--end:{name}-->\n")[2] if begin else page + "\n" + part
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", dest="patterns", action="append", help="cases: a part of a name, or with * and ?")
    parser.add_argument("--file", help="of PyTorch's test/distributed")
    parser.add_argument("--write", metavar="TITLE", help="of this file's part of docs/internals/torch-suite.md")
    parser.add_argument("--world-size", default=3, type=int)
    parser.add_argument("--limit", default=60, type=int, help="seconds for one case")
    parser.add_argument("--side", choices=("ddprun", "gloo"), help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(BACKEND="gloo", WORLD_SIZE=str(options.world_size), TEMP_DIR=folder, OMP_NUM_THREADS="1",
                          DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(options.limit), MASTER_ADDR="127.0.0.1")
        if options.side:
            patterns = [each if set(each) & set("*?") else "*%s*" % each for each in options.patterns or ["*"]]
            cases = {name: case for name, case in cases_of(options.side == "ddprun", options.file).items()
                     if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
            return run_one_side(cases, options.path)
        if not os.path.exists(PACKAGES):
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", PACKAGES,
                            "expecttest==0.3.0"], check=True)
        sides = {}
        for side in ("ddprun", "gloo"):
            path = os.path.join(folder, side)
            print("-- " + side, flush=True)
            subprocess.run([sys.executable, "-B", __file__, *sys.argv[1:], "--side=" + side, "--path=" + path], check=True)
            with open(path, encoding="utf-8") as file:
                sides[side] = json.load(file)
        with open(os.path.join(ROOT, "build/torch_suite.json"), "w", encoding="utf-8") as file:
            json.dump(sides, file, indent=1)
        print_table(sides["ddprun"], sides["gloo"])
        if options.write:
            name = os.path.splitext(os.path.basename(options.file or "distributed_test"))[0]
            write_cases(sides["ddprun"], sides["gloo"], name, options.write)


if __name__ == "__main__":
    main()
