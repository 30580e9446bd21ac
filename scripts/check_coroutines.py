#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on the two coroutine mistakes that this tree bans, naming file and line.

1. A statement with co_await that holds a lambda or a {…} temporary: g++ 12 destroys such a
   temporary twice. Name it on the line above.
2. asio::detached: it swallows exceptions. Spawn into an owner that reports them.

    scripts/check_coroutines.py [ROOT]       check the tree (default: this repository)
    scripts/check_coroutines.py --self-test  known good and bad statements
"""
import os
import re
import sys

TOPS = ["common", "rendezvous", "agent", "launcher", "ctl", "worker_sdk", "examples", "tests", "bench"]
CONTROL = re.compile(r"\b(if|while|for|switch|constexpr)\s*$")
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def blank(text):
    """`text` with comments and literals replaced by as many blanks and the same line ends."""
    def spaces(match):
        return re.sub(r"[^\n]", " ", match[0]) if match[0][0] == "/" else re.sub(r"[^\n]", "_", match[0])
    return NOISE.sub(spaces, text)


def is_block_open(code, at):
    """Whether the `{` at `at` opens a block rather than a {…} temporary or a lambda's body."""
    before = code[:at].rstrip()
    if not before or before[-1] in ";{}":
        return True
    return bool(re.search(r"(\)|\b(else|do|try|const|noexcept|override|final|mutable)|->[^(){};]*)$", before))


def ends_block(code, at):
    """Whether the `}` at `at` ends a block: what follows an expression's brace joins on to it."""
    after = code[at + 1:].lstrip()
    return not after or after[0] not in ",).(;&|?:+-*/<>=["


def statement_start(code, at):
    """First position of the statement around `at`."""
    depth = 0
    for i in range(at - 1, -1, -1):
        c = code[i]
        if c in ")]":
            depth += 1
        elif c in "([":
            depth -= 1
            if c == "(" and depth < 0 and CONTROL.search(code[:i]):
                return i + 1
        elif c == "}":
            if depth <= 0 and ends_block(code, i):
                return i + 1
            depth += 1
        elif c == "{":
            if depth <= 0 and is_block_open(code, i):
                return i + 1
            depth -= 1
        elif c == ";" and depth <= 0:
            return i + 1
    return 0


def statement_end(code, at, start):
    """One past the last position of the statement that begins at `start` and holds `at`."""
    in_control = start > 0 and code[start - 1] == "(" and CONTROL.search(code[:start - 1])
    depth = 0
    for i in range(start, len(code)):
        c = code[i]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth < 0 and (c == "}" or in_control):
                return i
        elif c == ";" and depth <= 0 and i > at:
            return i
    return len(code)


def banned_in(statement):
    """What the statement holds that it may not: "a lambda", "a {…} temporary", or None."""
    lambda_at = re.search(r"(^|[(,={}:?;!&|]|\breturn|\bco_await|\bco_return)\s*\[(?!\[)[^\]]*\]\s*[({<m]", statement)
    if lambda_at:
        return "a lambda"
    return "a {…} temporary" if "{" in statement else None


def check_text(text):
    """All violations in one file's text, as (line number, message)."""
    code = blank(text)
    found = {}
    for match in re.finditer(r"\bco_await\b", code):
        start = statement_start(code, match.start())
        what = banned_in(code[start:statement_end(code, match.start(), start)])
        if what:
            line = code.count("\n", 0, match.start()) + 1
            found[line] = f"a statement with co_await holds {what}: name it on the line above"
    for match in re.finditer(r"\basio::detached\b|\bdetached_t\b", code):
        found[code.count("\n", 0, match.start()) + 1] = "asio::detached swallows exceptions"
    return sorted(found.items())


def self_test():
    bad = ["co_await f([&] { return 1; });", "co_await f(Point{1, 2});", "co_await f({1, 2});",
           "auto x = co_await g(std::string{a});", "foo(Bar{1}, co_await baz());",
           "foo([x](int y) { return y; }, co_await baz());", "if (co_await f(Options{})) { g(); }",
           "co_return co_await f(A{});", "while (x) co_await\n f(\n  [](auto) mutable {});",
           "for (auto x : co_await f(B{})) { g(x); }", "co_spawn(e, f(), asio::detached);",
           "co_spawn(e, [&]() -> awaitable<void> { co_await h(A{}); }, token);",
           "Point p{co_await f()};", "x = y ? co_await f(A{}) : 0;"]
    good = ["auto f2 = [&] { return 1; };\nco_await f(f2);", "co_await f(a[i], b[j]);",
            "if (co_await f()) { g({1}); }", "struct A { int x; };\nco_await f();",
            "co_spawn(e, [&]() -> awaitable<void> { co_await h(); }, token);", "co_await f(\"{\"); // {x}",
            "for (;;) { co_await f(); }", "{ A a{1}; co_await f(a); }", "try { co_await f(); } catch (...) {}",
            "awaitable<void> f() { co_await g(); }\nvoid h(A a = A{});", "switch (co_await f()) { case 1: g(A{}); }",
            "do { co_await f(); } while (x);", "if (a) { b(); } else { co_await f(); }",
            "[[maybe_unused]] auto x = co_await f();", "auto a = A{1};\nco_await (f(a) || g(a));",
            "const auto [a, b] = co_await f();", "A x = {1};\nco_await f(x);"]
    for text, expected in [(t, True) for t in bad] + [(t, False) for t in good]:
        for wrapped in (text, "awaitable<void> w() {\n  " + text + "\n}\n"):
            if bool(check_text(wrapped)) != expected:
                sys.exit(f"check_coroutines: self-test: wrong about: {wrapped}\n{check_text(wrapped)}")
    print(f"check_coroutines: self-test passed: {len(bad)} planted violations found, {len(good)} allowed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..")
    count = violations = 0
    for top in TOPS:
        for directory, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(n for n in names if n.endswith((".h", ".cc"))):
                path = os.path.join(directory, name)
                count += 1
                with open(path, encoding="utf-8") as f:
                    for line, message in check_text(f.read()):
                        violations += 1
                        print(f"{os.path.relpath(path, root)}:{line}: {message}")
    print(f"check_coroutines: {count} files, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
