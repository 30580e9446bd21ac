// SPDX-License-Identifier: Apache-2.0
// A StoreState that was saved and loaded again answers like the original.
#include <random>

#include "common/error.h"
#include "common/text.h"
#include "rendezvous/store/store_state.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::store;

namespace {

class RandomRequest {
 public:
  explicit RandomRequest(std::mt19937& random) : random_(random) {}

  const Request& next() {
    constexpr Opcode kOpcodes[] = {Opcode::kSet,       Opcode::kCompareSet, Opcode::kAdd,
                                   Opcode::kWait,      Opcode::kWait,       Opcode::kWait,
                                   Opcode::kDeleteKey, Opcode::kAppend,     Opcode::kQueuePush,
                                   Opcode::kQueuePush, Opcode::kQueuePop,   Opcode::kQueuePop,
                                   Opcode::kBarrier,   Opcode::kCancelWait, Opcode::kListKeys,
                                   Opcode::kMultiSet,  Opcode::kQueueLen,   Opcode::kGet};
    request_ = {};
    request_.opcode = kOpcodes[random_() % std::size(kOpcodes)];
    for (std::string& key : keys_) key = concat("/", random_() % 6);
    value_ = std::to_string(static_cast<int>(random_() % 9) - 4);
    request_.key = keys_[0];
    request_.value = value_;
    request_.number = request_.opcode == Opcode::kBarrier ? 3 : static_cast<int>(random_() % 5) - 2;
    for (std::size_t i = 0; i < 1 + random_() % 3; ++i) {
      request_.keys.push_back(keys_[i]);
      request_.values.push_back(value_);
    }
    return request_;
  }

 private:
  std::mt19937& random_;
  Request request_;
  std::string keys_[3], value_;
};

std::string text_of(const Outcome& outcome) {
  std::string text = outcome.close_reason;
  for (const Reply& reply : outcome.replies) {
    text += concat(" to ", reply.to, ": ", reply.bytes, reply.body ? *reply.body : "");
  }
  return text;
}

std::unique_ptr<StoreState> copy_of(const StoreState& state) {
  std::string bytes;
  state.save(&bytes);
  auto copy = std::make_unique<StoreState>();
  SnapshotReader in(bytes);
  copy->load(in);
  CHECK(in.at_end());
  return copy;
}

}  // namespace

TEST_CASE("StoreState: a loaded one answers as the one that was saved") {
  std::mt19937 random(1);
  std::size_t num_woken = 0, most_waits = 0;
  for (int world = 0; world < 300; ++world) {
    CAPTURE(world);
    auto one = std::make_unique<StoreState>(), other = std::make_unique<StoreState>();
    RandomRequest requests(random);
    for (int i = 0; i < 200; ++i) {
      if (random() % 8 == 0) other = copy_of(*other);
      const auto from = static_cast<ConnectionId>(1 + random() % 5);
      if (random() % 16 == 0) {
        REQUIRE(text_of(one->disconnect(from)) == text_of(other->disconnect(from)));
        continue;
      }
      const Request& request = requests.next();
      const std::string_view refusal = random() % 8 == 0 ? "full" : "";
      const Outcome& outcome = one->step(from, request, refusal);
      for (const Reply& reply : outcome.replies) num_woken += reply.to != from ? 1 : 0;
      REQUIRE(text_of(outcome) == text_of(other->step(from, request, refusal)));
      REQUIRE(one->num_keys() == other->num_keys());
      REQUIRE(one->num_waits() == other->num_waits());
      REQUIRE(one->content_bytes() == other->content_bytes());
      most_waits = std::max(most_waits, one->num_waits());
    }
  }
  CHECK(num_woken > 1'000);
  CHECK(most_waits > 5);
}

TEST_CASE("StoreState: a content that is cut off is not loaded") {
  StoreState state;
  Request request;
  request.opcode = Opcode::kSet;
  request.key = "/k";
  request.value = "value";
  state.step(1, request);
  std::string bytes;
  state.save(&bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    StoreState other;
    SnapshotReader in(std::string_view(bytes).substr(0, size));
    CHECK_THROWS_AS(other.load(in), Error);
  }
}
