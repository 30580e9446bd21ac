// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/channel_end.h"

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using std::chrono::milliseconds;

namespace {

constexpr Clock::time_point kBegin{std::chrono::seconds(1000)};

Clock::time_point at(int ms) { return kBegin + milliseconds(ms); }

// The heartbeat's actions at the moments that it asks for, until `end_ms`: "b0 b100 s300".
std::string due_until(Heartbeat& heartbeat, int end_ms) {
  std::string text;
  while (const auto next = heartbeat.next()) {
    if (*next > at(end_ms)) break;
    const auto due = heartbeat.step(*next);
    const auto ms = std::chrono::duration_cast<milliseconds>(*next - kBegin).count();
    if (due.beat) text += (text.empty() ? "b" : " b") + std::to_string(ms);
    if (due.silent) return text + (text.empty() ? "s" : " s") + std::to_string(ms);
  }
  return text;
}

}  // namespace

TEST_CASE("heartbeat: nothing is due before it is expected, or where it is off") {
  Heartbeat heartbeat;
  CHECK_FALSE(heartbeat.next().has_value());
  heartbeat.heard(at(0));
  CHECK_FALSE(heartbeat.next().has_value());
  heartbeat.expect(milliseconds(0), at(0));
  CHECK_FALSE(heartbeat.next().has_value());
}

TEST_CASE("heartbeat: three beats in the patience, and silence is what lasts for all of it") {
  Heartbeat heartbeat;
  heartbeat.expect(milliseconds(300), at(0));
  CHECK(due_until(heartbeat, 1000) == "b0 b100 b200 b300 s300");
}

TEST_CASE("heartbeat: each message heard counts") {
  Heartbeat heartbeat;
  heartbeat.expect(milliseconds(300), at(0));
  CHECK(due_until(heartbeat, 249) == "b0 b100 b200");
  heartbeat.heard(at(250));
  CHECK(due_until(heartbeat, 1000) == "b300 b400 b500 s550");
}

TEST_CASE("heartbeat: an end that reads nothing by its own will hears no silence") {
  Heartbeat heartbeat;
  heartbeat.expect(milliseconds(300), at(0));
  heartbeat.listen(false, at(50));
  CHECK(due_until(heartbeat, 450) == "b0 b100 b200 b300 b400");
  heartbeat.listen(true, at(450));
  CHECK(due_until(heartbeat, 1000) == "b500 b600 b700 s750");
}

TEST_CASE("heartbeat: a process that stood still gives the other end a new chance, once") {
  Heartbeat heartbeat;
  heartbeat.expect(milliseconds(300), at(0));
  heartbeat.step(at(0));
  const auto late = heartbeat.step(at(5000));
  CHECK(late.beat);
  CHECK_FALSE(late.silent);
  CHECK(due_until(heartbeat, 6000) == "b5100 b5200 b5300 s5300");
}

TEST_CASE("heartbeat: an end that says it will stand still is waited for, until it speaks again") {
  Heartbeat heartbeat;
  heartbeat.expect(milliseconds(300), at(0));
  heartbeat.expect(milliseconds(0), at(100));
  CHECK_FALSE(heartbeat.next().has_value());
  heartbeat.expect(milliseconds(300), at(9000));
  CHECK(due_until(heartbeat, 10000) == "b9000 b9100 b9200 b9300 s9300");
}
