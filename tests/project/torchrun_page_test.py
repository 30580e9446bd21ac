#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests docs/torchrun.md: each difference has a reason, and a test, which exists under the name on the page."""
import os
import re
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


def read(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as f:
        return f.read()


def rows():
    """Returns (what, why, test) of each row of each table of differences."""
    found = []
    columns = []
    for line in read("docs", "torchrun.md").splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")]
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells
        elif "test" in columns and set(cells[0]) != {"-"}:
            found.append((cells[0], *(dict(zip(columns, cells)).get(of, "").strip() for of in
                                      (next(c for c in columns if c.startswith("why")), "test"))))
    return found


def sources():
    """Returns the text of each test by the names that a page may use for it: "hosts_test", "pytorch/restarts_test"."""
    texts = {}
    for folder, _, names in os.walk(os.path.join(SOURCE, "tests")):
        for name in names:
            stem, extension = os.path.splitext(name)
            if extension not in (".py", ".cc"):
                continue
            text = read(folder, name)
            path = os.path.relpath(os.path.join(folder, stem), os.path.join(SOURCE, "tests"))
            for each in {stem, path}:
                texts[each] = texts.get(each, "") + text
    texts["parity"] = texts["parity/cases"]
    return texts


class Page(unittest.TestCase):
    def test_each_difference_has_a_reason_and_a_test(self):
        self.assertGreater(len(rows()), 60)
        for what, why, test in rows():
            with self.subTest(what):
                self.assertTrue(why)
                self.assertTrue(test)

    def test_each_test_is_there(self):
        texts = sources()
        before = ""
        for what, _, test in rows():
            with self.subTest(what):
                for each in re.split(r"[,;] (?=[\w/]+_test\b)", test):
                    if each == "likewise":
                        continue
                    name, _, part = each.partition(": ")
                    before = before if name == "likewise" else name
                    self.assertTrue(before in texts, f"there is no {before}")
                    for wanted in re.findall(r'`(\w+)`|"([^"…]+)…?"', part) if part and part != "likewise" else []:
                        wanted = (wanted[0] or wanted[1]).strip()
                        self.assertTrue(wanted in texts[before], f"{before} has no {wanted}")


if __name__ == "__main__":
    unittest.main()
