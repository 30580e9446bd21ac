// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them, and elements. A text of a job stays text here, it never becomes markup.

const by_id = (id) => document.getElementById(id);

function make(tag, class_name, text) {
  const element = document.createElement(tag);
  if (class_name) element.className = class_name;
  if (text !== undefined) put(element, text);
  return element;
}

// Characters that are invisible, or hide or turn the text around them, are written out as common/log.h's
// one_line() does. Lines stay lines.
const hidden_characters = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const seen_text = (text) => String(text).replace(hidden_characters, (character) =>
  "\\u" + character.codePointAt(0).toString(16).padStart(4, "0"));

// An update costs what has changed: the rest isn't touched.
function put(element, text) {
  if (element.shown_text === text) return;
  element.shown_text = text;
  element.textContent = seen_text(text);
}
function put_class(element, name) {
  if (element.shown_class === name) return;
  element.shown_class = name;
  element.className = name;
}
function put_attribute(element, name, value) {
  const shown = element.shown_attributes ??= new Map();
  if (shown.get(name) === value) return;
  shown.set(name, value);
  element.setAttribute(name, value);
}
function show(element, is_shown) {
  if (element.hidden === is_shown) element.hidden = !is_shown;
}

// The children of `parent` become those of `items`, in their order: known by their keys, made by
// create(item), changed by update(element, item).
function put_list(parent, items, key_of, create, update) {
  const known = parent.known ??= new Map();
  const left = new Set(known.keys());
  let at = parent.firstChild;
  for (const item of items) {
    const key = key_of(item);
    let element = known.get(key);
    if (!element) known.set(key, element = create(item));
    left.delete(key);
    update(element, item);
    if (element === at) at = at.nextSibling;
    else parent.insertBefore(element, at);
  }
  for (const key of left) {
    known.get(key).remove();
    known.delete(key);
  }
}

// Pairs of a name and a text: <dt>, <dd>.
function put_facts(list, facts) {
  put_list(list, facts, (fact) => fact[0], (fact) => {
    const pair = make("div");
    pair.append(make("dt", "", fact[0]), make("dd"));
    return pair;
  }, (pair, fact) => put(pair.lastChild, fact[1]));
}

const whole = new Intl.NumberFormat("en");
const count_text = (number, one, many = one + "s") => `${whole.format(number)} ${number === 1 ? one : many}`;

// As ctl/number_texts.h has them, for the terminal and reports.

const scientific = (number) => number.toExponential(2).replace(/e([+-])(\d)$/, "e$10$2");  // two digits

function number_text(number) {
  if (!Number.isFinite(number)) return "–";
  const size = Math.abs(number);
  if (size >= 1e15) return scientific(number);
  if (size >= 999.5) return whole.format(Math.round(number));
  if (size >= 100 || Number.isInteger(number)) return number.toFixed(0);
  if (size >= 1) return number.toFixed(2);
  if (size >= 0.001) return number.toFixed(4);
  return scientific(number);
}

function scaled_text(number, step, units) {
  if (!Number.isFinite(number)) return "–";
  let unit = 0;
  while (Math.abs(number) >= step && unit + 1 < units.length) {
    number /= step;
    ++unit;
  }
  return `${number.toFixed(unit === 0 || Math.abs(number) >= 100 ? 0 : 1)} ${units[unit]}`;
}
const bytes_text = (bytes) => scaled_text(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
const rate_text = (bytes) => scaled_text(bytes, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);

// Nearly all is not all.
function percent_text(share) {
  if (!Number.isFinite(share)) return "–";
  const is_fine = (share > 0 && share < 0.0995) || (share > 0.99 && share < 1);
  return is_fine ? `${(100 * Math.min(share, 0.999)).toFixed(1)} %` : `${(100 * share).toFixed(0)} %`;
}

// In whole small units, so that none of them is as many as a large one.
function two_parts(seconds, small_unit, small_in_large, large_name, small_name) {
  const number = Math.round(seconds / small_unit);
  return `${Math.floor(number / small_in_large)} ${large_name} ${number % small_in_large} ${small_name}`;
}

function seconds_text(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "–";
  if (seconds === 0) return "0 s";
  if (seconds >= 1e15) return `${scientific(seconds)} s`;
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return two_parts(seconds, 1, 60, "min", "s");
  if (seconds < 172800) return two_parts(seconds, 60, 60, "h", "min");
  return two_parts(seconds, 3600, 24, "d", "h");
}

// Since a job began: "1:02:03".
function clock_text(seconds) {
  const whole_seconds = Math.floor(Math.max(seconds, 0) + 0.5);
  const two = (number) => String(number % 60).padStart(2, "0");
  const minutes = Math.floor(whole_seconds / 60), hours = Math.floor(minutes / 60);
  return hours >= 24 ? `${Math.floor(hours / 24)} d ${hours % 24}:${two(minutes)}` : `${hours}:${two(minutes)}:${two(whole_seconds)}`;
}

function time_text(date) {
  const two = (number) => String(number).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

// "a, b, c and 7 more"
function names_text(names, most = 4) {
  if (names.length <= most + 1) return names.join(", ");
  return `${names.slice(0, most).join(", ")} and ${whole.format(names.length - most)} more`;
}
