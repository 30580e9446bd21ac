#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ddprunctl report`: its page in a real Chromium, its pictures, its figures, its exit codes.

With DDPRUN_SCREENSHOTS=DIRECTORY it leaves pictures there.
"""
import json
import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "launcher"))
import harness  # noqa: E402
import browser  # noqa: E402
import contrast  # noqa: E402
from make_record import Job  # noqa: E402

# A name that would do something if it were markup.
NAME = "<img src=x onerror=alert(1)>"
CAIRO = os.path.exists(os.path.join(harness.BIN, "ddprun-chart-png"))


class Report(harness.Case):
    def setUp(self):
        self.place = self.scratch()

    def report(self, *args):
        return self.ddprunctl("report", *args, cwd=self.place)

    def made(self, *args):
        """The page's path, as it is said."""
        done = self.report(*args)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.text)
        return os.path.join(self.place, done.stdout.rstrip("\n"))

    def run_of(self, **options):
        return Job(**options).write(os.path.join(self.place, "run"))

    @unittest.skipUnless(browser.PROGRAM, browser.MISSING)
    def test_the_page_of_two_ranks_in_a_browser(self):
        page = self.open(self.made(self.run_of(name=NAME, gpus=2)))
        self.assertEqual(page.text("#job bdi"), NAME)
        self.assertEqual(page.text(".badge"), "succeeded")
        self.assertIn("was killed by SIGKILL; restart 1 of 3", page.text("#rounds"))
        self.assertIn("rank 1", page.text("#chart-own_time .legend"))
        for chart in ("time_spent", "rounds", "loss", "epoch_accuracy", "throughput", "network", "cpu", "gpu_power"):
            self.assertEqual(page.value(f"document.querySelectorAll('#chart-{chart} svg').length > 0"), True, chart)
        self.check_looks(page, "report")
        seen = page.accessible()
        for wanted in (("heading", "Rounds"), ("figure", "Loss"), ("main", ""), ("columnheader", "why it ended")):
            self.assertIn(wanted, seen)
        tables = page.value("[...document.querySelectorAll('figure')].filter((each) => !each.querySelector('details table caption')).length")
        self.assertEqual(tables, 0, "each chart has its data as a table")

    @unittest.skipUnless(browser.PROGRAM, browser.MISSING)
    def test_the_page_of_1000_ranks_is_small_and_names_the_slow_one(self):
        path = self.made(self.run_of(nodes=20, ranks_per_node=50, seconds=120), "-o", "page.html")
        self.assertLess(os.path.getsize(path), 2_000_000)
        page = self.open(path)
        self.assertIn("rank 666, highest mean", page.text("#chart-own_time .legend"))
        self.assertIn("1,000 ranks from top to bottom", page.text("#chart-step_heat"))
        self.assertLess(page.value("document.querySelectorAll('svg *').length"), 2000)
        self.check_looks(page, "report_1000")

    def open(self, path):
        chromium = browser.Browser()
        self.addCleanup(chromium.close)
        page = chromium.page()
        page.open(f"file://{path}")
        self.assertEqual(page.requests[0], f"file://{path}")
        self.assertEqual([each for each in page.requests[1:] if not each.startswith("data:")], [])
        self.assertEqual(page.complaints, [])
        return page

    def check_looks(self, page, name):
        grounds = set()
        for dark in (False, True):
            page.theme(dark)
            grounds.add(page.value("getComputedStyle(document.body).backgroundColor"))
            self.assertEqual(page.value(contrast.FAINT), [], f"dark: {dark}")
            if "DDPRUN_SCREENSHOTS" in os.environ:
                page.screenshot(os.path.join(os.environ["DDPRUN_SCREENSHOTS"], f"{name}_{'dark' if dark else 'light'}.png"))
        self.assertEqual(len(grounds), 2)
        for width in (360, 1280):
            page.resize(width, 800)
            self.assertLessEqual(page.value("document.documentElement.scrollWidth"), width)

    def test_a_record_that_was_cut_gives_a_page_and_figures_of_what_there_is(self):
        run = self.run_of(nodes=3)
        os.remove(os.path.join(run, "events.node0.jsonl"))
        os.remove(os.path.join(run, "train.json"))
        path = os.path.join(run, "events.node2.jsonl")
        os.truncate(path, os.path.getsize(path) // 2)
        with open(os.path.join(run, "other.json"), "w", encoding="utf-8") as file:
            file.write("{}")
        facts = json.loads(self.report(run, "--json").stdout)
        self.assertEqual((facts["exit_code"], facts["is_ledger"], facts["rounds"], facts["epochs"]), (0, False, 2, None))
        self.assertEqual([source["unreadable"] for source in facts["sources"]], [0, 1])
        self.assertRegex(facts["sources"][1]["first_problem"], r"^line \d+: no JSON object")
        self.assertIn("no verdict of node2", " ".join(facts["missing"]))
        self.assertEqual(len(facts["passed_over"]), 1)
        with open(self.made(run), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("no verdict of node2", page)
        self.assertIn("What this record lacks", page)

    def test_the_file_is_replaced_in_one_step_and_stdout_is_one_too(self):
        run = self.run_of()
        path = self.made(run)
        self.assertEqual(os.path.basename(path), "report-nightly.html")
        before = os.stat(path).st_ino
        self.assertEqual(self.made(run), path)
        self.assertNotEqual(os.stat(path).st_ino, before)
        self.assertEqual([each for each in os.listdir(self.place) if each.endswith(".part")], [])
        with open(path, encoding="utf-8") as file:
            self.assertEqual(self.report(run, "-o", "-").stdout, file.read())

    def test_what_can_not_be_done_is_one_line_and_a_code(self):
        empty = self.scratch()
        self.check_one_line(self.report(empty), "no record of a job in", empty)
        self.check_one_line(self.report(os.path.join(empty, "gone")), "gone")
        run = self.run_of()
        self.check_one_line(self.report(run, "--job=other"), "no record of job other there, but of: nightly")
        self.check_one_line(self.report(run, "--json", "-o", "x"), "--json")
        self.check_one_line(self.report(run, "-o", os.path.join(empty, "no", "page.html")), "can't write", code=74)
        self.check_one_line(self.report(run, "-o", empty), "can't write", code=74)
        Job(name="second").write(os.path.join(self.place, "second"), summary=False)
        both = self.report(run, os.path.join(self.place, "second"))
        self.check_one_line(both, "records of several jobs: nightly, second; say which with --job ID")

    @unittest.skipUnless(CAIRO, "built without Cairo (libcairo2-dev)")
    def test_pictures_of_all_charts(self):
        run = self.run_of(gpus=1)
        self.made(run, "--png-dir", "pictures/of it")
        folder = os.path.join(self.place, "pictures/of it")
        pictures = sorted(os.listdir(folder))
        with open(os.path.join(self.place, "report-nightly.html"), encoding="utf-8") as file:
            charts = sorted(part.split('"')[0] + ".png" for part in file.read().split('id="chart-')[1:])
        self.assertEqual(pictures, charts)
        for name in pictures:
            with open(os.path.join(folder, name), "rb") as file:
                self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n", name)
        if "DDPRUN_SCREENSHOTS" in os.environ:
            shutil.copytree(folder, os.path.join(os.environ["DDPRUN_SCREENSHOTS"], "charts"), dirs_exist_ok=True)
        for damaged in ("area #000000 1 0,0", "picture ../x 9 9", "picture x 1e9 9", "picture x 9 9\nline #00000 1 solid 0,0", "sing"):
            done = subprocess.run([os.path.join(harness.BIN, "ddprun-chart-png"), folder], input=damaged, capture_output=True, text=True, timeout=30)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), (damaged, done.stderr))
        os.chmod(folder, 0o500)
        if os.access(folder, os.W_OK):
            return  # root writes anywhere
        self.check_one_line(self.report(run, "--png-dir", folder), "can't write", code=74)

    def test_pictures_where_there_is_no_cairo_are_refused(self):
        alone = os.path.join(self.place, "ddprunctl")
        shutil.copy(harness.DDPRUNCTL, alone)
        done = self.finish(self.start("report", self.run_of(), "--png-dir=x", program=alone, cwd=self.place))
        self.check_one_line(done, "--png-dir: this ddprun was built without Cairo")
        self.assertFalse(os.path.exists(os.path.join(self.place, "x")))


if __name__ == "__main__":
    harness.main()
