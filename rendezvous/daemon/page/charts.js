// SPDX-License-Identifier: Apache-2.0
// Charts of plot.js that follow a job, with all that they say as text beside them.

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
    const low = top === undefined ? least : 0, high = Math.max(top ?? most, most);
    const paths = lines.map(({ series }, index) => ({ x: series.times, y: series.values, paint: index === 0 ? "blue" : "amber", dashed: index > 0 }));
    put_drawing(this.element.querySelector("svg"), line_plot({ width: 300, height: 80, lines: paths, marks, x_low: begin, x_high: end,
      from_zero: top !== undefined, top: high, bare: true }));
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
    const bars = (column) => sorted.map((row, index) => rectangle(index, 100 - 96 * row[column] / most, sorted.length > 150 ? 1 : 0.8, 96 * row[column] / most)).join("");
    put_drawing(this.element.querySelector("svg"), { width: sorted.length, height: 100, shapes: [
      { name: "area", paint: "faint", d: bars(1) }, { name: "area", paint: "blue-fill", d: bars(2) },
      { name: "line dashed", paint: "red", d: sorted.map((row, index) => slow.has(row[0]) ? path_of([[index + 0.4, 0], [index + 0.4, 100]]) : "").join("") }] });
    const worst = sorted.reduce((a, b) => b[1] > a[1] ? b : a);
    const by_time = sorted.map((row) => row[1]).sort((a, b) => a - b);
    put(this.part("now"), `${count_text(sorted.length, "rank")}: a step takes ${seconds_text(by_time[by_time.length >> 1] / 1e6)} ` +
      `in the middle, ${seconds_text(worst[1] / 1e6)} on rank ${worst[0]}. Lower part: a rank's own; upper: it waits for others` +
      `${slow.size > 0 ? `. Dashed: ${count_text(slow.size, "straggler")}` : ""}`);
    put(this.part("range"), `0 to ${seconds_text(most / 1e6)}`);
    put(this.part("span"), `rank ${sorted[0][0]} to ${sorted[sorted.length - 1][0]}`);
  }
}
