// SPDX-License-Identifier: Apache-2.0
#include "agent/line_mux.h"

#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

struct Fixture {
  explicit Fixture(bool terminal) : mux(terminal) {
    zero.prefix = "[0] ";
    zero.redraws = true;
    one.prefix = "[1] ";
  }
  // What this batch writes.
  std::string batch(int columns = 0) {
    std::string out;
    out.swap(mux.finish_batch(columns));
    return out;
  }
  LineMux mux;
  LineSource zero, one;
};

TEST_CASE("LineMux: each line stands whole behind its prefix") {
  Fixture f(false);
  f.mux.feed(f.zero, "a\nb");
  f.mux.feed(f.one, "x\n");
  f.mux.feed(f.zero, "c\n\n");
  CHECK(f.batch() == "[0] a\n[1] x\n[0] bc\n[0] \n");
}

TEST_CASE("LineMux: the last line gets its newline when the source ends") {
  Fixture f(false);
  f.mux.feed(f.zero, "no end");
  CHECK(f.batch().empty());
  f.mux.end(f.zero);
  f.mux.end(f.one);
  f.mux.end(f.zero);
  CHECK(f.batch() == "[0] no end\n");
}

TEST_CASE("LineMux: bytes pass unharmed where there is no terminal") {
  Fixture f(false);
  std::string bytes;
  for (int i = 0; i < 256; ++i) {
    if (i != '\n') bytes += static_cast<char>(i);
  }
  f.mux.feed(f.one, bytes.substr(0, 100));
  f.mux.feed(f.one, bytes.substr(100) + "\n");
  CHECK(f.batch() == "[1] " + bytes + "\n");
}

TEST_CASE("LineMux: a 10 MB line stays one line, in bounded memory") {
  Fixture f(false);
  const std::string piece(10'000, 'x');
  std::string out;
  for (int i = 0; i < 1000; ++i) {
    f.mux.feed(f.zero, piece);
    CHECK(f.zero.partial.size() <= LineMux::kMaxPartialBytes);
    out += f.batch();
  }
  f.mux.feed(f.zero, "\nnext\n");
  out += f.batch();
  CHECK(out == "[0] " + std::string(10'000'000, 'x') + "\n[0] next\n");
}

TEST_CASE("LineMux: another's line breaks a long line, which goes on behind its prefix") {
  Fixture f(false);
  const std::string half(LineMux::kMaxPartialBytes + 1, 'x');
  f.mux.feed(f.zero, half);
  f.mux.feed(f.one, "other\n");
  f.mux.feed(f.zero, "rest\n");
  CHECK(f.batch() == "[0] " + half + "\n[1] other\n[0] rest\n");
}

TEST_CASE("LineMux: a long line that was broken and ends without more text adds nothing") {
  Fixture f(false);
  const std::string half(LineMux::kMaxPartialBytes + 1, 'x');
  f.mux.feed(f.zero, half);
  f.mux.feed(f.one, "other\n");
  f.mux.end(f.zero);
  CHECK(f.batch() == "[0] " + half + "\n[1] other\n");
  f.mux.feed(f.one, half);
  f.mux.end(f.one);
  CHECK(f.batch() == "[1] " + half + "\n");
}

TEST_CASE("LineMux: carriage returns pass through where there is no terminal") {
  Fixture f(false);
  f.mux.feed(f.zero, "\r10%");
  f.mux.feed(f.zero, "\r20%\n");
  CHECK(f.batch() == "[0] \r10%\r20%\n");
}

TEST_CASE("LineMux: on a terminal rank 0's progress is redrawn, below the others' lines") {
  Fixture f(true);
  f.mux.feed(f.zero, "\r10%");
  CHECK(f.batch() == "[0] 10%");
  f.mux.feed(f.zero, "\r20%");
  CHECK(f.batch() == "\r\x1b[K[0] 20%");
  f.mux.feed(f.one, "x\n");
  CHECK(f.batch() == "\r\x1b[K[1] x\n[0] 20%");
  f.mux.feed(f.zero, "\r100%\n");
  CHECK(f.batch() == "\r\x1b[K[0] 100%\n");
  f.mux.feed(f.one, "y\n");
  CHECK(f.batch() == "[1] y\n");
}

TEST_CASE("LineMux: on a terminal text that ends in a carriage return is shown too") {
  Fixture f(true);
  f.mux.feed(f.zero, "10%\r");
  CHECK(f.batch() == "[0] 10%");
  f.mux.feed(f.zero, "20%\r");
  CHECK(f.batch() == "\r\x1b[K[0] 20%");
  f.mux.end(f.zero);
  CHECK(f.batch() == "\r\x1b[K[0] 20%\n");
}

TEST_CASE("LineMux: on a terminal rank 0's prompt is shown before its newline") {
  Fixture f(true);
  f.mux.feed(f.zero, "(Pdb) ");
  CHECK(f.batch() == "[0] (Pdb) ");
}

TEST_CASE("LineMux: hours of a progress bar need no memory") {
  Fixture f(true);
  for (int i = 0; i < 100'000; ++i) {
    f.mux.feed(f.zero, "\r" + std::to_string(i) + "%");
    f.mux.feed(f.one, "\r" + std::to_string(i) + "%");
    f.batch();
  }
  CHECK(f.zero.partial.size() < 20);
  CHECK(f.one.partial.size() < 20);
}

TEST_CASE("LineMux: a progress line is cut to the terminal's width, by characters") {
  Fixture f(true);
  f.mux.feed(f.zero, "\r\u2588\u2588\u2588\u2588\u2588");
  CHECK(f.batch(7) == "[0] \u2588\u2588");
}

TEST_CASE("LineMux: CR LF is a line end, also when it comes in two parts") {
  Fixture f(true);
  f.mux.feed(f.one, "a\r\nb\r");
  f.mux.feed(f.one, "\n");
  CHECK(f.batch() == "[1] a\n[1] b\n");
}

}  // namespace
}  // namespace ddprun::agent
