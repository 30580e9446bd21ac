# SPDX-License-Identifier: Apache-2.0
"""Finds text of a page in browser.py that is hard to read."""

# A script that returns the texts whose contrast to their background is less than 4.5 to 1.
FAINT = """(() => {
  const light = (color) => {
    const [r, g, b] = color.match(/[0-9.]+/g).map(Number).map((c) => (c /= 255, c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const has_text = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!has_text || element.closest(".cell, .unseen, option") || !element.checkVisibility()) continue;
    const a = light(getComputedStyle(element).color), b = light(behind(element));
    if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) faint.add(element.tagName + "." + element.className + ": " + element.textContent.slice(0, 40));
  }
  return [...faint];
})()"""
