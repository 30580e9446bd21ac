// SPDX-License-Identifier: Apache-2.0
// The charts of the status page and of ddprunctl's reports: lines over time, bars of phases, a map of
// ranks. Each function returns a drawing, and put_drawing() shows it.
//   drawing: { width, height, shapes, labels }, from the upper left corner
//   shape: { name, paint, d }: a path, its classes in plot.css, and a colour of the page, as "blue-fill"
//   label: { x, y, text, anchor, paint }: y is its base line

const text_size = 11;  // as in plot.css
const phase_paints = ["grey-fill", "blue", "quiet", "green", "green-fill", "blue-fill", "amber-fill", "red", "red-fill", "amber"];
const num_heat_paints = 9;

// An update changes what differs. The whole is hidden from screen readers: texts beside it say it.
function put_drawing(svg, { width, height, shapes, labels = [] }) {
  put_attribute(svg, "viewBox", `0 0 ${width} ${height}`);
  const tagged = (tag, list) => list.map((each, index) => ({ ...each, tag, key: `${tag} ${index}` }));
  const create = ({ tag }) => document.createElementNS(svg.namespaceURI, tag);
  put_list(svg, [...tagged("path", shapes), ...tagged("text", labels)], (each) => each.key, create, (element, each) => {
    put_attribute(element, "color", `var(--${each.paint ?? "quiet"})`);
    if (each.tag === "path") {
      put_attribute(element, "class", each.name);
      put_attribute(element, "d", each.d);
      return;
    }
    put_attribute(element, "x", short(each.x));
    put_attribute(element, "y", short(each.y));
    put_attribute(element, "text-anchor", each.anchor ?? "start");
    put(element, each.text);
  });
}

let pen = null;  // made when a text is measured
function text_width(text) {
  pen ??= document.createElement("canvas").getContext("2d");
  pen.font = `${text_size}px system-ui, sans-serif`;
  return pen.measureText(text).width;
}

const short = (number) => String(Math.round(10 * number) / 10);  // a tenth of a pixel is enough
const path_of = (points) => points.length === 0 ? "" : "M" + points.map(([x, y]) => `${short(x)} ${short(y)}`).join("L");
const rectangle = (x, y, width, height) => `M${short(x)} ${short(y)}H${short(x + width)}V${short(y + height)}H${short(x)}Z`;

// The place of a value on an axis from `low` at `begin` to `high` at `end`. Values beyond it are at its ends.
const axis = (low, high, begin, end) => (value) =>
  begin + (end - begin) * Math.min(Math.max((value - low) / Math.max(high - low, 1e-9), 0), 1);

// Round values from at or below `low` to at or above `high` in about `wanted` steps: 1, 2 or 5 times a power of ten.
function nice_ticks(low, high, wanted) {
  if (!(high > low)) {
    const around = low === 0 ? 1 : Math.abs(low) / 2;
    [low, high] = [low === 0 ? 0 : low - around, high + around];
  }
  const raw = (high - low) / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= raw * (1 - 1e-9)) ?? 10);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  // Beyond what numbers can tell apart.
  if (!(Math.max(Math.abs(first), Math.abs(last)) < 1e12)) return [low, high];
  return Array.from({ length: last - first + 1 }, (_, number) => (first + number) * step);
}

// From 0. Round values of bytes are powers of two below each 1,024-fold.
function nice_byte_ticks(high, wanted) {
  high = Math.min(high, 1e30);
  let step = 1;
  while (high >= 1024 * step) step *= 1024;
  while (high / step > wanted) step *= 2;
  while (high / step < wanted / 2 && step > 1) step /= 2;
  const ticks = [0, step];
  while (ticks[ticks.length - 1] < high) ticks.push(ticks[ticks.length - 1] + step);
  return ticks;
}

// From 0 to at most `high`: the seconds, minutes, hours and days that people count in.
function time_ticks(high, wanted) {
  const minute = 60, hour = 3600, day = 86400;
  const steps = [1, 2, 5, 10, 15, 30, minute, 2 * minute, 5 * minute, 10 * minute, 15 * minute, 30 * minute,
    hour, 2 * hour, 3 * hour, 6 * hour, 12 * hour, day, 2 * day, 7 * day];
  let step = steps.find((each) => high / each <= wanted) ?? Math.ceil(high / wanted / day) * day;
  if (high < 1) step = nice_ticks(0, Math.max(high, 1e-3), wanted)[1];
  const ticks = [];
  for (let number = 0; number * step <= high * (1 + 1e-9); ++number) ticks.push(number * step);
  return ticks;
}

// A round value without the zeros behind its point: "1.5 GB/s" of "1.50 GB/s".
const tick_text = (value, text) => text(value).replace(/^(-?[\d,]*)\.(\d*?)0+(?=\D|$)/, (_, whole, part) => part ? `${whole}.${part}` : whole);

// Labels below an axis. At its ends they stay within it.
function x_labels(ticks, x, y, text) {
  const [left, right] = [x(-Infinity), x(Infinity)], near = 30;
  return ticks.map((tick) => ({ x: x(tick), y, text: text(tick),
    anchor: x(tick) < left + near ? "start" : x(tick) > right - near ? "end" : "middle" }));
}

// The known values of a line, as points that follow each other; null is a gap.
function runs_of(x, y) {
  const runs = [[]];
  y.forEach((value, at) => value === null ? runs.push([]) : runs[runs.length - 1].push([x[at], value]));
  return runs.filter((run) => run.length > 0);
}

// `lines`: [{ x, y, paint, dashed }], `bands`: [{ x, low, high, paint }], in units of the axes; x
// is seconds, or whole numbers. `marks`: places on the x axis where something began. `top`: the
// scale ends there, and values above are cut.
function line_plot({ width, height, lines, bands = [], marks = [], x_low = 0, x_high, x_is_time = true, text, is_bytes = false,
  from_zero = true, top }) {
  let low = from_zero ? 0 : Infinity, high = -Infinity;
  for (const values of [...lines.map((line) => line.y), ...bands.flatMap((band) => [band.low, band.high])]) {
    for (const value of values) {
      if (value === null) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (high === -Infinity) [low, high] = [0, 1];
  high = top ?? high;
  if (low === 0 && high === 0) high = 1;  // a line at the bottom, not in the middle
  const ticks = is_bytes && low >= 0 ? nice_byte_ticks(Math.max(high, 1), 4) : nice_ticks(low, high, 4);
  const tick_texts = ticks.map((tick) => tick_text(tick, text));
  const [left, right] = [8 + Math.max(...tick_texts.map(text_width)), width - 14], [upper, lower] = [10, height - 24];
  const x = axis(x_low, x_high, left, right), y = axis(ticks[0], ticks[ticks.length - 1], lower, upper);
  const place = (run) => run.map((point) => [x(point[0]), y(point[1])]);

  const labels = [];
  ticks.forEach((tick, at) => {
    // Less than a byte, say, has no text of its own.
    if (tick_texts[at] === tick_texts[at - 1]) return;
    labels.push({ x: left - 8, y: y(tick) + text_size / 3, text: tick_texts[at], anchor: "end" });
  });
  const along = x_is_time ? time_ticks(x_high, Math.floor((right - left) / 90))
    : nice_ticks(x_low, x_high, Math.floor((right - left) / 40)).filter((each) => each >= x_low && each <= x_high && Number.isInteger(each));
  labels.push(...x_labels(along, x, height - 8, x_is_time ? clock_text : number_text));

  const shapes = [{ name: "line thin grid", paint: "line", d: ticks.map((tick) => path_of([[left, y(tick)], [right, y(tick)]])).join("") }];
  for (const band of bands) {
    const above = runs_of(band.x, band.high), below = runs_of(band.x, band.low);
    shapes.push({ name: "area", paint: band.paint, d: above.map((run, at) => `${path_of(place([...run, ...below[at].reverse()]))}Z`).join("") });
  }
  shapes.push({ name: "line thin dashed", paint: "red",
    d: marks.filter((mark) => mark >= x_low && mark <= x_high).map((mark) => path_of([[x(mark), upper], [x(mark), lower]])).join("") });
  for (const line of lines) {
    const runs = runs_of(line.x, line.y).map(place);
    for (const run of runs) {
      if (run.length > 1) continue;
      // A value that stands alone is a short line; before a second one it is the whole.
      const [[at, level]] = run, half = x_high > x_low ? 2 : width;
      run.splice(0, 1, [Math.max(at - half, left), level], [Math.min(at + half, right), level]);
    }
    shapes.push({ name: line.dashed ? "line dashed" : "line", paint: line.paint, d: runs.map(path_of).join("") });
  }
  return { width, height, shapes, labels, left, right };
}

// bars: [{ name, parts, begin, text }], one below the other; parts: seconds of each phase. high:
// they stand along one axis of time that ends there. Without it each bar is as long as the others.
function phase_bars({ width, bars, high }) {
  const pitch = 24, bar_height = 16, bottom = 4 + pitch * bars.length;
  const left = 10 + Math.max(...bars.map((bar) => text_width(bar.name)));
  const right = width - Math.max(4, ...bars.map((bar) => bar.text ? 10 + text_width(bar.text) : 0));
  const shapes = phase_paints.map((paint) => ({ name: "area", paint, d: "" })), labels = [];
  bars.forEach((bar, row) => {
    const top = 4 + pitch * row, base = top + bar_height - 4;
    const x = axis(0, high ?? bar.parts.reduce((sum, part) => sum + part, 0), left, right);
    let begin = bar.begin ?? 0;
    bar.parts.forEach((seconds, phase) => {
      const from = x(begin), wide = x(begin += seconds) - from;
      if (seconds > 0) shapes[phase].d += rectangle(from, top, high ? Math.max(wide, 1.2) : wide, bar_height);
    });
    labels.push({ x: 0, y: base, text: bar.name, paint: "text" });
    if (bar.text) labels.push({ x: right + 10, y: base, text: bar.text });
  });
  if (!high) return { width, height: bottom + 4, shapes, labels };
  const x = axis(0, high, left, right), ticks = time_ticks(high, Math.floor((right - left) / 90));
  shapes.unshift({ name: "line thin grid", paint: "line", d: ticks.map((tick) => path_of([[x(tick), 0], [x(tick), bottom]])).join("") });
  labels.push(...x_labels(ticks, x, bottom + 17, clock_text));
  return { width, height: bottom + 22, shapes, labels };
}

// The range goes from what few values are below to what few are above. So a peak, as of the first
// steps, doesn't pale all others. It is so wide that what differs little looks alike.
function heat_scale(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  const part = (share) => sorted[Math.floor(share * (sorted.length - 1))] ?? 0;
  const low = part(0.02), high = Math.max(part(0.97), 1.5 * part(0.5));
  return { low, high: high > low ? high : low + Math.max(Math.abs(low), 1e-9) };
}

// lines: [{ name, values }], from top to bottom; a value lasts `step` seconds. The stronger the colour, the more.
function heat_map({ width, lines, step, x_high, text }) {
  const scale = heat_scale(lines.flatMap((line) => line.values));
  const level_of = (value) => value === null ? -1 :
    Math.floor(Math.min(Math.max((value - scale.low) / (scale.high - scale.low), 0) * num_heat_paints, num_heat_paints - 1));
  const left = 8 + Math.max(...lines.map((line) => text_width(line.name))), top = 4;
  const line_height = Math.min(12, 384 / lines.length), bottom = top + line_height * lines.length;
  const x = axis(0, x_high, left, width - 14);
  const shapes = Array.from({ length: num_heat_paints }, (_, level) => ({ name: "area crisp", paint: `heat-${level}`, d: "" })), labels = [];
  const lines_of_label = Math.max(1, Math.ceil(2 * text_size / line_height));
  lines.forEach(({ name, values }, number) => {
    const y = top + line_height * number, levels = values.map(level_of);
    // Neighbours of one colour are one rectangle.
    for (let begin = 0, end; begin < levels.length; begin = end) {
      for (end = begin + 1; levels[end] === levels[begin];) ++end;
      const from = x(begin * step);
      if (levels[begin] >= 0) shapes[levels[begin]].d += rectangle(from, y, x(end * step) - from, line_height);
    }
    if (number % lines_of_label === 0) labels.push({ x: left - 8, y: y + text_size - 2, text: name, anchor: "end" });
  });
  labels.push(...x_labels(time_ticks(x_high, Math.floor((width - 14 - left) / 90)), x, bottom + 16, clock_text));
  const y = bottom + 28, colour = 18, begin = left + text_width(text(scale.low)) + 6;
  labels.push({ x: left, y: y + 9, text: text(scale.low) }, { x: begin + num_heat_paints * colour + 6, y: y + 9, text: `${text(scale.high)} and more` });
  shapes.push(...shapes.map(({ paint }, level) => ({ name: "area crisp", paint, d: rectangle(begin + level * colour, y, colour, 10) })));
  return { width, height: bottom + 44, shapes, labels };
}
