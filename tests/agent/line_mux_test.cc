// SPDX-License-Identifier: Apache-2.0
#include "agent/line_mux.h"

#include <chrono>

#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

struct Fixture {
  explicit Fixture(bool terminal) : mux(terminal) {
    zero.prefix = "[0] ";
    zero.redraws = true;
    one.prefix = "[1] ";
  }
  void feed(LineSource& source, std::string_view bytes) { mux.feed(source, bytes, now); }
  void end(LineSource& source) { mux.end(source, now); }
  // The output of this batch.
  std::string batch(int columns = 0) {
    std::string out;
    out.swap(mux.finish_batch(columns));
    return out;
  }
  // The output that comes only because time passes.
  std::string after(std::chrono::milliseconds time) {
    now += time;
    mux.wake(now);
    return batch();
  }
  Clock::time_point now{};
  LineMux mux;
  LineSource zero, one;
};

const std::string kLong(LineMux::kMaxHeldBytes + 1, 'x');

TEST_CASE("LineMux: each line stands whole behind its prefix") {
  Fixture f(false);
  f.feed(f.zero, "a\nb");
  f.feed(f.one, "x\n");
  f.feed(f.zero, "c\n\n");
  CHECK(f.batch() == "[0] a\n[1] x\n[0] bc\n[0] \n");
}

TEST_CASE("LineMux: the last line gets its newline when the source ends") {
  Fixture f(false);
  f.feed(f.zero, "no end");
  CHECK(f.batch().empty());
  f.end(f.zero);
  f.end(f.one);
  f.end(f.zero);
  CHECK(f.batch() == "[0] no end\n");
}

TEST_CASE("LineMux: bytes pass unharmed where there is no terminal") {
  Fixture f(false);
  std::string bytes;
  for (int i = 0; i < 256; ++i) {
    if (i != '\n') bytes += static_cast<char>(i);
  }
  f.feed(f.one, bytes.substr(0, 100));
  f.feed(f.one, bytes.substr(100) + "\n");
  CHECK(f.batch() == "[1] " + bytes + "\n");
}

TEST_CASE("LineMux: a 10 MB line stays one line, in bounded memory") {
  Fixture f(false);
  const std::string piece(10'000, 'x');
  std::string out;
  for (int i = 0; i < 1000; ++i) {
    f.feed(f.zero, piece);
    CHECK(f.zero.held.size() <= LineMux::kMaxHeldBytes);
    out += f.batch();
  }
  f.feed(f.zero, "\nnext\n");
  out += f.batch();
  CHECK(out == "[0] " + std::string(10'000'000, 'x') + "\n[0] next\n");
}

TEST_CASE("LineMux: others' lines wait for the end of a long line") {
  Fixture f(false);
  f.feed(f.one, "before");
  f.feed(f.zero, kLong);
  CHECK(f.batch() == "[0] " + kLong);
  f.feed(f.one, " it\nother\nanother");
  CHECK(f.batch().empty());
  f.feed(f.zero, "rest\nnext\n");
  CHECK(f.batch() == "rest\n[0] next\n[1] before it\n[1] other\n");
  f.feed(f.one, " one\n");
  CHECK(f.batch() == "[1] another one\n");
}

TEST_CASE("LineMux: a source that waits for a long line is read up to a bound") {
  Fixture f(false);
  f.feed(f.zero, kLong);
  f.feed(f.one, "x\n");
  CHECK_FALSE(f.mux.must_wait(f.one));
  f.feed(f.one, kLong);
  CHECK(f.mux.must_wait(f.one));
  CHECK_FALSE(f.mux.must_wait(f.zero));
  CHECK_FALSE(f.mux.take_released());
  f.feed(f.zero, "\n");
  CHECK(f.mux.take_released());
  CHECK_FALSE(f.mux.must_wait(f.one));
}

TEST_CASE("LineMux: the long line that began first comes out first") {
  Fixture f(false);
  LineSource two;
  two.prefix = "[2] ";
  f.feed(f.zero, kLong);
  f.feed(f.one, kLong);
  f.feed(two, "short\n");
  f.feed(f.zero, "\n");
  CHECK(f.batch() == "[0] " + kLong + "\n[1] " + kLong);
  f.feed(f.one, "end\n");
  CHECK(f.batch() == "end\n[2] short\n");
}

TEST_CASE("LineMux: a worker that ended while it waited has its turn all the same") {
  Fixture f(false);
  f.feed(f.zero, kLong);
  {
    LineSource gone;
    gone.prefix = "[2] ";
    f.feed(gone, "last\nwords");
    f.end(gone);
  }
  f.feed(f.zero, "\n");
  CHECK(f.batch() == "[0] " + kLong + "\n[2] last\n[2] words\n");
}

TEST_CASE("LineMux: a long line whose source is silent is broken, and goes on behind its prefix") {
  Fixture f(false);
  f.feed(f.zero, kLong);
  CHECK_FALSE(f.mux.wake_at());
  f.feed(f.one, "other\n");
  CHECK(f.mux.wake_at() == f.now + LineMux::kOwnerSilence);
  CHECK(f.batch() == "[0] " + kLong);
  CHECK(f.after(LineMux::kOwnerSilence) == "\n[1] other\n");
  f.feed(f.zero, "rest\n");
  CHECK(f.batch() == "[0] rest\n");
}

TEST_CASE("LineMux: a line that never ends keeps others waiting for so long and no longer") {
  Fixture f(false);
  f.feed(f.zero, kLong);
  f.feed(f.one, "other\n");
  f.batch();
  std::chrono::milliseconds waited{0};
  for (std::string text; text.find("[1] other\n") == std::string::npos;) {
    f.feed(f.zero, "more");
    text = f.after(std::chrono::milliseconds(500));
    waited += std::chrono::milliseconds(500);
    REQUIRE(waited <= LineMux::kOwnerLimit);
  }
  CHECK(waited == LineMux::kOwnerLimit);
}

TEST_CASE("LineMux: ddprun's own line doesn't wait for long") {
  Fixture f(false);
  LineSource own;
  own.urgent = true;
  f.feed(f.zero, kLong);
  f.feed(own, "[ddprun] news\n");
  CHECK(f.batch() == "[0] " + kLong);
  CHECK(f.after(LineMux::kUrgentLimit) == "\n[ddprun] news\n");
}

TEST_CASE("LineMux: a long line that was broken and ends without more text adds nothing") {
  Fixture f(false);
  f.feed(f.zero, kLong);
  f.feed(f.one, "other\n");
  f.after(LineMux::kOwnerSilence);
  f.end(f.zero);
  CHECK(f.batch().empty());
  f.feed(f.one, kLong);
  f.end(f.one);
  CHECK(f.batch() == "[1] " + kLong + "\n");
}

TEST_CASE("LineMux: a progress bar isn't held back for long from a file or a pipe") {
  Fixture f(false);
  f.feed(f.zero, "\r10%");
  f.feed(f.zero, "\r20%");
  CHECK(f.mux.wake_at() == f.now + LineMux::kHoldTime);
  CHECK(f.batch().empty());
  CHECK(f.after(LineMux::kHoldTime) == "[0] \r10%\r20%");
  f.feed(f.zero, "\r30%");  // from now on output goes out as it comes
  CHECK(f.batch() == "\r30%");
  f.feed(f.one, "other\n");
  CHECK(f.batch() == "\n[1] other\n");
  f.feed(f.zero, "\r40%");
  CHECK(f.batch().empty());
  CHECK(f.after(LineMux::kHoldTime) == "[0] \r40%");
  f.feed(f.zero, "\n");
  CHECK(f.batch() == "\n");
  CHECK_FALSE(f.mux.wake_at());
}

TEST_CASE("LineMux: a source that wasn't read for a while has its time again") {
  Fixture f(false);
  f.feed(f.zero, "begun ");
  f.now += LineMux::kHoldTime / 2;
  f.mux.postpone(f.now);
  CHECK(f.after(LineMux::kHoldTime - std::chrono::milliseconds(1)).empty());
  // This process stood still, so the timer is late, and the rest of the line may be in the pipe.
  CHECK(f.after(LineMux::kHoldTime + LineMux::kLate).empty());
  f.feed(f.zero, "whole\n");
  CHECK(f.batch() == "[0] begun whole\n");
  f.feed(f.zero, kLong);
  f.feed(f.one, "other\n");
  f.batch();
  CHECK(f.after(std::chrono::seconds(60)).empty());
  f.feed(f.zero, "\n");
  CHECK(f.batch() == "\n[1] other\n");
}

TEST_CASE("LineMux: whole lines are left out and counted while dropping, urgent ones are not") {
  Fixture f(false);
  LineSource own;
  own.urgent = true;
  f.feed(f.one, "begun ");
  f.mux.set_dropping(true);
  f.feed(f.zero, "a\nb\n");
  f.feed(own, "news\n");
  f.feed(f.one, "before\nheld ");
  CHECK(f.batch() == "news\n");
  CHECK(f.mux.num_dropped_lines() == 3);
  CHECK(f.mux.num_dropped_bytes() == 4 + 13);
  f.mux.set_dropping(false);
  f.feed(f.one, "whole\n");
  CHECK(f.batch() == "[1] held whole\n");
}

TEST_CASE("LineMux: a long line that is dropped from its middle on is closed") {
  Fixture f(false);
  f.feed(f.zero, kLong);
  f.mux.set_dropping(true);
  f.feed(f.zero, "lost");
  f.feed(f.zero, " too\n");
  f.mux.set_dropping(false);
  f.feed(f.zero, "next\n");
  CHECK(f.batch() == "[0] " + kLong + "\n[0] next\n");
  CHECK(f.mux.num_dropped_lines() == 1);
}

TEST_CASE("LineMux: carriage returns pass through where there is no terminal") {
  Fixture f(false);
  f.feed(f.zero, "\r10%");
  f.feed(f.zero, "\r20%\n");
  CHECK(f.batch() == "[0] \r10%\r20%\n");
}

TEST_CASE("LineMux: rank 0's progress is redrawn on a terminal, below the others' lines") {
  Fixture f(true);
  f.feed(f.zero, "\r10%");
  CHECK(f.batch() == "[0] 10%");
  f.feed(f.zero, "\r20%");
  CHECK(f.batch() == "\r\x1b[K[0] 20%");
  f.feed(f.one, "x\n");
  CHECK(f.batch() == "\r\x1b[K[1] x\n[0] 20%");
  f.feed(f.zero, "\r100%\n");
  CHECK(f.batch() == "\r\x1b[K[0] 100%\n");
  f.feed(f.one, "y\n");
  CHECK(f.batch() == "[1] y\n");
}

TEST_CASE("LineMux: text that ends in a carriage return is shown on a terminal, too") {
  Fixture f(true);
  f.feed(f.zero, "10%\r");
  CHECK(f.batch() == "[0] 10%");
  f.feed(f.zero, "20%\r");
  CHECK(f.batch() == "\r\x1b[K[0] 20%");
  f.end(f.zero);
  CHECK(f.batch() == "\r\x1b[K[0] 20%\n");
}

TEST_CASE("LineMux: rank 0's prompt is shown on a terminal before its newline") {
  Fixture f(true);
  f.feed(f.zero, "(Pdb) ");
  CHECK(f.batch() == "[0] (Pdb) ");
}

TEST_CASE(
    "LineMux: text after the answer to a prompt doesn't draw the prompt again on a terminal") {
  Fixture f(true);
  f.feed(f.zero, "(Pdb) ");
  CHECK(f.batch() == "[0] (Pdb) ");
  f.feed(f.zero, "5\n(Pdb) ");  // "p x" was typed; the terminal has shown it and its newline
  CHECK(f.batch() == "5\n[0] (Pdb) ");
  f.feed(f.one, "x\n");
  CHECK(f.batch() == "\r\x1b[K[1] x\n[0] (Pdb) ");
  f.end(f.zero);
  CHECK(f.batch() == "\n");
  f.feed(f.zero, "a prompt that is too long for its line: ");
  CHECK(f.batch(10) == "[0] a pro");
  f.feed(f.zero, "yes\n");
  CHECK(f.batch(10) == "\r\x1b[K[0] a prompt that is too long for its line: yes\n");
}

TEST_CASE("LineMux: a dropped line leaves no part of a prompt's behind") {
  Fixture f(true);
  f.feed(f.zero, "(Pdb) ");
  f.batch();
  f.mux.set_dropping(true);
  f.feed(f.zero, "5\n");
  CHECK(f.batch() == "\n");
  CHECK(f.mux.num_dropped_lines() == 1);
}

TEST_CASE("LineMux: hours of a progress bar need no memory") {
  Fixture f(true);
  for (int i = 0; i < 100'000; ++i) {
    f.feed(f.zero, "\r" + std::to_string(i) + "%");
    f.feed(f.one, "\r" + std::to_string(i) + "%");
    f.batch();
  }
  CHECK(f.zero.held.size() < 20);
  CHECK(f.one.held.size() < 20);
}

TEST_CASE("LineMux: a progress line is cut to the terminal's width, by characters") {
  Fixture f(true);
  f.feed(f.zero, "\r\u2588\u2588\u2588\u2588\u2588");
  CHECK(f.batch(7) == "[0] \u2588\u2588");
}

TEST_CASE("LineMux: colours have no width, and don't outlive the cut") {
  Fixture f(true);
  f.zero.prefix = "\x1b[36m[0] \x1b[0m";
  f.feed(f.zero, "\r\x1b[31m12345");
  CHECK(f.batch(7) == f.zero.prefix + "\x1b[31m12\x1b[0m");
}

TEST_CASE("LineMux: CR LF is a line end, also when it comes in two parts") {
  Fixture f(true);
  f.feed(f.one, "a\r\nb\r");
  f.feed(f.one, "\n");
  CHECK(f.batch() == "[1] a\n[1] b\n");
}

}  // namespace
}  // namespace ddprun::agent
