#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that sentences of pages and comments are short, and that comments, messages and tests' names begin with
their subjects.

    scripts/check_english.py [FILE…]      pages and sources; all of the tree if none is given
    scripts/check_english.py --self-test  the check itself

No sentence has more than 35 words. A page's mean is 18 at most. No comment's sentence and no test's name opens with one
of OPENERS. Sentences of pages may.
Code blocks don't count, headings neither. `code` is one word, a link is its text, a table's cell is read as a paragraph.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
LONGEST, LONGEST_MEAN = 35, 18
FEWEST = 4  # words; a shorter sentence is a caption or a value
OPENERS = "Of|What|Who|Whose|Where|Likewise"
RIDDLES = re.compile(rf"({OPENERS})\b")
# TEST_CASE("Subject: of …"), TEST_CASE_METHOD(Fixture, "Subject: of …"), SECTION("of …"), def test_of_…
TEST_NAME = re.compile(r"""^[ \t]*(?:def test_|(?:TEST_CASE|SECTION)\w*\(\s*(?:[\w:<>]+,\s*)?"(?:[^":]*: (?:"\s*")?)?)"""
                       rf"(?P<name>(?:{OPENERS})(?![a-z])[^\"(\n]*)", re.M | re.I)
SENTENCE_END = re.compile(r"""(?<=[.!?])["”)*]*\s+(?=[A-Z"“„(*\[]|CODE)""")
# A literal of the product. "What" and "Where" begin a help text as they begin a title.
MESSAGE = re.compile(r'"(.*[.:;] )?(Of|Who|Whose|Likewise) ')
PAGES = ("docs/*.md", "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "tests/CLAIMS.md")
C_SOURCES, OTHER_SOURCES = (".cc", ".h", ".cu", ".js"), (".py", ".cmake", ".sh", "CMakeLists.txt")
# Matches strings, too, so that nothing inside them is taken for a comment.
C_COMMENT = re.compile(r"""R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|`[^`]*`|(?<!\w)'(?:\\.|[^'\\\n])+'|"""
                       r"//(?P<line>[^\n]*)|/\*(?P<text>.*?)\*/", re.S)
COMMENT = re.compile(r'''^[ \t]*"""(?P<text>.*?)"""|""".*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|'''
                     r"(?<!\S)#(?P<line>[^\n]*)", re.S | re.M)
ROW = re.compile(r"^( {3,}.*|.*\S {2,}\S.*)$", re.M)  # a row of a table in a comment


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
    """Yields the words of each sentence."""
    for paragraph in paragraphs(text):
        for sentence in SENTENCE_END.split(paragraph):
            yield [word for word in sentence.split() if re.search(r"\w", word)]


def comments(name, text):
    """Yields (line, text) of each comment. Lines that follow one another in one column are one comment."""
    begun_at, column, last, lines = 0, 0, 0, []
    for found in (C_COMMENT if name.endswith(C_SOURCES) else COMMENT).finditer(text):
        kind = "text" if found["line"] is None else "line"
        if found[kind] is None:
            continue
        begin = found.start(kind)
        here = begin - text.rfind("\n", 0, begin)
        if kind == "text" or here != column or not re.fullmatch(r"\n[ \t]*(//|#)", text[last:begin]):
            if lines:
                yield begun_at, "\n".join(lines)
            begun_at, lines = text.count("\n", 0, begin) + 1, []
        column, last = here if kind == "line" else 0, found.end(kind)
        if not re.match(r"!/| SPDX-", found[kind]):
            lines.append(ROW.sub(r"\n\g<0>\n", found[kind].replace("\n" + " " * (here - 4), "\n ")))
    if lines:
        yield begun_at, "\n".join(lines)


def problems(name, text):
    is_page, lengths = name.endswith(".md"), []
    for line, part in [(1, text)] if is_page else comments(name, text):
        for words in sentences(part):
            lengths += [len(words)] if len(words) >= FEWEST else []
            sentence = " ".join(words)[:100]
            if len(words) > LONGEST:
                yield f"{name}:{line}: {len(words)} words: {sentence}…"
            if not is_page and RIDDLES.match(sentence):
                yield f"{name}:{line}: begin with the subject: {sentence}"
    for found in [] if is_page else TEST_NAME.finditer(text):
        line = text.count("\n", 0, found.start("name")) + 1
        yield f"{name}:{line}: begin a test's name with its subject: {found['name']}"
    for found in C_COMMENT.finditer(text) if name.endswith(C_SOURCES) and not name.startswith("tests/") else []:
        if MESSAGE.match(found[0]):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{name}:{line}: begin a message with its subject: {found[0]}"
    mean = sum(lengths) / max(1, len(lengths))
    if is_page and mean > LONGEST_MEAN:
        yield f"{name}: {mean:.1f} words a sentence, the most is {LONGEST_MEAN}"


def self_test():
    def lengths(text):
        return [len(words) for words in sentences(text)]

    short, long = "It has five short words. ", "Word " + "word " * 35 + "ends. "
    assert lengths(f"# A title of many words here\n{short}`a b` is one (a. b) word. [It](x.md) ends. No.\n") == [5, 6, 2, 1]
    assert lengths("| a cell of four | x |\n|---|---|\n```\nfour words of code\n```\n- one of two points\n- the other\n") == [4, 1, 0, 0, 4, 2]
    for name, text, wrong in (
            ("p.md", short * 3 + "What is this? ", []),
            ("p.md", short * 40 + long, ["37 words"]),
            ("p.md", "Word " + "word " * 18 + "ends. ", ["20.0 words"]),
            ("a.h", f"// {short}\nint what;  // What\n\n// it was. Whoever.", [":2: begin"]),
            ("a.cc", f'auto a = "// Of";  /* {long} */\n// This ends.\n// Where, then?\n', [":1: 37", ":2: begin"]),
            ("a.js", f"const a = `// Of`;\n// {long[:90]}\n// {long[90:]}", [":2: 37"]),
            ("a.py", f'"""It ends. Who\n   ends?"""\na = "#"  # Likewise\n# {long}', [":1: begin", ":3: begin", ":4: 37"]),
            ("a.cmake", f"# a  {long[90:]}\n#    {long[90:]}\n#      {long[90:]}\n", []),
            ("a.cc", 'f("Of these, one.");\nf("It is on. Likewise " g);\nf("Off or on: of it", "What");  // "Who is it?"\n',
             [":1: begin a message", ":2: begin a message"]),
            ("a_test.cc", 'TEST_CASE("A: it is what") {\n  SECTION("of it") {}\nTEST_CASE_METHOD(\n    B, "A: What is") {\n',
             [":2: begin a test", ":4: begin a test"]),
            ("a_test.cc", 'TEST_CASE("A: whatever is") {\n  f("of it");\nTEST_CASE(\n    "A: "\n    "who is") {\n', [":5: begin a test"]),
            ("a_test.py", "    def test_whole(self):\n        pass\n    def test_who_is(self):\n", [":3: begin a test"]),
            ("a.sh", "#!/bin/sh\n# SPDX-License\n# Whose is\n# Of it\necho ${a#Of}; # What", [":1: begin", ":5: begin"])):
        found = list(problems(name, text))
        assert len(found) == len(wrong) and all(part in each for part, each in zip(wrong, found)), (text, found)
    print("check_english: self-test passed")


def main():
    patterns = [*PAGES, *("*" + end for end in C_SOURCES + OTHER_SOURCES)]
    tree = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", *patterns], text=True,
                          check=True, stdout=subprocess.PIPE).stdout.splitlines()
    files = sys.argv[1:] or [path for path in (os.path.join(ROOT, each) for each in tree) if os.path.exists(path)]
    wrong = 0
    for path in files:
        with open(path, encoding="utf-8") as f:
            for problem in problems(os.path.relpath(path, ROOT), f.read()):
                print(problem)
                wrong += 1
    print(f"check_english: {len(files)} files, {wrong} problems")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    self_test() if sys.argv[1:] == ["--self-test"] else main()
