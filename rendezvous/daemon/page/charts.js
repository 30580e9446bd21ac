// SPDX-License-Identifier: Apache-2.0
// Charts: paths of SVG, with all that they say as text beside them.

const from_template = (id) => by_id(id).content.firstElementChild.cloneNode(true);

// Values over the time since the first one.
class LineChart {
  element = from_template("line_chart");
  constructor(title) { put(this.part("title"), title); }
  part(name) { return this.element.querySelector(`.chart_${name}`); }

  // lines: one or two of { name, series }; text: of a value; marks: times of rounds that began;
  // top: the scale ends there, and begins at 0; else where the values do; now: what is told in place
  // of the last values.
  draw({ lines, text, marks = [], top, now }) {
    const drawn = lines.filter((line) => line.series.values.length > 0);
    show(this.element, drawn.length > 0);
    if (drawn.length === 0) return;
    let begin = Infinity, end = -Infinity, least = Infinity, most = -Infinity;
    for (const { series } of drawn) {
      begin = Math.min(begin, series.times[0]);
      end = Math.max(end, series.times[series.times.length - 1]);
      for (const value of series.values) {
        if (value < least) least = value;
        if (value > most) most = value;
      }
    }
    const low = top === undefined ? least : 0;
    const high = Math.max(top ?? most, most);
    const x = (time) => (300 * (time - begin) / Math.max(end - begin, 1)).toFixed(1);
    const y = (value) => (high > low ? 76 - 72 * (value - low) / (high - low) : 40).toFixed(1);
    const paths = this.element.querySelectorAll(".line");
    paths.forEach((path, index) => {
      const series = lines[index]?.series;
      const points = series?.values.map((value, at) => `${x(series.times[at])} ${y(value)}`) ?? [];
      if (points.length === 1) points.push(`300 ${y(series.values[0])}`);
      put_attribute(path, "d", points.length > 0 ? "M" + points.join("L") : "");
    });
    put_attribute(this.element.querySelector(".marks"), "d", marks.filter((time) => time >= begin && time <= end)
      .map((time) => `M${x(time)} 0V80`).join(""));
    const sign = (line) => drawn.length < 2 ? "" : line === lines[0] ? "— " : "- - ";
    put(this.part("now"), now ?? drawn.map((line) => `${sign(line)}${line.name ? line.name + " " : ""}${text(line.series.last)}`).join(", "));
    put(this.part("range"), least === most ? text(least) : `${text(low)} to ${text(high)}`);
    put(this.part("span"), end > begin ? `over ${seconds_text((end - begin) / 1000)}` : "since now");
  }
}

// One bar for each rank: of its time, what was its own.
class RankBars {
  element = from_template("bar_chart");
  part(name) { return this.element.querySelector(`.chart_${name}`); }

  // rows: [global rank, µs per step, of these its own]; slow: ranks that are stragglers.
  draw(rows, slow) {
    const sorted = [...rows].sort((a, b) => a[0] - b[0]);
    const most = Math.max(...sorted.map((row) => row[1]), 1);
    const svg = this.element.querySelector("svg");
    put_attribute(svg, "viewBox", `0 0 ${sorted.length} 100`);
    const width = sorted.length > 150 ? 1 : 0.8;
    const bar = (index, value) => `M${index} 100V${(100 - 96 * value / most).toFixed(1)}h${width}V100z`;
    put_attribute(svg.querySelector(".all"), "d", sorted.map((row, index) => bar(index, row[1])).join(""));
    put_attribute(svg.querySelector(".own"), "d", sorted.map((row, index) => bar(index, row[2])).join(""));
    put_attribute(svg.querySelector(".slow"), "d",
      sorted.map((row, index) => slow.has(row[0]) ? `M${index + 0.4} 0V100` : "").join(""));
    const worst = sorted.reduce((a, b) => b[1] > a[1] ? b : a);
    const by_time = sorted.map((row) => row[1]).sort((a, b) => a - b);
    put(this.part("now"), `${count_text(sorted.length, "rank")}: a step takes ${seconds_text(by_time[by_time.length >> 1] / 1e6)} ` +
      `in the middle, ${seconds_text(worst[1] / 1e6)} on rank ${worst[0]}. Lower part: a rank's own; upper: it waits for others` +
      `${slow.size > 0 ? `. Dashed: ${count_text(slow.size, "straggler")}` : ""}`);
    put(this.part("range"), `0 to ${seconds_text(most / 1e6)}`);
    put(this.part("span"), `rank ${sorted[0][0]} to ${sorted[sorted.length - 1][0]}`);
  }
}
