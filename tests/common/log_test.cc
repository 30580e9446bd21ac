// SPDX-License-Identifier: Apache-2.0
#include "common/text.h"

#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/log_lines.h"

using namespace ddprun;

TEST_CASE("one_line: line breaks and other control characters are written out") {
  CHECK(one_line("a\nb\tc\rd") == "a\\nb\\tc\\x0dd");
  CHECK(one_line("\x1b[2J\x7f") == "\\x1b[2J\\x7f");
  CHECK(one_line(std::string(1, '\0')) == "\\x00");
}

TEST_CASE("one_line: characters that hide or turn the text around them are written out") {
  // Marks of right-to-left text.
  CHECK(one_line("job \u202Elive\u202C") == "job \\u202elive\\u202c");
  // Characters without a width.
  CHECK(one_line("a\u200Bb\u2060\uFEFF") == "a\\u200bb\\u2060\\ufeff");
  CHECK(one_line("a\u2028b") == "a\\u2028b");  // a line separator
  CHECK(one_line("\u061C\u2066") == "\\u061c\\u2066");
  CHECK(one_line("\xC2\x9B") == "\\u009b");  // CSI as one character
}

TEST_CASE("one_line: all other text is as it was, also bytes that are no UTF-8") {
  const std::string text = "Knoten-ä1 узел 計算機 e\u0301 🔥 –…\u00A0\u2027\u202F\xFF\xE2\x80";
  CHECK(one_line(text) == text);
  CHECK(one_line(one_line("\u202E\n")) == "\\u202e\\n");
}

namespace {

enum { kUnscoped = 3 };

struct Streamable {
  friend std::ostream& operator<<(std::ostream& out, const Streamable&) { return out << "own"; }
};

template <typename Part>
std::string streamed(const Part& part) {
  std::ostringstream out;
  out << part;
  return out.str();
}

}  // namespace

TEST_CASE("concat: each part is what a stream would write") {
  const auto check_one = [](const auto& part) { CHECK(concat(part) == streamed(part)); };
  const auto check = [&](const auto&... parts) { (check_one(parts), ...); };
  check("text", std::string("text"), std::string_view("text"), 'c', true, false);
  check(std::int8_t{65}, std::uint8_t{66}, std::int16_t{-3}, 7U, -1, 0L, 1'234'567'890'123LL);
  check(std::numeric_limits<long long>::min(), std::numeric_limits<unsigned long long>::max());
  check(0.0, -0.0, 0.1, 1e100, 1.0 / 3, 2.5F, 1e6, 1234567.0, 1e-5, 100000.0);
  check(std::numeric_limits<double>::infinity(), std::numeric_limits<double>::denorm_min());
  check(Streamable{}, kUnscoped);
  CHECK(concat() == "");
}

TEST_CASE("log_about_peer: a stranger's lines are limited, and others are not") {
  const test::LogLines log;
  for (int i = 0; i < 2 * kPeerLines; ++i) log_about_peer(LogLevel::kWarning, "closed ", i);
  log_warning("another line");
  const std::vector<std::string> lines = log.all();
  CHECK(lines.size() >= kPeerLines + 2);
  CHECK(lines.size() < kPeerLines + 50);
  CHECK_THAT(lines.at(kPeerLines),
             test::Contains("are left out where they are more than 5 a second"));
  CHECK(lines.back() == "another line");
}
