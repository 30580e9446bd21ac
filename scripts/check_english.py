#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documentation's sentences are short: none has more than 35 words, and a page's mean is 18 at most.

    scripts/check_english.py [PAGE…]      docs, README.md and CONTRIBUTING.md if none is given
    scripts/check_english.py --self-test  the check itself

Code blocks don't count, headings neither. `code` is one word, a link is its text, a table's cell is read as a paragraph.
"""
import glob
import os
import re
import sys

LONGEST, LONGEST_MEAN = 35, 18
FEWEST = 4  # words: what has fewer is a caption or a value
SENTENCE_END = re.compile(r"""(?<=[.!?])["”)*]*\s+(?=[A-Z"“„(*\[]|CODE)""")


def paragraphs(text):
    text = re.sub(r"^( *)```.*?^\1```$", "\n", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"`[^`\n]*`", "CODE", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    part = []
    for line in [*text.splitlines(), ""]:
        line = line.strip()
        begins = re.match(r"([-*]|\d+\.) ", line)
        if part and (not line or line[0] in "#|" or begins):
            yield " ".join(part)
            part = []
        if line.startswith("|"):
            yield from line.strip("|").split("|")
        elif line and not line.startswith("#"):
            part.append(line[begins.end():] if begins else line)


def sentences(text):
    """(number of words, sentence) of each."""
    for paragraph in paragraphs(text):
        for sentence in SENTENCE_END.split(paragraph):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) >= FEWEST:
                yield len(words), " ".join(words)


def problems(name, text):
    found = list(sentences(text))
    for length, sentence in found:
        if length > LONGEST:
            yield f"{name}: {length} words: {sentence[:100]}…"
    mean = sum(length for length, _ in found) / max(1, len(found))
    if mean > LONGEST_MEAN:
        yield f"{name}: {mean:.1f} words a sentence, the most is {LONGEST_MEAN}"


def self_test():
    short = "It has five short words. "
    assert [n for n, _ in sentences("# A title of many words here\n" + short + "`a b` is one (a. b) word. [It](x.md) ends. No.\n")] == [5, 6]
    assert [n for n, _ in sentences("| a cell of four | x |\n|---|---|\n```\nfour words of code\n```\n- one of two points\n- the other of them\n")] == [4, 4, 4]
    assert list(problems("p", short * 3)) == []
    assert len(list(problems("p", short * 40 + "word " * 36 + "."))) == 1
    assert len(list(problems("p", ("word " * 19 + "ends. ").replace("w", "W", 1)))) == 1
    print("check_english: self-test passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    pages = sys.argv[1:] or [*sorted(glob.glob(f"{root}/docs/**/*.md", recursive=True)), f"{root}/README.md", f"{root}/CONTRIBUTING.md"]
    wrong = 0
    for page in pages:
        with open(page, encoding="utf-8") as f:
            for problem in problems(os.path.relpath(page, root), f.read()):
                print(problem)
                wrong += 1
    print(f"check_english: {len(pages)} pages, {wrong} problems")
    return sys.exit(1) if wrong else None


if __name__ == "__main__":
    main()
