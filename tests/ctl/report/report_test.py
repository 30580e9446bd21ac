#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `ddprunctl report`: its page in a real Chromium, its charts, its figures, its exit codes.

With DDPRUN_SCREENSHOTS=DIRECTORY it leaves pictures there.
"""
import base64
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
import drawn  # noqa: E402
from make_record import Job  # noqa: E402

# As markup, this name would run a script.
NAME = "<img src=x onerror=alert(1)>"
# Returns a picture's width, and the numbers of its pixels that have the first line's colour, and white.
LOOK = """new Promise((resolve) => {
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
    [canvas.width, canvas.height] = [image.width, image.height];
    pen.drawImage(image, 0, 0);
    const bytes = pen.getImageData(0, 0, image.width, image.height).data, counts = {};
    for (let at = 0; at < bytes.length; at += 4) {
      const colour = `${bytes[at]},${bytes[at + 1]},${bytes[at + 2]}`;
      counts[colour] = (counts[colour] ?? 0) + 1;
    }
    resolve([image.width, counts["31,95,196"] ?? 0, counts["255,255,255"] ?? 0]);
  };
  image.src = "data:image/png;base64,%s";
})"""
# Expressions of common/web/plot.js, mostly about the marks of an axis, and their values.
TICKS = [
    ("nice_ticks(0, 10, 5)", [0, 2, 4, 6, 8, 10]), ("nice_ticks(0, 0.93, 4)", [0, 0.5, 1]), ("nice_ticks(0.52, 2.2, 4)", [0.5, 1, 1.5, 2, 2.5]),
    ("nice_ticks(-3, 3, 3)", [-4, -2, 0, 2, 4]), ("nice_ticks(5, 5, 4).map((each) => Math.sign(each - 5))", [-1, -1, 1, 1]),
    ("nice_ticks(0, 1e300, 4).length < 12", True), ("nice_ticks(0, Infinity, 4).length", 2), ("nice_ticks(1e200, 1e200 * (1 + 1e-15), 4).length", 2),
    ("nice_byte_ticks(Infinity, 4).length < 12", True), ("nice_byte_ticks(3 * 1024 * 1024, 4)", [0, 1048576, 2097152, 3145728]),
    ("nice_byte_ticks(0, 4).length > 1", True), ("time_ticks(600, 9)", [0, 120, 240, 360, 480, 600]),
    ("time_ticks(36000, 9)", [0, 7200, 14400, 21600, 28800, 36000]), ("time_ticks(0.5, 5).length > 2", True), ("time_ticks(400 * 86400, 9).length <= 10", True),
    ("tick_text(1.5e9, rate_text)", "1.5 GB/s"), ("tick_text(1.5, number_text)", "1.5"), ("tick_text(0.05, number_text)", "0.05"),
    ("tick_text(1000, number_text)", "1,000"), ("tick_text(10, number_text)", "10"), ("tick_text(2e20, number_text)", "2e+20"),
]
# Draws a plot of lines with these values, 300 wide and 100 high. The expression {of} checks the drawing.
PLOT = "(({{ shapes, labels }}) => {of})(line_plot({{ width: 300, height: 100, text: number_text, x_high: 2, lines: {lines}, {more} }}))"
D = "shapes[shapes.length - 1].d"


class Report(harness.Case):
    def setUp(self):
        self.place = self.scratch()

    def report(self, *args):
        return self.ddprunctl("report", *args, cwd=self.place)

    def made(self, *args):
        """Makes a report. Returns the page's path, which ddprunctl prints."""
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
        self.check_values(page, ["loss", "epoch_loss", "epoch_accuracy", "throughput", "step_time", "own_time", "network", "received", "sent",
                                 "retransmits", "cpu", "memory", "gpu_use", "gpu_memory", "gpu_power", "gpu_temperature"])
        self.assertEqual([label["text"] for label in drawn.Drawn(page, "#chart-memory svg").y_labels()], ["0 B", "32 GiB", "64 GiB", "96 GiB"])
        self.check_bars(page)
        self.check_signs(page, "own_time", ["series-0", "series-1"])
        self.assertEqual([page.value(each) for each, _ in TICKS], [value for _, value in TICKS])
        self.check_plots(page)
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
        self.check_signs(page, "own_time", ["series-0", "series-1", "faint"])
        self.check_heat(page)
        self.check_looks(page, "report_1000")

    @unittest.skipUnless(browser.PROGRAM, browser.MISSING)
    def test_the_page_without_its_script_has_all_but_the_drawings(self):
        page = self.open(self.made(self.run_of()), script=False)
        self.assertIn("Charts are drawn by the page's script, which is off here", page.text())
        self.assertIn("rank 1: 222 ms", page.text("#chart-own_time .legend"))
        self.assertGreater(len(drawn.table(page, "#chart-own_time table")), 20)

    def check_values(self, page, charts):
        """Checks that each line has the values of the chart's table, which the script doesn't make."""
        self.assertEqual(page.value(drawn.FAULTS), [])
        for chart in charts:
            shown = drawn.Drawn(page, f"#chart-{chart} svg")
            x, y = shown.x_axis(), drawn.Axis(shown.y_labels(), "y")
            paints, lines = zip(*shown.lines())
            self.assertEqual(paints, tuple(f"series-{number}" for number in range(len(lines))), chart)
            heads, *rows = drawn.table(page, f"#chart-{chart} table")
            self.assertGreaterEqual(len(heads), 1 + len(lines), chart)
            compared = 0
            for row in rows:
                place = x.place(drawn.number(row[0]) + (0.5 if heads[0] == "time" else 0))
                for cell, line in zip(row[1:], lines):
                    wanted, near = drawn.number(cell), [point for point in line if abs(point[0] - place) < 0.5]
                    self.assertEqual(len(near), 0 if wanted is None else 1, (chart, row, near))
                    if wanted is None:
                        continue
                    compared += 1
                    self.assertAlmostEqual(y.value(near[0][1]), min(wanted, y.most()), delta=0.006 * y.most() + drawn.blur(cell), msg=(chart, row))
            self.assertGreaterEqual(compared, 10, chart)

    def check_bars(self, page):
        paints = ["grey-fill", "blue", "quiet", "green", "green-fill", "blue-fill", "amber-fill", "red", "red-fill", "amber"]
        bars = drawn.Drawn(page, "#chart-time_spent svg").rectangles()
        _, *rows = drawn.table(page, "#chart-time_spent table")
        for number, row in enumerate(rows):
            seconds = [drawn.number(cell) for cell in row[1:]]
            parts = sorted((left, width, paint) for paint, left, top, width, _ in bars if top == 4 + 24 * number)
            for (left, width, _), (next_left, _, _) in zip(parts, parts[1:]):
                self.assertAlmostEqual(left + width, next_left, delta=0.15, msg="each part begins where the one before ends")
            mine, whole = {paint: width for _, width, paint in parts}, parts[-1][0] + parts[-1][1] - parts[0][0]
            self.assertGreater(whole, 600)
            for paint, part in zip(paints, seconds):
                self.assertAlmostEqual(mine.get(paint, 0) / whole, part / sum(seconds[:-1]), delta=0.004, msg=(row, paint))
        self.check_signs(page, "time_spent", paints)
        shown = drawn.Drawn(page, "#chart-rounds svg")
        x = shown.x_axis()
        for number, row in enumerate(drawn.table(page, "#chart-rounds table")[1:]):
            mine = [(left, left + width) for _, left, top, width, _ in shown.rectangles() if top == 4 + 24 * number]
            self.assertAlmostEqual(x.value(min(mine)[0]), drawn.number(row[1]), delta=0.7)
            self.assertAlmostEqual(x.value(max(mine)[1]), drawn.number(row[2]), delta=0.9)

    def check_heat(self, page):
        """Checks the heat map. Rank 666, slow from the middle on, is one dark line, with its text beside it."""
        shown = drawn.Drawn(page, "#chart-step_heat svg")
        x, scale_top = shown.x_axis(), max(label["y"] for label in shown.labels) - 9
        cells = [each for each in shown.rectangles() if each[2] < scale_top - 1]
        line = 666 // 8
        late = {paint: {round((top - 4) / (384 / 125)) for p, left, top, _, _ in cells if p == paint and x.value(left) > 50}
                for paint in {each[0] for each in cells}}
        slow = [paint for paint, lines in late.items() if lines == {line}]
        self.assertEqual(len(slow), 1, {paint: len(lines) for paint, lines in late.items()})
        self.assertGreater(int(slow[0].split("-")[1]), 4)
        ranks = [int(label["text"]) for label in shown.labels if label["anchor"] == "end" and label["text"].isdigit()]
        self.assertEqual((ranks, ranks[0]), (sorted(ranks), 0))
        self.assertEqual(page.value(drawn.FAULTS), [])

    def check_signs(self, page, chart, paints):
        """Checks that the signs of a legend have the same colours as the lines."""
        colours = page.value(f"[...document.querySelectorAll('#chart-{chart} .sign')].map((each) => getComputedStyle(each).color)")
        drawings = page.value(f"{json.dumps(paints)}.map((paint) => getComputedStyle(document.querySelector("
                              f"`#chart-{chart} svg path[color='var(--${{paint}})']`)).color)")
        self.assertEqual(colours, drawings)
        self.assertEqual(len(set(colours)), len(paints))

    def check_plots(self, page):
        """Checks that values lie between their axis' ends, a gap stays a gap, a single value is visible, and a chart
        has axes even without values."""
        plot = lambda of, lines, more="": page.value(PLOT.format(of=of, lines=lines, more=more))  # noqa: E731
        self.assertRegex(plot(D, "[{ x: [0, 1, 2], y: [0, null, 10] }]"), r"^M[\d.]+ 76L[\d.]+ 76M[\d.]+ 10L286 10$")
        self.assertRegex(plot(D, "[{ x: [0, 1, 2], y: [0, 5, 10] }]"), r"^M[\d.]+ 76L[\d.]+ 43L286 10$")
        self.assertRegex(plot(D, "[{ x: [0, 2], y: [1, 10] }]", "top: 1"), r"^M[\d.]+ 10L286 10$", "what is above the scale is cut")
        self.assertRegex(plot(D, "[{ x: [7], y: [3] }]", "from_zero: false, x_low: 7, x_high: 7"), r"^M[\d.]+ 43L286 43$")
        for lines, more in (("[]", ""), ("[{ x: [0, 2], y: [0, 0] }]", ""), ("[{ x: [0, 2], y: [3, 3] }]", "from_zero: false"),
                            ("[{ x: [0, 2], y: [null, null] }]", "is_bytes: true, text: bytes_text")):
            self.assertRegex(plot("shapes[0].d", lines, more), r"^(M[\d.]+ [\d.]+L[\d.]+ [\d.]+){2,7}$")
            self.assertGreater(plot("new Set(labels.map((each) => each.text)).size === labels.length ? labels.length : 0", lines, more), 3)
        self.assertIn("M", plot("shapes[1].d", "[]", "marks: [1]"))
        self.assertEqual(plot("shapes[1].d", "[]", "marks: [3]"), "", "a mark beyond the axis is not drawn")

    def open(self, path, script=True):
        chromium = browser.Browser()
        self.addCleanup(chromium.close)
        page = chromium.page()
        page.call("Emulation.setScriptExecutionDisabled", value=not script)
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
        page.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.assertEqual(page.value("getComputedStyle(document.querySelector('#chart-loss svg text')).color"), "rgb(88, 96, 110)", "paper is light")
        page.call("Emulation.setEmulatedMedia", media="", features=[])
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
        self.assertEqual([each for each in os.listdir(self.place) if ".part-" in each], [])
        with open(path, encoding="utf-8") as file:
            self.assertEqual(self.report(run, "-o", "-").stdout, file.read())

    def test_files_that_are_nothing_of_a_record_take_no_memory(self):
        run = self.run_of()
        for number in range(2_000):  # 128 MiB in all
            with open(os.path.join(run, f"{number}.json"), "wb") as file:
                file.truncate(64 << 10)
        report = subprocess.Popen([harness.DDPRUNCTL, "report", run, "--json"], env=harness.environment(),
                                  stdout=subprocess.DEVNULL)
        _, status, use = os.wait4(report.pid, 0)
        report.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(report.returncode, 0)
        if not os.environ.get("DDPRUN_SANITIZE"):
            self.assertLess(use.ru_maxrss, 64 << 10)  # in KiB

    def test_an_impossible_request_is_one_line_and_a_code(self):
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

    @unittest.skipUnless(browser.PROGRAM, browser.MISSING)
    def test_pictures_of_all_charts(self):
        run, folder, temporary = self.run_of(gpus=1, name=NAME), os.path.join(self.place, "pictures/of it"), self.scratch()
        done = self.ddprunctl("report", run, "--png-dir", "pictures/of it", "-o", "page.html", cwd=self.place, TMPDIR=temporary)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.text)
        self.assertEqual(os.listdir(temporary), [])
        with open(os.path.join(self.place, "page.html"), encoding="utf-8") as file:
            charts = sorted(part.split('"')[0] + ".png" for part in file.read().split('id="chart-')[1:])
        self.assertEqual(sorted(os.listdir(folder)), charts)
        page = self.open(os.path.join(self.place, "page.html"))
        for name in ("cpu", "network"):
            with open(os.path.join(folder, f"{name}.png"), "rb") as file:
                picture = base64.b64encode(file.read()).decode()
            width, blue, white = page.value(LOOK % picture)
            self.assertGreater(width, 850 if name == "cpu" else 1700, "two pixels for each of the page")
            self.assertGreater(blue, 300, "its first line is there")
            self.assertGreater(white, 100_000, "it is light")
        if "DDPRUN_SCREENSHOTS" in os.environ:
            shutil.copytree(folder, os.path.join(os.environ["DDPRUN_SCREENSHOTS"], "charts"), dirs_exist_ok=True)
        closed = os.path.join(self.place, "page.html", "x")
        self.check_one_line(self.report(run, "--png-dir", closed), "can't write", closed, code=74)

    def test_pictures_without_a_browser_or_by_one_that_fails_are_refused_in_one_line(self):
        programs, run, temporary = self.scratch(), self.run_of(), self.scratch()
        alone = lambda: self.ddprunctl("report", run, "--png-dir=x", cwd=self.place, PATH=programs, TMPDIR=temporary)  # noqa: E731
        self.check_one_line(alone(), "--png-dir: no Chromium here", "the page has all charts")
        for script, why in (("echo 'no display' >&2; exit 1", "no display"), ("echo '<html></html>'", "the browser drew nothing")):
            path = self.write(programs, "chromium", f"#!/bin/sh\n{script}\n")
            os.chmod(path, 0o700)
            self.check_one_line(alone(), "--png-dir: ", why)
        self.assertFalse(os.path.exists(os.path.join(self.place, "x")))
        self.assertEqual(os.listdir(temporary), [])


if __name__ == "__main__":
    harness.main()
