# SPDX-License-Identifier: Apache-2.0
"""Reads a chart as a browser has drawn it. Turns its paths and labels back into values."""
import json
import re
from collections import Counter

READ = """((svg) => ({
  labels: [...svg.querySelectorAll("text")].map((each) => ({ text: each.textContent, x: +each.getAttribute("x"),
    y: +each.getAttribute("y"), anchor: each.getAttribute("text-anchor") })),
  paths: [...svg.querySelectorAll("path")].map((each) => ({ name: each.getAttribute("class"), paint: each.getAttribute("color"),
    d: each.getAttribute("d") })),
}))(document.querySelector(%s))"""

# Returns texts that overlap or lie outside their chart, and paths with a coordinate that is no number.
FAULTS = """[...document.querySelectorAll("figure")].flatMap((figure) => {
  const svg = figure.querySelector("svg"), whole = svg.getBoundingClientRect(), faults = [];
  const texts = [...svg.querySelectorAll("text")].map((each) => [each.textContent, each.getBoundingClientRect()]);
  if (svg.querySelectorAll("path[d^=M]").length < 2) faults.push("draws nothing");
  for (const path of svg.querySelectorAll("path")) if (/[^MLHVZ0-9. -]/.test(path.getAttribute("d"))) faults.push("a path that is none");
  texts.forEach(([text, a], at) => {
    if (a.left < whole.left - 1 || a.right > whole.right + 1 || a.top < whole.top - 1 || a.bottom > whole.bottom + 1) faults.push(`${text} is outside`);
    for (const [other, b] of texts.slice(at + 1)) {
      if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom) faults.push(`${text} is over ${other}`);
    }
  });
  return faults.map((fault) => `${figure.id}: ${fault}`);
})"""

TABLE = """((table) => [[...table.querySelectorAll("thead th")].map((each) => each.textContent),
  ...[...table.querySelectorAll("tbody tr")].map((row) => [...row.children].map((each) => each.textContent))])(document.querySelector(%s))"""

UNITS = {"µs": 1e-6, "ms": 1e-3, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def number(text):
    """Returns the value of a text that ctl/number_texts.h makes; None: it has none."""
    if text == "–":
        return None
    if re.fullmatch(r"\d+:\d\d:\d\d", text):
        hours, minutes, seconds = map(int, text.split(":"))
        return 3600 * hours + 60 * minutes + seconds
    if minutes := re.fullmatch(r"(\d+) min (\d+) s", text):
        return 60.0 * int(minutes[1]) + int(minutes[2])
    value, unit = re.fullmatch(r"(-?[\d,.]+(?:e[+-]\d+)?) ?(\D*)", text).groups()
    return float(value.replace(",", "")) * UNITS.get(unit, 1)


def blur(text):
    """Returns half of the last digit of a number with a unit: its rounding error."""
    value, unit = re.match(r"-?([\d,.]+)(?:e[+-]\d+)? ?(\D*)$", text).groups()
    return 0.5 * 10.0 ** -len(value.partition(".")[2]) * UNITS.get(unit, 1)


class Axis:
    """Maps places on an axis to values, by the axis' labels. All labels must agree."""

    def __init__(self, labels, place):
        known = sorted((label[place], number(label["text"])) for label in labels)
        (self.begin, self.low), (self.end, self.high) = known[0], known[-1]
        assert len(known) > 2 and self.low != self.high, known
        for at, value in known:
            assert abs(self.value(at) - value) < 0.01 * abs(self.high - self.low), (at, value, known)

    def value(self, at):
        return self.low + (self.high - self.low) * (at - self.begin) / (self.end - self.begin)

    def place(self, value):
        return self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low)

    def most(self):
        return max(self.low, self.high)


class Drawn:
    def __init__(self, page, selector):
        found = page.value(READ % json.dumps(selector))
        self.labels, self.paths = found["labels"], found["paths"]

    def x_axis(self):
        lowest = max(label["y"] for label in self.labels if ":" in label["text"] or label["text"].isdigit())
        # These labels are centred on their place; the first one is at the axis' begin.
        along = [label for label in self.labels if label["y"] == lowest]
        return Axis(along, "x")

    def y_labels(self):
        left = Counter(label["x"] for label in self.labels if label["anchor"] == "end").most_common(1)[0][0]
        return [{**label, "y": label["y"] - 11 / 3} for label in self.labels if label["x"] == left and label["anchor"] == "end"]

    def lines(self):
        """Returns (paint, its points by place) of each line that shows values."""
        return [(path["paint"][len("var(--"):-1], [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path["d"])])
                for path in self.paths if path["name"] in ("line", "line dashed")]

    def rectangles(self):
        """Returns (paint, left, top, width, height) of each rectangle."""
        found = []
        for path in self.paths:
            for sides in re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H[\d.]+Z", path["d"]):
                left, top, right, bottom = map(float, sides)
                found.append((path["paint"][len("var(--"):-1], left, top, right - left, bottom - top))
        return found


def table(page, selector):
    return page.value(TABLE % json.dumps(selector))
