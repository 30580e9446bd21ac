// SPDX-License-Identifier: Apache-2.0
#include "agent/timers/timer_pipe.h"

#include "tests/support/catch.h"

using namespace ddprun::agent;

namespace {

// A request in the form that FileTimerClient writes.
std::string line(const std::string& pid, const std::string& expires, const std::string& signal,
                 const std::string& scope = "\"step\"") {
  return R"({"version": 1, "pid": )" + pid + R"(, "scope_id": )" + scope +
         R"(, "expiration_time": )" + expires + R"(, "signal": )" + signal + "}";
}

TimerRequest request(pid_t pid, const std::string& scope, double expires, int signal = 9) {
  return {pid, scope, expires, signal};
}

// The expired timers, as "PID:SCOPE:SIGNAL …".
std::string expire(TimerTable& table, double now) {
  std::string text;
  for (const auto& each : table.expire(now)) {
    text += (text.empty() ? "" : " ") + std::to_string(each.pid) + ":" + each.scope + ":" +
            std::to_string(each.signal);
  }
  return text;
}

}  // namespace

TEST_CASE("timer request: it is read as torch's client writes it") {
  const auto set = parse_timer_request(line("17", "1763800000.25", "9"));
  REQUIRE(set.has_value());
  CHECK((set->pid == 17 && set->scope == "step" && set->signal == 9));
  CHECK(set->expires == 1763800000.25);
  CHECK(parse_timer_request(line("17", "-1", "0"))->expires == -1);
  CHECK(parse_timer_request(line("17", "5", "-3"))->signal == 0);  // the client wants no signal
}

TEST_CASE("timer request: an invalid request is refused") {
  for (const std::string& bad :
       {std::string(), std::string("x"), std::string("[]"), std::string("{}"), line("0", "5", "9"),
        line("-1", "5", "9"), line("4194305", "5", "9"), line("\"1\"", "5", "9"),
        line("1", "\"5\"", "9"), line("1", "1e999", "9"), line("1", "NaN", "9"),
        line("1", "5", "65"), line("1", "5", "9.5"), line("1", "5", "9", "7"),
        line("1", "5", "9", "\"" + std::string(1025, 'x') + "\""), line("1", "5", "9") + "x",
        std::string(2000, '[')}) {
    CAPTURE(bad.substr(0, 100));
    CHECK_FALSE(parse_timer_request(bad).has_value());
  }
}

TEST_CASE("timers: a timer that is cancelled in time is gone, one that expires tells its signal") {
  TimerTable table;
  CHECK_FALSE(table.next().has_value());
  CHECK(table.take(request(1, "a", 10), 100));
  CHECK(table.take(request(2, "b", 5), 200));
  CHECK(table.next() == 5);
  CHECK(table.take(request(2, "b", -1), 200));
  CHECK(table.next() == 10);
  CHECK(expire(table, 9.9) == "");
  const auto expired = table.expire(10);
  REQUIRE(expired.size() == 1);
  CHECK((expired[0].pid == 1 && expired[0].begun == 100 && expired[0].signal == 9));
  CHECK_FALSE(table.next().has_value());
}

TEST_CASE("timers: one that is set again has a new time") {
  TimerTable table;
  table.take(request(1, "a", 5), 0);
  table.take(request(1, "a", 50), 0);
  CHECK(expire(table, 20) == "");
  CHECK(table.next() == 50);
}

TEST_CASE("timers: the first timer of a process to expire with a signal counts, once") {
  TimerTable table;
  table.take(request(1, "none", 1, 0), 0);
  table.take(request(1, "late", 4, 15), 0);
  table.take(request(1, "early", 3, 2), 0);
  table.take(request(1, "to come", 99, 9), 0);
  table.take(request(2, "other", 2, 9), 0);
  CHECK(expire(table, 10) == "1:early:2 2:other:9");
  CHECK_FALSE(table.next().has_value());  // a process that got its signal has no timers any more
}

TEST_CASE("timers: one without a signal is only named") {
  TimerTable table;
  table.take(request(7, "quiet", 1, 0), 0);
  CHECK(expire(table, 1) == "7:quiet:0");
}

TEST_CASE("timers: a limited number is kept") {
  TimerTable table;
  for (std::size_t i = 0; i < TimerTable::kMostTimers; ++i) {
    CHECK(table.take(request(1, std::to_string(i), 5), 0));
  }
  CHECK_FALSE(table.take(request(1, "one more", 5), 0));
  CHECK(table.take(request(1, "0", 7), 0));  // a timer that exists can still be set
  CHECK(table.take(request(1, "1", -1), 0));
  CHECK(table.take(request(1, "one more", 5), 0));
}
