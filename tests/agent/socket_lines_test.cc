// SPDX-License-Identifier: Apache-2.0
#include "agent/socket_lines.h"

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using namespace ddprun::agent;

TEST_CASE("worker's line: each type with its fields, unknown fields are ignored") {
  const auto hello = variants::get<Hello>(
      parse_worker_line(R"({"type":"hello","version":1,"round":7,"local_rank":3,"more":[]})"));
  CHECK(hello.version == 1);
  CHECK(hello.round == 7);
  CHECK(hello.local_rank == 3);
  CHECK(variants::get<Hello>(
            parse_worker_line(
                R"({"type":"hello","version":1,"round":7,"local_rank":3,"framework":"a\nb"})"))
            .framework == "a\\nb");
  const auto first = variants::get<FirstStep>(
      parse_worker_line(R"({"type":"first_step","step":41,"connecting_us":2500})"));
  CHECK(first.step == 41);
  CHECK(first.connecting_us == 2500);
  CHECK(variants::get<FirstStep>(parse_worker_line(R"({"type":"first_step","step":41})"))
            .connecting_us == 0);  // an older SDK says nothing of it
  CHECK(variants::get<ExcludeNode>(parse_worker_line(R"({"type":"exclude_node","reason":"ECC"})"))
            .reason == "ECC");
  const auto stop = variants::get<StopJob>(
      parse_worker_line(R"({"type":"stop_job","reason":"loss is nan","exit_code":3})"));
  CHECK(stop.reason == "loss is nan");
  CHECK(stop.exit_code == 3);
  CHECK(variants::get<StopJob>(parse_worker_line(R"({"type":"stop_job","reason":""})")).exit_code ==
        1);
  CHECK(variants::holds_alternative<OffersRecovery>(
      parse_worker_line(R"({"type":"offers_recovery"})")));
  CHECK(variants::holds_alternative<AsksToRecover>(parse_worker_line(R"({"type":"recover"})")));
  CHECK(variants::holds_alternative<KeepsRecord>(parse_worker_line(R"({"type":"keeps_record"})")));
  CHECK(variants::get<Recorded>(parse_worker_line(R"({"type":"recorded","file":"","number":7})"))
            .number == 7);
  CHECK(variants::get<Recorded>(parse_worker_line(R"({"type":"recorded","file":"/l/f"})")).file ==
        "/l/f");
  CHECK(variants::get<UnknownLine>(parse_worker_line(R"({"type":"later"})")).type == "later");
}

TEST_CASE("worker's line: an invalid line is a protocol error") {
  for (const char* line : {"",
                           "7",
                           "[]",
                           "{",
                           R"({"type":7})",
                           "{}",
                           R"({"type":"hello","version":1,"round":1})",
                           R"({"type":"hello","version":1,"round":-1,"local_rank":0})",
                           R"({"type":"hello","version":1,"round":1,"local_rank":-1})",
                           R"({"type":"hello","version":1,"round":1,"local_rank":99999999})",
                           R"({"type":"first_step"})",
                           R"({"type":"first_step","step":-1})",
                           R"({"type":"first_step","step":1,"connecting_us":-1})",
                           R"({"type":"recorded"})",
                           R"({"type":"recorded","file":"","number":-1})",
                           R"({"type":"exclude_node"})",
                           R"({"type":"exclude_node","reason":7})",
                           R"({"type":"stop_job","reason":"x","exit_code":0})",
                           R"({"type":"stop_job","reason":"x","exit_code":256})",
                           R"({"type":"first_step","step":1,"x":[[[[[[1]]]]]]})"}) {
    CAPTURE(line);
    CHECK(test::code_of([&] { parse_worker_line(line); }) == ErrorCode::kProtocol);
  }
}

TEST_CASE("worker's line: a reason is cut, and can't forge lines") {
  const std::string long_reason(3000, 'x');
  const auto cut = variants::get<ExcludeNode>(
      parse_worker_line(R"({"type":"exclude_node","reason":")" + long_reason + R"("})"));
  CHECK(cut.reason.size() <= kMaxReasonBytes + 16);
  CHECK(variants::get<ExcludeNode>(parse_worker_line(R"({"type":"exclude_node","reason":"a\nb"})"))
            .reason == "a\\nb");
}
