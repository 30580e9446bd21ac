// SPDX-License-Identifier: Apache-2.0
#include "agent/failure_details.h"

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

constexpr char kOperation[] = "all_reduce #127 (25.0 MiB float32, sum) of communicator 0";

OperationFailed failed(std::vector<int> missing, int size, std::string code = "timeout") {
  OperationFailed result;
  result.code = std::move(code);
  result.operation = kOperation;
  result.size = size;
  result.waited_ms = 30'040;
  result.missing = std::move(missing);
  result.message = "words of the error";
  return result;
}

OperationFacts facts(std::uint64_t count, std::uint64_t sequence) {
  OperationFacts result;
  result.kind = CollectiveKind::kAllReduce;
  result.count = count;
  result.sequence = sequence;
  return result;
}

}  // namespace

TEST_CASE("failed_operation_text: the text names ranks that never came, and ranks that waited") {
  CHECK(failed_operation_text(failed({3}, 4)) ==
        std::string("rank 3 never came to ") + kOperation + "; ranks 0–2 waited in it for 30.0 s");
  CHECK(failed_operation_text(failed({0, 1}, 3)) ==
        std::string("ranks 0, 1 never came to ") + kOperation + "; rank 2 waited in it for 30.0 s");
  CHECK(failed_operation_text(failed({5}, 1 << 20)) ==
        std::string("rank 5 never came to ") + kOperation + "; the others waited in it for 30.0 s");
  CHECK(failed_operation_text(failed({}, 4)) ==
        std::string(kOperation) + " did not end within 30.0 s");
  CHECK(failed_operation_text(failed({}, 4, "protocol error")) ==
        std::string("in ") + kOperation + " for 30.0 s: words of the error");
}

TEST_CASE("whereabouts_text: the oldest open operation, else the last one that ended") {
  const Clock::time_point now{std::chrono::seconds(10)};
  CHECK(whereabouts_text({}, now) == "");
  CommunicatorState idle{.communicator = 0, .size = 2, .open = {}, .begun_ns = 0, .done = 126};
  CHECK(whereabouts_text({idle}, now) ==
        "it was in none; the last one that ended was #126 of communicator 0");
  CommunicatorState busy = idle;
  busy.open = facts(25 << 18, 127);
  busy.begun_ns = 8'500'000'000;
  CHECK(whereabouts_text({idle, busy}, now) ==
        std::string("it was in ") + kOperation + " for 1.5 s");
  busy.begun_ns = ~std::uint64_t{0} >> 1;  // a worker may write any value
  CHECK(whereabouts_text({busy}, now) == std::string("it was in ") + kOperation + " for 0.0 s");
}

TEST_CASE("text_of: every kind of operation has its own words") {
  OperationFacts each = facts(4, 2);
  CHECK(text_of(each) == "all_reduce #2 (16 bytes float32, sum) of communicator 0");
  each.kind = CollectiveKind::kBroadcast;
  each.root = 1;
  each.dtype = 7;
  CHECK(text_of(each) == "broadcast #2 (32 bytes int64, root 1) of communicator 0");
  each.kind = CollectiveKind::kSend;
  CHECK(text_of(each) == "send #2 (32 bytes int64 to rank 1) of communicator 0");
  each.kind = CollectiveKind::kRecv;
  CHECK(text_of(each) == "recv #2 (32 bytes int64 from rank 1) of communicator 0");
  each.kind = CollectiveKind::kBarrier;
  CHECK(text_of(each) == "barrier #2 of communicator 0");
  each.kind = CollectiveKind::kAllocate;
  each.count = 3 << 19;
  CHECK(text_of(each) == "allocate #2 (1.5 MiB) of communicator 0");
  each.kind = static_cast<CollectiveKind>(200);
  each.dtype = 99;
  CHECK(text_of(each) == "operation #2 (1.5 MiB unknown) of communicator 0");
  OperationFacts back;
  unpack_facts(pack_facts(each), back);
  back.count = each.count;
  back.sequence = each.sequence;
  CHECK(back == each);
}

TEST_CASE("ranks_text: runs are joined, many are counted") {
  CHECK(ranks_text({3}) == "rank 3");
  CHECK(ranks_text({0, 1}) == "ranks 0, 1");
  CHECK(ranks_text({0, 1, 2, 5, 7, 8, 9}) == "ranks 0–2, 5, 7–9");
  CHECK(ranks_text({0, 2, 4, 6, 8, 10, 12, 14, 16, 18}) ==
        "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 2 more");
}

TEST_CASE("is_worth_recording: a deadline and ranks that parted, not a lost peer alone") {
  CHECK(is_worth_recording(failed({1}, 2)));
  CHECK(is_worth_recording(failed({}, 2, "protocol error")));
  CHECK_FALSE(is_worth_recording(failed({}, 2, "peer lost")));
}

TEST_CASE("parse_worker_line: a failed operation is read, an invalid list of ranks is refused") {
  const auto line = parse_worker_line(
      R"({"type":"operation_failed","code":"timeout","operation":"barrier #3 of communicator 0",)"
      R"("size":4,"waited_ms":30000,"missing":[3,1],"message":"m","file":"/f"})");
  const auto& heard = variants::get<OperationFailed>(line);
  CHECK(heard.missing == std::vector<int>{1, 3});
  CHECK(heard.operation == "barrier #3 of communicator 0");
  CHECK(heard.waited_ms == 30'000);
  for (const char* missing : {"[-1]", "[\"1\"]", "3", "[1.5]", "[99999999]"}) {
    INFO(missing);
    const std::string text = std::string(R"({"type":"operation_failed","code":"c",)"
                                         R"("operation":"o","size":4,"waited_ms":1,)"
                                         R"("message":"m","file":"/f","missing":)") +
                             missing + "}";
    CHECK(test::code_of([&] { parse_worker_line(text); }) == ErrorCode::kProtocol);
  }
}
