#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that `cmake --install` installs everything that a job needs. The installed ddprun runs a job."""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

BIN = os.environ["DDPRUN_BIN_DIR"]
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import runner  # noqa: E402
import skips  # noqa: E402
PRINTED = ("man/man1/ddprun.1", "man/man1/ddprunctl.1", "man/man8/ddprund.8", "man/man5/ddprun.toml.5",
           "bash-completion/completions/ddprun", "zsh/site-functions/_ddprun",
           "fish/vendor_completions.d/ddprun.fish", "bash-completion/completions/ddprunctl",
           "zsh/site-functions/_ddprun-agent", "fish/vendor_completions.d/ddprund.fish", "doc/ddprun/configs/job.toml")
SOURCE_OF_THE_SDK = ("../worker_sdk/", "../examples", "../apps/", "../cmake/")


def named_pages_are_there(prefix):
    """Returns whether each docs/NAME.md that a help text or a manual page names is at the place that they give."""
    place = os.path.join(prefix, "share/doc/ddprun")
    named = {"docs/launcher.md"}
    for words in (["ddprun", "--help"], ["ddprun", "--print-man=ddprun"], ["ddprund", "--help"], ["ddprun-agent", "--help"],
                  ["ddprunctl", "--help"], ["ddprunctl", "doctor", "--help"], ["ddprunctl", "--print-man"]):
        text = subprocess.run([os.path.join(prefix, "bin", words[0]), *words[1:]], capture_output=True, text=True, timeout=30,
                              check=True).stdout.replace("\\-", "-")
        if "share/doc/ddprun" not in text:
            print(words, "doesn't say where docs/ is")
            return False
        named.update(re.findall(r"docs/[a-z-]+\.md", text))
    missing = [name for name in sorted(named) if not os.path.exists(os.path.join(place, name))]
    print("missing:", missing)
    return len(named) > 10 and not missing


def links_lead_somewhere(place):
    """Returns whether each link of the user pages in `place` leads to a file there. The SDK's pages link its source, which
    only a clone has."""
    dead = []
    for page in sorted(glob.glob(os.path.join(place, "docs/*.md"))):
        with open(page, encoding="utf-8") as f:
            prose = re.sub(r"^```.*?^```", "", f.read(), flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
            if "://" not in target and not target.startswith(SOURCE_OF_THE_SDK):
                if not os.path.exists(os.path.join(place, "docs", target)):
                    dead.append(f"{os.path.basename(page)}: {target}")
    print("dead links:", dead)
    return not dead


def main():
    runner.unwind_on_sigterm()
    if not all(os.path.exists(os.path.join(BIN, name)) for name in ("ddprun", "ddprund")):
        skips.skip_all("only a part of the tree is built")
    manifest = os.path.join(os.path.dirname(BIN), "install_manifest.txt")
    if os.path.exists(manifest):  # an earlier `sudo cmake --install` leaves a file that belongs to root
        os.unlink(manifest)
    with tempfile.TemporaryDirectory() as prefix:
        subprocess.run(["cmake", "--install", os.path.dirname(BIN), "--prefix", prefix], check=True,
                       stdout=subprocess.DEVNULL, timeout=30)
        ddprun = os.path.join(prefix, "bin/ddprun")
        job = subprocess.run([ddprun, "--standalone", "--nproc_per_node=2", "sh", "-c", "echo worker"],
                             capture_output=True, text=True, timeout=30, cwd=prefix)
        print(job.stdout + job.stderr)
        ran = job.returncode == 0 and job.stdout.count("worker") == 2
        if os.path.isdir(os.path.join(os.path.dirname(BIN), "share")):  # builds with sanitizers have no such folder
            ran = ran and all(os.path.getsize(os.path.join(prefix, "share", name)) > 0 for name in PRINTED)
            ran = ran and named_pages_are_there(prefix)
        ran = ran and links_lead_somewhere(os.path.join(prefix, "share/doc/ddprun"))
        with open(os.path.join(prefix, "lib/systemd/system/ddprund.service"), encoding="utf-8") as unit:
            ran = ran and f"ExecStart={prefix}/bin/ddprund " in unit.read()
        with open(os.path.join(prefix, "share/ddprun/grafana/ddprun.json"), encoding="utf-8") as dashboard:
            ran = ran and json.load(dashboard)["title"] == "ddprun"
        alias = os.path.join(prefix, "libexec/ddprun/alias/torchrun")
        with open(os.path.join(prefix, "t.py"), "w", encoding="utf-8") as f:
            f.write("print('by python')")
        job = subprocess.run([alias, "--nproc_per_node=2", "t.py"], capture_output=True, text=True, timeout=30,
                             cwd=prefix)
        print(job.stdout + job.stderr)
        ran = ran and job.stdout.count("by python") == 2
        train = os.path.join(prefix, "bin/train")  # it must find LibTorch, if there is one
        if os.path.exists(train):
            subprocess.run([train, "--help"], check=True, stdout=subprocess.DEVNULL, timeout=30)
        check = os.path.join(prefix, "libexec/ddprun/ddprun-check")
        job = subprocess.run([ddprun, "--standalone", "--nproc_per_node=1", check, "4096", "1"], capture_output=True, text=True,
                             timeout=30, cwd=prefix, env={**os.environ, "DDPRUN_TEST_GPU": "shared"})
        print(job.stdout + job.stderr)
        ran = ran and "DDPRUN_TEST_GPU is set, and an installed program has no switches" in job.stdout
        module = subprocess.run([sys.executable, "-B", "-c", "import ddprun; ddprun.step(1)"], timeout=30,
                                env={"PYTHONPATH": os.path.join(prefix, "share/ddprun/python")})
        return 0 if ran and module.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
