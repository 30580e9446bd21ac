// SPDX-License-Identifier: Apache-2.0
// Wrong or excessive messages of nodes harm nobody else, also after they were read from a journal.
#include "rendezvous/store/proxied_store.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/error.h"
#include "tests/rendezvous/store/all_requests.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::store;
using namespace ddprun::store::testing;
using ddprun::test::Contains;

namespace {

constexpr std::uint64_t kRound = 4;

std::string item(std::uint32_t connection, std::string_view content,
                 ItemKind kind = ItemKind::kData) {
  std::string bytes;
  append_item_head({connection, kind, content.size()}, &bytes);
  return bytes.append(content);
}

// Keeps the turns that took effect, and makes the store anew from them.
class Kept {
 public:
  Kept() { store_.emplace(kRound, limits_); }

  ProxiedStore& store() { return *store_; }

  std::string say(ProxiedStore::Node node, std::string_view bytes,
                  const ProxiedStore::Refusals& refusals = {}) {
    for (std::size_t at = 0; at < bytes.size(); at += kMaxFrameBytes) {
      const std::string_view part = bytes.substr(at, kMaxFrameBytes);
      store_->receive(node, {kRound, taken_[node] + waiting_[node].size(), heard_[node], part});
      waiting_[node] += part;
      if (std::string trouble = run(node, refusals); !trouble.empty()) return trouble;
    }
    return {};
  }
  std::string run(ProxiedStore::Node node, const ProxiedStore::Refusals& refusals = {}) {
    while (store_->is_ready(node)) {
      turns_.push_back(store_->run(node, 3, refusals));
      const std::size_t size = turns_.back().bytes.size();
      taken_[node] += size;
      waiting_[node].erase(0, size);
      if (!turns_.back().trouble.empty()) return turns_.back().trouble;
    }
    return {};
  }

  // The bytes that the node is told. It then has all of them.
  std::string hear(ProxiedStore::Node node) {
    store_->release(store_->take_marks());
    std::string told;
    while (const auto message = store_->next_frame(node)) {
      const ProxyFrame frame = decode_frame(*message);
      told += frame.bytes;
      heard_[node] += frame.bytes.size();
      store_->receive(node, {kRound, 0, heard_[node], {}});
    }
    return told;
  }

  void restart(bool from_snapshot = false) {
    const std::string snapshot = store_->snapshot();
    store_.emplace(kRound, limits_);
    if (from_snapshot) {
      store_->restore(snapshot);
      turns_.clear();
    } else {
      for (const auto& turn : turns_) store_->replay(turn);
    }
    store_->restored();
    for (const auto& [node, position] : taken_) {
      store_->reconnected(node);
      const std::string again = std::exchange(waiting_[node], {});
      try {
        troubles[node] = say(node, again);
      } catch (const Error& error) {
        troubles[node] = error.what();
      }
    }
  }

  std::map<ProxiedStore::Node, std::string> troubles;  // the troubles that restart() found

 private:
  const RequestLimits limits_;
  std::optional<ProxiedStore> store_;
  std::vector<ProxiedStore::Turn> turns_;
  std::map<ProxiedStore::Node, std::uint64_t> taken_, heard_;
  // Bytes that were said, and have not taken effect.
  std::map<ProxiedStore::Node, std::string> waiting_;
};

const std::string kAdd = encoded(request_of_number(Opcode::kAdd, "/k", 1));

}  // namespace

TEST_CASE("ProxiedStore: nonsense of one node is that node's alone, before and after a restart") {
  const std::string cut =
      encoded(request_of(Opcode::kSet, std::string(8000, 'k'), "value")).substr(0, 8009);
  const auto [what, why] = GENERATE_COPY(table<std::string, std::string>(
      {{item(1, cut), "a part of a request"},
       {item(1, kAdd + cut), "a part of a request"},
       {item(1, std::string(20, '\xff')), "no request"},
       {item(1, encoded(request_of(Opcode::kGet, std::string(9000, 'k')))), "no request"},
       {item(1, "bye", ItemKind::kClose), "why a connection ends"},
       {item(1, "?", static_cast<ItemKind>(7)), "kind 7"}}));
  Kept kept;
  CHECK_THAT(kept.say(1, what), Contains(why));
  CHECK(kept.say(2, item(1, kAdd)).empty());
  CHECK_FALSE(kept.hear(2).empty());
  kept.restart(GENERATE(false, true));
  CHECK_FALSE(kept.troubles[1].empty());
  CHECK(kept.troubles[2].empty());
  CHECK(kept.say(2, item(1, kAdd + kAdd)).empty());
  CHECK(kept.hear(2).size() == 2 * (kItemHeadBytes + 8));
  CHECK(kept.store().num_keys() == 1);
}

TEST_CASE("ProxiedStore: a value that many wait for is kept once") {
  Kept kept;
  REQUIRE(kept.say(1, item(1, encoded(request_of(Opcode::kSet, "/k", std::string(1 << 20, 'x')))))
              .empty());
  for (ProxiedStore::Node node = 1; node <= 50; ++node) {
    REQUIRE(kept.say(node, item(7, encoded(request_of(Opcode::kGet, "/k")))).empty());
  }
  CHECK(kept.store().snapshot().size() < std::size_t{3} << 20);
  CHECK(kept.store().total_bytes() < std::size_t{2} << 20);
  kept.restart(true);
  CHECK(kept.store().total_bytes() < std::size_t{3} << 20);
  for (ProxiedStore::Node node = 1; node <= 50; ++node) {
    std::size_t told = 0;
    for (int i = 0; i < 5; ++i) told += kept.hear(node).size();
    REQUIRE(told == kItemHeadBytes + 8 + (1 << 20));
  }
  CHECK(kept.store().total_bytes() < (std::size_t{1} << 20) + 1000);
}

TEST_CASE("ProxiedStore: refused connections that a proxy never closes are counted, and end it") {
  Kept kept;
  const ProxiedStore::Refusals crowded{"", "too many"};
  std::string all;
  for (std::uint32_t name = 1; name <= 70'000; ++name) all += item(name, kAdd);
  std::string trouble;
  for (std::size_t at = 0; at < all.size() && trouble.empty(); at += 1 << 16) {
    trouble = kept.say(1, std::string_view(all).substr(at, 1 << 16), crowded);
    kept.hear(1);
  }
  CHECK_THAT(trouble, Contains("does not close what is refused"));
  CHECK(kept.store().num_clients() == 65'536);
  CHECK(kept.say(2, item(1, kAdd)).empty());
}

TEST_CASE(
    "ProxiedStore: a request in pieces that adds nothing is answered though nothing may grow") {
  Kept kept;
  REQUIRE(kept.say(1, item(1, kAdd)).empty());
  const std::string get = item(1, encoded(request_of(Opcode::kGet, "/k")));
  const ProxiedStore::Refusals full{"full", ""};
  REQUIRE(kept.say(1, get.substr(0, get.size() - 2), full).empty());
  REQUIRE(kept.say(1, get.substr(get.size() - 2), full).empty());
  CHECK(kept.hear(1).size() == 2 * kItemHeadBytes + 8 + 9);
}

TEST_CASE("ProxiedStore: a number that is there may count though nothing may grow") {
  for (const bool lets_count : {true, false}) {  // false: an older ddprund kept the turn
    CAPTURE(lets_count);
    Kept kept;
    const ProxiedStore::Refusals full{"full", "", lets_count};
    REQUIRE(kept.say(1, item(1, encoded(request_of_number(Opcode::kAdd, "/k", 9)))).empty());
    REQUIRE(kept.say(1, item(1, kAdd), full).empty());
    REQUIRE(kept.say(1, item(2, encoded(request_of(Opcode::kAppend, "/k", "0"))), full).empty());
    REQUIRE(
        kept.say(1, item(3, encoded(request_of_number(Opcode::kAdd, "/new", 1))), full).empty());
    const std::string told = kept.hear(1);
    CHECK_THAT(told, Contains("APPEND: full"));
    const bool is_refused = told.find("ADD: full") < told.find("APPEND: full");
    CHECK(is_refused == !lets_count);
    CHECK(told.rfind("ADD: full") > told.find("APPEND: full"));
    kept.restart();
    REQUIRE(kept.say(2, item(1, encoded(request_of(Opcode::kGet, "/k")))).empty());
    CHECK_THAT(kept.hear(2), Catch::Matchers::EndsWith(lets_count ? "10" : "9"));
  }
}

TEST_CASE("ProxiedStore: requests come in pieces of any size") {
  const std::string request = encoded(request_of(Opcode::kSet, "/large", std::string(10'000, 'x')));
  const std::string bytes = item(1, request + kAdd) + item(2, kAdd) + item(1, {}, ItemKind::kClose);
  for (std::size_t piece = 1; piece < bytes.size(); piece = piece * 5 / 2 + 1) {
    CAPTURE(piece);
    Kept kept;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      if (at / piece % 500 == 49) kept.restart(at % 2 == 0);
      REQUIRE(kept.say(1, std::string_view(bytes).substr(at, piece)).empty());
    }
    CHECK(kept.store().num_keys() == 2);
    CHECK(kept.store().num_clients() == 1);
    CHECK(kept.hear(1).size() == 2 * (kItemHeadBytes + 8));
  }
}

TEST_CASE("ProxiedStore: requests of a node that takes no replies wait, and nobody else's do") {
  Kept kept;
  REQUIRE(kept.say(1, item(1, encoded(request_of(Opcode::kSet, "/k", std::string(1 << 20, 'x')))))
              .empty());
  std::string gets;
  for (int i = 0; i < 10'000; ++i) gets += encoded(request_of(Opcode::kGet, "/k"));
  REQUIRE(kept.say(1, item(1, gets)).empty());
  CHECK_FALSE(kept.store().is_ready(1));
  CHECK(kept.say(2, item(1, encoded(request_of_number(Opcode::kAdd, "/n", 1)))).empty());
  CHECK_FALSE(kept.hear(2).empty());
  kept.restart(GENERATE(false, true));
  // Bytes that had not taken effect are said again. No node may send more than the window.
  std::size_t told = 0;
  for (int i = 0; i < 5; ++i) told += kept.hear(1).size();
  CHECK(told > std::size_t{4} << 20);
  CHECK(told < std::size_t{7} << 20);
}

TEST_CASE("ProxiedStore: a peer that exceeds its window, or has what was never said, is an error") {
  Kept kept;
  REQUIRE(kept.say(1, item(1, encoded(request_of(Opcode::kSet, "/k", std::string(5 << 20, 'x')))))
              .empty());
  REQUIRE(kept.say(1, item(1, encoded(request_of(Opcode::kGet, "/k")))).empty());
  std::string adds;
  while (adds.size() < OutgoingBytes::kWindowBytes) adds += kAdd;
  CHECK_THROWS_WITH(kept.say(1, item(1, adds + adds)),
                    Contains("does not wait for acknowledgements"));
  CHECK_THROWS_WITH(kept.store().receive(2, {kRound, 0, 1, {}}),
                    Contains("replies that are not known here"));
  CHECK_THROWS_WITH(kept.store().receive(3, {kRound, 1, 0, {}}),
                    Contains("requests of a store proxy are not known here"));
}

TEST_CASE("ProxiedStore: replies that others caused since don't hide that a node's are lost") {
  const RequestLimits limits;
  const std::string wait = encoded(request_of_keys(Opcode::kWait, {"/x"}));
  ProxiedStore before(kRound, limits);
  before.receive(1, {kRound, 0, 0, item(1, wait + wait + wait)});
  const auto kept = before.run(1, 3, {});
  const std::uint64_t said = kept.bytes.size();
  before.receive(1, {kRound, said, 0, item(2, kAdd)});
  before.run(1, 1, {});  // the row is lost, the reply is not

  ProxiedStore after(kRound, limits);
  after.replay(kept);
  after.restored();
  after.receive(2, {kRound, 0, 0, item(1, encoded(request_of(Opcode::kSet, "/x")))});
  after.run(2, 1, {});
  CHECK_THROWS_WITH(after.receive(1, {kRound, said, kItemHeadBytes + 8, {}}),
                    Contains("replies that are not known here"));
}

TEST_CASE("ProxiedStore: a large request is not gathered if nothing may grow") {
  Kept kept;
  const ProxiedStore::Refusals full{"full", ""};
  const std::string set =
      item(1, encoded(request_of(Opcode::kSet, "/k", std::string(3 << 20, 'x'))));
  REQUIRE(kept.say(1, set + item(2, encoded(request_of(Opcode::kGet, "/k"))), full).empty());
  CHECK(kept.store().total_bytes() < 100);
  kept.restart();
  CHECK(kept.store().total_bytes() < 100);
  CHECK_THAT(kept.hear(1), Contains("full"));
}
