// SPDX-License-Identifier: Apache-2.0
// Draws the report's charts. Their values stand in the page, as ctl/report/charts.h and grid_chart.h make them.

const units = { number: number_text, percent: percent_text, seconds: seconds_text, bytes: bytes_text, rate: rate_text,
  watts: (value) => `${number_text(value)} W`, celsius: (value) => `${number_text(value)} °C` };
const num_series_paints = 8;

function drawing_of(chart, is_half) {
  const size = is_half ? { width: 438, height: 170 } : { width: 900, height: 230 };
  const plot = { ...chart, ...size, text: units[chart.unit] };
  if (chart.kind === "bars") return phase_bars(plot);
  if (chart.kind === "heat") return heat_map(plot);
  plot.lines = chart.lines.map((line, number) => ({ ...line, x: chart.x, paint: `series-${number % num_series_paints}` }));
  plot.bands = (chart.bands ?? []).map((band) => ({ ...band, x: chart.x, paint: "faint" }));
  return line_plot({ ...plot, is_bytes: chart.unit === "bytes" });
}

// The legend's texts are in the page; each gets the sign of what it names.
function add_signs(figure, chart) {
  const signs = chart.kind === "bars" ? chart.phases.map((phase) => ["area", phase_paints[phase]])
    : [...chart.lines.map((line, number) => [line.dashed ? "dashed" : "", `series-${number % num_series_paints}`]),
      ...(chart.bands ?? []).map(() => ["area", "faint"])];
  figure.querySelectorAll(".legend li").forEach((item, number) => {
    const sign = make("span", `sign ${signs[number][0]}`);
    sign.style.color = `var(--${signs[number][1]})`;
    item.prepend(sign);
  });
}

for (const [id, chart] of Object.entries(JSON.parse(by_id("charts").textContent))) {
  const figure = by_id(`chart-${id}`);
  put_drawing(figure.querySelector("svg"), drawing_of(chart, figure.classList.contains("half")));
  add_signs(figure, chart);
}

// A figure as the base64 of a PNG with two pixels for each of the page.
async function picture_of(figure) {
  const scale = 2, margin = 20, { width, height } = figure.getBoundingClientRect();
  const of_svg = (tag) => document.createElementNS(figure.querySelector("svg").namespaceURI, tag);
  const svg = of_svg("svg"), part = of_svg("foreignObject"), body = make("body", "picture");
  body.append(document.querySelector("style").cloneNode(true), figure.cloneNode(true));
  part.append(body);
  svg.append(part);
  for (const element of [svg, part]) {
    element.setAttribute("width", width + 2 * margin);
    element.setAttribute("height", height + 2 * margin);
  }
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(svg))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = scale * (width + 2 * margin);
  canvas.height = scale * (height + 2 * margin);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/png").split(",")[1];
}

// `ddprunctl report --png-dir` opens the page so, and reads a line for each chart: NAME, BASE64.
if (location.hash === "#pictures") {
  document.body.className = "picture";  // without the tables of data
  const figures = [...document.querySelectorAll("figure")];
  Promise.all(figures.map(picture_of)).then((pictures) => {
    const lines = make("pre");
    lines.id = "pictures";
    lines.textContent = pictures.map((picture, number) => `${figures[number].id.slice("chart-".length)} ${picture}\n`).join("");
    document.body.replaceChildren(lines);
  });
}
