#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an #include against the arrows of docs/architecture.md, and on a log or clock in a pure folder.
It names file and line.

    scripts/check_arrows.py [ROOT]     check the tree (default: this repository)
    scripts/check_arrows.py --self-test   plant one violation of each kind and expect it found
"""
import os
import re
import sys
import tempfile

# Folder → folders of this repository that its files may include, besides itself. The order is that of the arrows.
STORE = ["common", "rendezvous/store"]
MESSAGES = ["common", "rendezvous/messages"]
WIRE = MESSAGES + ["rendezvous/asio", "rendezvous/security", "rendezvous/http", "rendezvous/wire"]
RENDEZVOUS = STORE + WIRE + ["rendezvous/journal", "rendezvous/store_server", "rendezvous/membership"]
ALLOWED = {
    "common": [],
    "rendezvous/asio": [],
    "rendezvous/journal": ["common"],
    "rendezvous/store": ["common"],
    "rendezvous/store_server": STORE,
    "rendezvous/security": ["common"],
    "rendezvous/http": ["common", "rendezvous/security"],
    "rendezvous/messages": ["common"],
    "rendezvous/wire": WIRE,
    "rendezvous/membership": MESSAGES + ["rendezvous/journal"],
    "rendezvous/ha": RENDEZVOUS,
    "rendezvous/gangs": RENDEZVOUS,
    "rendezvous/pages": RENDEZVOUS + ["rendezvous/gangs"],
    "rendezvous/daemon": RENDEZVOUS + ["rendezvous/gangs", "rendezvous/ha"],
    "agent": STORE + WIRE + ["rendezvous/store_server", "agent/link", "agent/isolation"],
    "agent/link": WIRE,
    "agent/isolation": ["common", "agent/warden", "agent/output", "rendezvous/asio"],
    "agent/standing": STORE + WIRE + ["rendezvous/gangs", "rendezvous/daemon", "agent", "launcher"],
    "launcher": RENDEZVOUS + ["rendezvous/gangs", "rendezvous/pages", "rendezvous/daemon", "agent"],
    "ctl": RENDEZVOUS + ["rendezvous/gangs", "rendezvous/pages", "agent/gpu"],
    "worker_sdk/core": STORE,
    "worker_sdk/c": STORE + ["worker_sdk/core"],
    "worker_sdk/check": STORE + ["worker_sdk/core"],
    "worker_sdk/ddp": STORE + ["worker_sdk/core"],
    "worker_sdk/torch": STORE + ["worker_sdk/core", "worker_sdk/ddp", "worker_sdk/parallel"],
    "worker_sdk/torch/parallel": STORE + ["worker_sdk/core", "worker_sdk/ddp", "worker_sdk/parallel",
                                          "worker_sdk/torch"],
    "worker_sdk/parallel": STORE + ["worker_sdk/core", "worker_sdk/ddp"],
    "apps": STORE + ["worker_sdk"],
    "examples": [],  # they include <ddprun/core/session.h> and so on, as users' programs do
}

# (header pattern, folders that may include it, why the others may not).
EXTERNAL = [
    (r"boost/beast", ["rendezvous/asio", "rendezvous/http", "rendezvous/wire/frame_stream.cc"],
     "Beast takes long to compile: rendezvous/http and FrameStream are in front of it"),
    (r"boost/asio", ["rendezvous/asio", "rendezvous/store_server", "rendezvous/security",
                             "rendezvous/http", "rendezvous/wire", "rendezvous/ha", "rendezvous/gangs", "rendezvous/pages",
                             "rendezvous/daemon", "agent", "launcher", "ctl"],
     "the worker SDK, the store client and common/ use no Asio"),
    (r"boost/json(\.hpp|/(basic_)?parse|/stream_parser)", ["common/json.cc", "apps/train"],
     "JSON of others is parsed by common/json.h, which refuses objects that take long to build"),
    (r"openssl/", ["rendezvous/security"], "only rendezvous/security knows the cryptographic library"),
    (r"spdlog/", ["rendezvous/daemon", "launcher", "ctl"], "only the programs choose a log library"),
    (r"CLI/", ["rendezvous/daemon", "launcher", "ctl", "apps", "agent/standing"],
     "only a program's cli.cc knows flags"),
    (r"(torch|ATen|c10)/", ["worker_sdk/torch", "apps", "examples"], "only the torch adapter knows LibTorch"),
    (r"curses", ["ctl/top"], "only ddprunctl top draws with ncurses"),
    (r"(cuda|nccl)", ["worker_sdk/core/nccl", "worker_sdk/torch"],
     "CUDA and NCCL are reached through worker_sdk/core/nccl"),
    (r"(catch2/|gtest)", [], "product code knows no test framework"),
]
# Its callers pass the time, and log what it returns.
PURE = ["rendezvous/membership"]
IMPURE = re.compile(r"common/log\.h|\w*clock::now\(", re.I)
# Tests and benchmarks may include anything; the product may include nothing of theirs.
UNCHECKED = ["tests", "bench"]
HEAVY = re.compile(r"torch/(torch|all)\.h|torch/script\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def within(path, folders):
    return any(path == f or path.startswith(f + "/") for f in folders)


def folder_of(path):
    return max((f for f in ALLOWED if within(path, [f])), key=len, default=None)


def check_include(path, header, quoted):
    """Returns the reason why `path` may not include `header`, or None."""
    home = folder_of(path)
    ours = folder_of(header)
    if within(header, UNCHECKED):
        return "the product includes nothing of tests/ or bench/"
    if ours is not None:
        if ours == home or within(header, ALLOWED[home]):
            return None
        return f"{home} may include only {', '.join(ALLOWED[home]) or 'nothing of ours'}"
    for pattern, folders, why in EXTERNAL:
        if not re.match(pattern, header):
            continue
        if not within(path, folders):
            return why
        if HEAVY.match(header) and path.endswith(".h"):
            return "a header that costs every includer 15 s: forward-declare, or ATen/core/TensorBase.h"
        return None
    if quoted and "/" not in header:
        return "ours are included by their path from the top of the tree"
    return None


def sources(root):
    for top in sorted({f.split("/")[0] for f in ALLOWED}):
        for directory, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if name.endswith((".h", ".cc", ".cpp", ".cu", ".cuh", ".h.in")):
                    yield os.path.relpath(os.path.join(directory, name), root)


def check_tree(root):
    """Returns all violations as (file, line number, header, reason), and the number of files seen."""
    found, count = [], 0
    for path in sources(root):
        count += 1
        if folder_of(path) is None:
            found.append((path, 1, "-", "a folder that the arrows don't mention: add it to ALLOWED"))
            continue
        with open(os.path.join(root, path), encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                match = INCLUDE.match(line)
                reason = match and check_include(path, match[2], match[1] == '"')
                if reason:
                    found.append((path, number, match[2], reason))
                impure = within(path, PURE) and IMPURE.search(line)
                if impure:
                    found.append((path, number, impure[0], "its folder is pure: it has no log and no clock"))
    return found, count


def self_test():
    bad = [("common/a.h", "rendezvous/store/store.h"), ("rendezvous/store/a.cc", "boost/asio.hpp"),
           ("rendezvous/store/a.cc", "rendezvous/store_server/store_server.h"),
           ("worker_sdk/core/a.cc", "spdlog/spdlog.h"), ("worker_sdk/core/a.h", "boost/beast/core.hpp"),
           ("worker_sdk/core/host/a.cc", "worker_sdk/ddp/reducer.h"), ("agent/a.cc", "launcher/cli.h"),
           ("worker_sdk/ddp/a.cc", "torch/torch.h"), ("worker_sdk/torch/a.h", "torch/torch.h"),
           ("launcher/a.cc", "worker_sdk/core/env.h"), ("worker_sdk/ddp/a.cc", "nccl.h"),
           ("ctl/a.cc", "agent/node_agent.h"), ("agent/a.cc", "tests/support/catch.h"), ("agent/a.cc", "agent2.h"),
           ("ctl/doctor/a.cc", "curses.h"), ("rendezvous/a.cc", "common/error.h"), ("agent/a.cc", "boost/json/parse.hpp"),
           ("rendezvous/membership/a.cc", "common/log.h"), ("rendezvous/membership/a.cc", "Clock::now()"),
           ("rendezvous/membership/a.h", "std::chrono::system_clock::now()")]
    good = [("launcher/a.cc", "rendezvous/daemon/daemon.h"), ("agent/a.cc", "boost/asio.hpp"),
            ("worker_sdk/torch/a.cc", "torch/torch.h"), ("apps/train/a.cc", "worker_sdk/torch/ddp.h"),
            ("worker_sdk/core/nccl/a.cc", "nccl.h"), ("tests/a.cc", "launcher/cli.h"),
            ("ctl/doctor/a.cc", "agent/gpu/gpu_helper.h"), ("common/json.cc", "boost/json/basic_parser_impl.hpp"),
            ("rendezvous/store/a.cc", "common/error.h"), ("rendezvous/membership/a.cc", "common/log_level.h"),
            ("rendezvous/wire/a.cc", "Clock::now()")]
    for path, header in bad + good:
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.dirname(os.path.join(root, path)))
            with open(os.path.join(root, path), "w") as f:
                f.write("// c\n" + (f'#include "{header}"' if "(" not in header else header) + "\n")
            found = [(v[0], v[1]) for v in check_tree(root)[0]]
            expected = [] if (path, header) in good else [(path, 1 if path == "rendezvous/a.cc" else 2)]
            if found != expected:
                sys.exit(f"check_arrows: self-test: {path} has {header}: {found}, not {expected}")
    print(f"check_arrows: self-test passed: {len(bad)} planted violations found, {len(good)} allowed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..")
    found, count = check_tree(root)
    for path, number, header, reason in found:
        print(f"{path}:{number}: {header}: {reason}")
    print(f"check_arrows: {count} files, {len(found)} against the arrows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
