// SPDX-License-Identifier: Apache-2.0
// Charts of plot.js that follow a job, with all that they say as text beside them.

const from_template = (id) => by_id(id).content.firstElementChild.cloneNode(true);

// Values over the time since the first one. Those under the pointer are told in place of the last ones.
class LineChart {
  element = from_template("line_chart");
  svg = this.element.querySelector("svg");
  shown = null;    // what draw() was given
  width = 300;
  pointer = null;  // where it is on the x axis
  constructor(title) {
    put(this.part("title"), title);
    new ResizeObserver(([{ contentRect }]) => {
      this.width = contentRect.width || this.width;
      this.redraw();
    }).observe(this.svg);
    const point = (x) => {
      this.pointer = x;
      this.tell();
    };
    this.svg.addEventListener("pointermove", (event) => point(event.clientX - this.svg.getBoundingClientRect().left));
    this.svg.addEventListener("pointerleave", () => point(null));
  }
  part(name) { return this.element.querySelector(`.chart_${name}`); }

  // `lines`: one or two of { name, series }. `text`: of a value. `marks`: times of rounds that
  // began. `top`: the scale begins at 0, and ends there or above; else it fits the values. `now`: a
  // text in place of the last values.
  draw(shown) {
    this.shown = shown;
    this.redraw();
  }

  redraw() {
    if (this.shown === null) return;
    const { lines, text, marks = [], top } = this.shown;
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
    const seconds = (times) => times.map((time) => (time - begin) / 1000);
    const span = Math.max((end - begin) / 1000, 1);
    const paths = lines.map(({ series }, index) => ({ x: seconds(series.times), y: series.values, paint: index === 0 ? "blue" : "amber", dashed: index > 0 }));
    const drawing = line_plot({ width: this.width, height: 120, lines: paths, marks: seconds(marks), x_high: span, text,
      from_zero: top !== undefined, top: top === undefined ? undefined : Math.max(top, most) });
    put_drawing(this.svg, drawing);
    this.time_at = (x) => begin + 1000 * span * (x - drawing.left) / (drawing.right - drawing.left);
    this.tell();
    put(this.part("range"), text(least) === text(most) ? text(least) : `${text(least)} to ${text(most)}`);
    const has_marks = marks.some((mark) => mark >= begin && mark <= end);
    put(this.part("span"), (end > begin ? `over ${seconds_text((end - begin) / 1000)}` : "since now") + (has_marks ? "; red dashes: a round began" : ""));
  }

  tell() {
    const { lines, text, now } = this.shown, drawn = lines.filter((line) => line.series.values.length > 0);
    const sign = (line) => drawn.length < 2 ? "" : line === lines[0] ? "— " : "- - ";
    const time = this.pointer === null ? Infinity : this.time_at(this.pointer);
    const at = ({ times, values }) => values[Math.max(times.findLastIndex((each) => each <= time), 0)];
    const told = drawn.map((line) => `${sign(line)}${line.name ? line.name + " " : ""}${text(at(line.series))}`).join(", ");
    put(this.part("now"), this.pointer === null ? now ?? told : `${told} at ${time_text(new Date(time))}`);
  }
}

// One bar for each rank: its own part of a step.
class RankBars {
  element = from_template("bar_chart");
  part(name) { return this.element.querySelector(`.chart_${name}`); }

  // rows: [global rank, µs per step, of these its own]; slow: ranks that are stragglers. step: the
  // job's seconds per step, which is the same for all ranks.
  draw(rows, slow, step) {
    const sorted = [...rows].sort((a, b) => a[0] - b[0]);
    const own = sorted.map((row) => row[2] / 1e6);
    const most = Math.max(step, ...own, 1e-6);
    const bars = (heights) => heights.map((height, index) => rectangle(index, 100 - 96 * height / most, sorted.length > 150 ? 1 : 0.8, 96 * height / most)).join("");
    put_drawing(this.element.querySelector("svg"), { width: sorted.length, height: 100, shapes: [
      { name: "area", paint: "faint", d: bars(own.map(() => step)) }, { name: "area", paint: "blue-fill", d: bars(own) },
      { name: "line dashed", paint: "red", d: sorted.map((row, index) => slow.has(row[0]) ? path_of([[index + 0.4, 0], [index + 0.4, 100]]) : "").join("") }] });
    const worst = sorted.reduce((a, b) => b[2] > a[2] ? b : a);
    const middle = [...own].sort((a, b) => a - b)[own.length >> 1];
    put(this.part("now"), `${count_text(sorted.length, "rank")}: a step takes ${seconds_text(step)}; a rank's own part is ${seconds_text(middle)} ` +
      `in the middle, ${seconds_text(worst[2] / 1e6)} on rank ${worst[0]}. Lower part: its own; upper: it waits for others` +
      `${slow.size > 0 ? `. Dashed: ${count_text(slow.size, "straggler")}` : ""}`);
    put(this.part("range"), `0 to ${seconds_text(most)}`);
    put(this.part("span"), `rank ${sorted[0][0]} to ${sorted[sorted.length - 1][0]}`);
  }
}
