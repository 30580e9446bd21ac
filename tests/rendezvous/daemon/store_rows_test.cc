// SPDX-License-Identifier: Apache-2.0
// A store of rows that older ddprunds wrote.
#include "rendezvous/daemon/store_rows.h"

#include "rendezvous/store/byte_stream.h"
#include "tests/rendezvous/store/all_requests.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::rendezvous;
using namespace ddprun::store;
using namespace ddprun::store::testing;

namespace {

constexpr std::uint64_t kRowsJob = 7, kRowsRound = 3, kNode = 1;

std::string item(const Request& request) {
  const std::string bytes = encoded(request);
  std::string all;
  append_item_head({1, ItemKind::kData, bytes.size()}, &all);
  return all + bytes;
}

}  // namespace

TEST_CASE(
    "StoreRows: a number that was refused at a limit is refused again, one that counted counts") {
  const RequestLimits limits;
  // false: a turn of an older ddprund; today's keep no such turn.
  for (const bool lets_count : {true, false}) {
    CAPTURE(lets_count);
    ProxiedStore store(kRowsRound, limits);
    StoreRows written(kRowsJob, kRowsRound);
    journal::Batch batch;
    std::uint64_t said = 0;
    for (const auto& [number, growth] : {std::pair(9, ""), std::pair(1, "full")}) {
      const std::string bytes = item(request_of_number(Opcode::kAdd, "/k", number));
      store.receive(kNode, {kRowsRound, said, 0, bytes});
      said += bytes.size();
      written.add(store.run(kNode, 9, {growth, "", lets_count}), batch);
    }
    journal::Rows rows;
    journal::apply_batch(batch, rows);
    REQUIRE(rows.size() == 2);
    // An older row has only the reason.
    CHECK((rows.rbegin()->second.find("full\n") != std::string::npos) == lets_count);

    ProxiedStore after(kRowsRound, limits);
    StoreRows(kRowsJob, kRowsRound).restore(rows, after);
    after.receive(2, {kRowsRound, 0, 0, item(request_of(Opcode::kGet, "/k"))});
    after.run(2, 1, {});
    after.release(after.take_marks());
    const auto message = after.next_frame(2);
    REQUIRE(message);
    CHECK_THAT(std::string(decode_frame(*message).bytes),
               Catch::Matchers::EndsWith(lets_count ? "10" : "9"));
  }
}
