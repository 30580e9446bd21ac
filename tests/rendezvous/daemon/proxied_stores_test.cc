// SPDX-License-Identifier: Apache-2.0
// Stores behind proxies while connections end and the rendezvous' process dies. Later messages
// continue those before as if nothing had happened.
#include "rendezvous/daemon/proxied_stores.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <set>

#include "common/text.h"
#include "rendezvous/journal/row.h"
#include "tests/rendezvous/store/all_requests.h"
#include "tests/rendezvous/store/many_keys.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::rendezvous;
using namespace ddprun::store;
using namespace ddprun::store::testing;

namespace {

constexpr std::uint64_t kJob = 7, kRound = 3;

const Clock::time_point kNow{std::chrono::hours(1)};

ProxiedStores::Options options(std::function<void(ProxiedStores::ConnectionId, std::string)> send) {
  ProxiedStores::Options made;
  made.is_journalled = true;
  made.send = std::move(send);
  made.trouble = [](auto, const std::string& why) { FAIL(why); };
  return made;
}

// A node's end, without sockets. It adds, waits for a barrier, and keeps what it is told.
class Node {
 public:
  std::string next_frame() {
    const std::uint64_t position = out_.position();
    const std::string bytes = heard_ ? out_.take(kMaxFrameBytes) : std::string();
    in_.acknowledged(in_.received());
    return encode_frame({kRound, position, in_.received(), bytes});
  }
  void hear(std::string_view message) {
    const ProxyFrame frame = decode_frame(message);
    REQUIRE(out_.acknowledge(frame.received));
    heard_ = true;
    const auto bytes = in_.receive(frame.position, frame.bytes);
    REQUIRE(bytes);
    items_.read(*bytes, [&](const ItemHead& head, std::string_view content, bool) {
      (head.kind == ItemKind::kData ? replies : refusals)[head.connection] += content;
    });
  }
  void reconnect() {
    out_.rewind();
    in_.rewind();
    heard_ = false;
  }
  void ask(std::uint32_t connection, const Request& request) {
    const std::string bytes = encoded(request);
    std::string head;
    append_item_head({connection, ItemKind::kData, bytes.size()}, &head);
    out_.write(head + bytes);
  }
  void close(std::uint32_t connection) {
    std::string head;
    append_item_head({connection, ItemKind::kClose, 0}, &head);
    out_.write(head);
  }
  bool all_heard() const { return out_.unacknowledged_bytes() == 0; }

  std::map<std::uint32_t, std::string> replies, refusals;  // by connection

 private:
  OutgoingBytes out_;
  IncomingBytes in_;
  ItemReader items_;
  bool heard_ = false;
};

Request add_one(std::string_view key) { return request_of_number(Opcode::kAdd, key, 1); }

ProxiedStores::Seat seat_in(std::uint64_t job, std::uint64_t node, std::uint64_t round = kRound) {
  return [=] { return membership::Seat{job, node, round, membership::StoreMode::kProxy}; };
}

ProxiedStores::Seat seat_of(std::uint64_t node, std::uint64_t round = kRound) {
  return seat_in(kJob, node, round);
}

std::optional<membership::Seat> no_seat() { return std::nullopt; }

// The journal keeps the changes. Then their replies are said.
void keep(ProxiedStores& stores, journal::Rows& rows) {
  journal::apply_batch(stores.take_changes(), rows);
  stores.release(stores.take_marks());
}

class World {
 public:
  explicit World(unsigned seed) : random_(seed) { begin(); }

  void run() {
    for (int i = 0; i < 600; ++i) {
      switch (random_() % 12) {
        case 0:
          cut(random_() % kNodes);
          break;
        case 1:
          if (random_() % 8 == 0) crash();
          break;
        case 2:
        case 3:
        case 4:
          say(random_() % kNodes);
          break;
        case 5:
        case 6:
        case 7:
          commit();
          break;
        default:
          exchange(random_() % kNodes);
      }
    }
    settle();
    for (auto& node : nodes_) {  // the last arrivals at the barrier
      node.ask(kBarrierClient, request_of_number(Opcode::kBarrier, "/barrier", kNodes));
      if (random_() % 2) crash();
    }
    settle();
  }

  void check() {
    std::set<std::int64_t> sums;
    std::size_t num_replies = 0;
    for (const auto& node : nodes_) {
      for (const auto& [connection, bytes] : node.replies) {
        if (connection == kBarrierClient) {
          CHECK(bytes == std::string(1, '\0'));
          continue;
        }
        REQUIRE(bytes.size() % 8 == 0);
        for (std::size_t at = 0; at < bytes.size(); at += 8) {
          std::int64_t sum = 0;
          std::memcpy(&sum, bytes.data() + at, 8);
          sums.insert(sum);
          ++num_replies;
        }
      }
      CHECK(node.replies.contains(kBarrierClient));
    }
    CHECK(num_replies == num_adds_);
    CHECK(sums.size() == num_adds_);
    if (num_adds_ > 0) CHECK(*sums.rbegin() == static_cast<std::int64_t>(num_adds_));
  }

  int num_crashes = 0, num_snapshots = 0;

 private:
  static constexpr std::size_t kNodes = 3;
  static constexpr std::uint32_t kBarrierClient = 99;

  void begin() {
    stores_ = std::make_unique<ProxiedStores>(options([this](auto connection, std::string message) {
      for (std::size_t i = 0; i < kNodes; ++i) {
        if (connections_[i] == connection) under_way_[i].push_back(std::move(message));
      }
    }));
    stores_->restore(rows_, [](std::uint64_t, const std::string& why) { FAIL(why); });
    for (std::size_t i = 0; i < kNodes; ++i) cut(i);
  }

  void cut(std::size_t node) {
    stores_->closed(connections_[node]);
    connections_[node] = next_connection_++;
    under_way_[node].clear();
    nodes_[node].reconnect();
  }

  // Changes that were not committed are lost.
  void crash() {
    ++num_crashes;
    uncommitted_.clear();
    begin();
  }

  void say(std::size_t node) {
    const auto connection = static_cast<std::uint32_t>(1 + random_() % 3);
    if (random_() % 3 == 0) {
      const std::string key = concat("/value", random_() % 5), value(60'000, 'x');
      nodes_[node].ask(connection, request_of(Opcode::kSet, key, value));
      return;
    }
    ++num_adds_;
    nodes_[node].ask(connection, add_one("/sum"));
  }

  void exchange(std::size_t node) {
    stores_->received(connections_[node], seat_of(node), nodes_[node].next_frame(), kNow);
    while (stores_->next_turn()) stores_->go_on(kNow);
    auto changes = stores_->take_changes();
    for (const auto& change : changes)
      num_snapshots += change.key.ends_with("base/00000000000000000000");
    uncommitted_.emplace_back(std::move(changes), stores_->take_marks());
    while (!under_way_[node].empty()) {
      const std::string message = std::move(under_way_[node].front());
      under_way_[node].pop_front();
      nodes_[node].hear(message);
    }
  }

  void commit() {
    if (uncommitted_.empty()) return;
    const auto [batch, marks] = std::move(uncommitted_.front());
    uncommitted_.pop_front();
    journal::apply_batch(batch, rows_);
    stores_->release(marks);
  }

  void settle() {
    for (int quiet = 0, turn = 0; quiet < 5; ++quiet, ++turn) {
      for (std::size_t i = 0; i < kNodes; ++i) exchange(i);
      while (!uncommitted_.empty()) commit();
      const bool busy =
          std::ranges::any_of(nodes_, [](const Node& node) { return !node.all_heard(); });
      if (!busy) continue;
      quiet = -1;
      // Small acknowledgements go out only with a new connection.
      for (std::size_t i = 0; turn % 4 == 3 && i < kNodes; ++i) cut(i);
    }
  }

  std::mt19937 random_;
  journal::Rows rows_;
  std::unique_ptr<ProxiedStores> stores_;
  std::array<Node, kNodes> nodes_;
  std::array<ProxiedStores::ConnectionId, kNodes> connections_{};
  std::array<std::deque<std::string>, kNodes> under_way_;
  std::deque<std::pair<journal::Batch, std::vector<ProxiedStores::Marks>>> uncommitted_;
  ProxiedStores::ConnectionId next_connection_ = 1;
  std::size_t num_adds_ = 0;
};

}  // namespace

TEST_CASE("ProxiedStores: ends of connections and of the process lose and repeat nothing") {
  int num_crashes = 0, num_snapshots = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    World world(seed);
    world.run();
    world.check();
    num_crashes += world.num_crashes;
    num_snapshots += world.num_snapshots;
  }
  CHECK(num_crashes > 60);
  CHECK(num_snapshots > 60);
}

TEST_CASE("ProxiedStores: rows of a job that is over are erased, missing ones are named") {
  std::vector<std::string> said;
  ProxiedStores stores(options([&](auto, const std::string& message) { said.push_back(message); }));
  Node node;
  journal::Rows rows;
  for (int i = 0; i < 3; ++i) {
    stores.received(1, seat_of(0), node.next_frame(), kNow);
    CHECK(said.empty());  // nothing is said before it is kept
    keep(stores, rows);
    REQUIRE(said.size() == 1);
    node.hear(said.back());
    said.clear();
    node.ask(1, add_one("/k"));
  }
  REQUIRE(rows.size() == 2);

  journal::Rows torn = rows;
  torn.erase(torn.begin());
  std::string why;
  ProxiedStores later(options([](auto, const std::string&) {}));
  later.restore(torn, [&](std::uint64_t job, const std::string& text) {
    CHECK(job == kJob);
    why = text;
  });
  CHECK(why == "rows of its store are missing");
  CHECK(later.take_changes().size() == 1);

  // Workers may still be stopping. Their store is still there, without rows in the journal.
  stores.keep_only([](std::uint64_t) { return false; });
  keep(stores, rows);
  CHECK(rows.empty());
  node.ask(1, add_one("/k"));
  stores.received(1, no_seat, node.next_frame(), kNow);
  keep(stores, rows);
  CHECK(rows.empty());
  REQUIRE(said.size() == 1);
  node.hear(said.back());
  CHECK(node.replies[1].size() == 4 * 8);
}

TEST_CASE("ProxiedStores: a log takes the rows of the one before the last snapshot") {
  std::vector<std::string> said;
  ProxiedStores stores(options([&](auto, const std::string& message) { said.push_back(message); }));
  Node node;
  journal::Rows rows;
  std::size_t num_snapshots = 0, num_erased = 0, most_rows = 0;
  const auto set = [&](int number) {
    node.ask(1,
             request_of(Opcode::kSet, "/value", std::string(50'000, 'x') + std::to_string(number)));
    node.ask(1, add_one("/sum"));  // SET has no reply
    for (int turn = 0; node.replies[1].size() < 8 * static_cast<std::size_t>(number); ++turn) {
      REQUIRE(turn < 10);
      stores.received(1, seat_of(0), node.next_frame(), kNow);
      const journal::Batch changes = stores.take_changes();
      for (const auto& change : changes) {
        num_snapshots += change.key.ends_with("base/00000000000000000000");
        num_erased += !change.content && num_snapshots > 1;
      }
      journal::apply_batch(changes, rows);
      stores.release(stores.take_marks());
      for (const std::string& message : std::exchange(said, {})) node.hear(message);
    }
    most_rows = std::max(most_rows, rows.size());
  };
  int number = 0;
  while (num_snapshots < 4) set(++number);
  CHECK(num_erased < 4);  // logs of the same length are overwritten each time
  for (int i = 0; i < 3; ++i) set(++number);
  CHECK(rows.size() + num_erased >= most_rows);  // left-over rows are overwritten, too
  CHECK(most_rows < 100);

  const auto restored = [](const journal::Rows& kept, std::string* why) {
    auto made = std::make_unique<ProxiedStores>(options([](auto, const std::string&) {}));
    made->restore(kept, [&](std::uint64_t, const std::string& text) { *why = text; });
    return made;
  };
  std::string why;
  const auto again = restored(rows, &why);
  CHECK(why.empty());
  CHECK(again->usage().bytes == stores.usage().bytes);
  again->keep_only([](std::uint64_t) { return false; });
  journal::Rows left = rows;
  journal::apply_batch(again->take_changes(), left);
  CHECK(left.empty());  // rows without a meaning are erased, too

  journal::Rows without = rows;
  without.erase(without.begin());  // erases the snapshot
  restored(without, &why);
  CHECK(why == "rows of its store are missing");
  without = rows;
  without.erase(std::next(without.begin()));  // erases the first row of the log
  why.clear();
  restored(without, &why);
  CHECK(why == "rows of its store are missing");
}

TEST_CASE("ProxiedStores: the next round ends the one before it, its rows and its connections") {
  std::vector<std::string> said;
  ProxiedStores stores(options([&](auto, const std::string& message) { said.push_back(message); }));
  journal::Rows rows;
  std::array<Node, 2> nodes;
  for (std::uint64_t i = 0; i < 2; ++i) {
    nodes[i].ask(1, add_one("/k"));
    stores.received(i, seat_of(i), nodes[i].next_frame(), kNow);
    keep(stores, rows);
    nodes[i].hear(said.back());
    nodes[i].ask(1, add_one("/k"));
    stores.received(i, seat_of(i), nodes[i].next_frame(), kNow);
    keep(stores, rows);
  }
  CHECK(rows.size() == 2);
  CHECK(stores.usage().stores == 1);
  CHECK(stores.usage().keys == 1);
  CHECK(stores.usage().connections == 2);
  Node next;
  std::string frame = next.next_frame();
  const std::uint64_t round = kRound + 1;
  std::memcpy(frame.data() + 4, &round, sizeof round);
  stores.received(0, seat_of(0, round), frame, kNow);
  keep(stores, rows);
  CHECK(rows.empty());
  CHECK(stores.usage().keys == 0);
  // This node is still in the round before.
  nodes[1].ask(1, add_one("/k"));
  stores.received(1, seat_of(1, round), nodes[1].next_frame(), kNow);
  keep(stores, rows);
  CHECK(rows.empty());
}

// The node may come back. Only its round's end says that it won't.
TEST_CASE("ProxiedStores: a wait of a node that vanishes stays and counts until the round ends") {
  ProxiedStores stores(options([](auto, const std::string&) {}));
  journal::Rows rows;
  Node vanishes;
  stores.received(1, seat_of(0), vanishes.next_frame(), kNow);
  vanishes.hear(encode_frame({kRound, 0, 0, {}}));
  vanishes.ask(1, request_of_keys(Opcode::kWait, {"/k"}));
  stores.received(1, seat_of(0), vanishes.next_frame(), kNow);
  keep(stores, rows);
  const std::size_t waiting = stores.usage().bytes;
  CHECK(waiting > 0);
  stores.closed(1);
  CHECK_FALSE(stores.in_use());
  Node other;
  stores.received(2, seat_of(1), other.next_frame(), kNow);
  keep(stores, rows);
  CHECK(stores.usage().connections == 1);
  CHECK(stores.usage().bytes == waiting);
  stores.keep_only([](std::uint64_t) { return false; });
  stores.closed(2);
  CHECK(stores.usage().connections == 0);
  CHECK(stores.usage().bytes == 0);
}

TEST_CASE(
    "ProxiedStores: requests of a node that asks for too much a second wait, and all are "
    "answered") {
  std::vector<std::string> said;
  auto slow = options([&](auto, const std::string& message) { said.push_back(message); });
  slow.of_job.requests = 100;
  ProxiedStores stores(slow);
  Node node;
  stores.received(1, seat_of(0), node.next_frame(), kNow);
  stores.release(stores.take_marks());
  node.hear(said.back());
  for (int i = 0; i < 250; ++i) node.ask(1, add_one("/k"));
  Clock::time_point now = kNow;
  stores.received(1, seat_of(0), node.next_frame(), now);
  const auto hear_all = [&] {
    said.clear();
    stores.release(stores.take_marks());
    for (const std::string& message : said) node.hear(message);
    return node.replies[1].size() / 8;
  };
  CHECK(hear_all() == 100);
  int num_turns = 0;
  for (; stores.next_turn(); ++num_turns) {
    REQUIRE(num_turns < 1000);
    REQUIRE(*stores.next_turn() >= now);
    now = *stores.next_turn();
    stores.go_on(now);
  }
  CHECK(hear_all() == 250);
  CHECK(now - kNow >= std::chrono::milliseconds(1'490));
  CHECK(now - kNow < std::chrono::milliseconds(1'600));
}

TEST_CASE("ProxiedStores: each node and job gets its share of limited requests a second") {
  auto slow = options([](auto, const std::string&) {});
  std::map<ProxiedStores::ConnectionId, std::string> said;
  slow.send = [&](auto connection, const std::string& message) { said[connection] += message; };
  slow.in_all.requests = 200;
  ProxiedStores stores(slow);
  std::array<Node, 3> nodes;
  const auto seat = [](std::uint64_t i) { return seat_in(kJob + i / 2, i % 2); };
  const auto hear = [&] {
    stores.release(stores.take_marks());
    for (std::uint64_t i = 0; i < 3; ++i) {
      const std::string message = std::exchange(said[i], {});
      if (!message.empty()) nodes[i].hear(message);
    }
  };
  for (std::uint64_t i = 0; i < 3; ++i) stores.received(i, seat(i), nodes[i].next_frame(), kNow);
  hear();
  for (int i = 0; i < 3000; ++i) nodes[0].ask(1, add_one("/k"));
  for (int i = 0; i < 100; ++i) nodes[1].ask(1, add_one("/k"));
  for (int i = 0; i < 100; ++i) nodes[2].ask(1, add_one("/k"));
  Clock::time_point now = kNow;
  for (std::uint64_t i = 0; i < 3; ++i) stores.received(i, seat(i), nodes[i].next_frame(), now);
  while (now < kNow + std::chrono::milliseconds(2'500)) {
    REQUIRE(stores.next_turn());
    now = std::max(now, *stores.next_turn());
    stores.go_on(now);
  }
  hear();
  CHECK(nodes[1].replies[1].size() == 100 * 8);
  CHECK(nodes[2].replies[1].size() == 100 * 8);
  CHECK(nodes[0].replies[1].size() > 300 * 8);
}

TEST_CASE("ProxiedStores: a node's large requests wait, and no other node's requests do") {
  std::map<ProxiedStores::ConnectionId, Node> nodes;
  ProxiedStores stores(
      options([&](auto to, const std::string& message) { nodes[to].hear(message); }));
  std::vector<std::string> names;
  for (int i = 0; i < 20'000; ++i) names.push_back("/" + std::to_string(i));
  const Request large = request_of_keys(Opcode::kCheck, {names.begin(), names.end()});
  const auto say = [&](ProxiedStores::ConnectionId node, Clock::time_point now) {
    for (int i = 0; i < 8; ++i) {
      stores.received(node, seat_of(node), nodes[node].next_frame(), now);
      stores.go_on(now);
      stores.release(stores.take_marks());
    }
  };
  say(1, kNow);
  say(2, kNow);
  for (int i = 0; i < 5; ++i) nodes[1].ask(1, large);
  say(1, kNow);
  CHECK(nodes[1].replies[1].size() == 3);
  nodes[2].ask(1, add_one("/k"));
  say(2, kNow);
  CHECK(nodes[2].replies[1].size() == 8);
  nodes[2].ask(1, large);  // its wait is for its own large requests, not for another node's
  say(2, kNow);
  CHECK(nodes[2].replies[1].size() == 8 + 1);
  CHECK(nodes[1].replies[1].size() == 3);
  say(1, kNow + std::chrono::seconds(2));
  CHECK(nodes[1].replies[1].size() == 5);

  // A connection that goes with many waits counts as one of its node's large requests.
  say(3, kNow);
  for (std::size_t i = 0; i < names.size(); i += 5'000) {
    const auto first = names.begin() + static_cast<std::ptrdiff_t>(i);
    nodes[3].ask(1, request_of_keys(Opcode::kWait, {first, first + 5'000}));
  }
  nodes[3].close(1);
  for (int i = 0; i < 5; ++i) nodes[3].ask(2, large);
  say(3, kNow);
  CHECK(nodes[3].replies[2].size() == 2);
}

TEST_CASE("ProxiedStores: many nodes' requests let others have the thread, and all have turns") {
  constexpr std::size_t kNumNodes = 60, kRequests = 3'000;
  std::map<ProxiedStores::ConnectionId, Node> nodes;
  std::size_t num_replies = 0;
  ProxiedStores stores(
      options([&](auto to, const std::string& message) { nodes[to].hear(message); }));
  const auto all_say = [&] {
    for (std::size_t i = 1; i <= kNumNodes; ++i)
      stores.received(i, seat_of(i), nodes[i].next_frame(), kNow);
  };
  const auto num_done_since = [&] {
    stores.release(stores.take_marks());
    const std::size_t before = std::exchange(num_replies, 0);
    for (auto& [to, node] : nodes) num_replies += node.replies[1].size() / 8;
    return num_replies - before;
  };
  all_say();  // each hears of the round
  num_done_since();
  for (auto& [to, node] : nodes) {
    for (std::size_t i = 0; i < kRequests; ++i) node.ask(1, add_one("/k"));
  }
  constexpr std::size_t kAtOnce = kWakeUpWork + kTurnWork;
  all_say();
  CHECK(num_done_since() <= kAtOnce);
  for (std::size_t i = 0; stores.next_turn() && i < kNumNodes * kRequests; ++i) {
    stores.go_on(kNow);
    CHECK(num_done_since() <= kAtOnce);
  }
  CHECK(num_replies == kNumNodes * kRequests);
}

TEST_CASE("ProxiedStores: a number may count on at a limit, also after a restart") {
  journal::Rows rows;
  std::vector<std::string> said;
  auto small = options([&](auto, const std::string& message) { said.push_back(message); });
  small.of_job.keys = 1;
  auto stores = std::make_unique<ProxiedStores>(small);
  Node node;
  const auto exchange = [&] {
    said.clear();
    stores->received(1, seat_of(0), node.next_frame(), kNow);
    keep(*stores, rows);
    for (const std::string& message : said) node.hear(message);
  };
  exchange();
  for (const int number : {9, 1}) {
    node.ask(1, request_of_number(Opcode::kAdd, "/k", number));
    exchange();
  }
  CHECK(node.replies[1].size() == 2 * 8);
  stores = std::make_unique<ProxiedStores>(small);
  stores->restore(rows, [](auto, const std::string& why) { FAIL(why); });
  node.reconnect();
  exchange();
  node.ask(2, request_of(Opcode::kGet, "/k"));
  exchange();
  CHECK_THAT(node.replies[2], Catch::Matchers::EndsWith("10"));
}

TEST_CASE("ProxiedStores: the stores of one job, and of all, stay limited after a restart") {
  journal::Rows rows;
  std::vector<std::string> said;
  auto small = options([&](auto, const std::string& message) { said.push_back(message); });
  small.of_job.keys = 3;
  small.in_all.connections = 2;
  auto stores = std::make_unique<ProxiedStores>(small);
  Node node;
  const auto exchange = [&] {
    said.clear();
    stores->received(1, seat_of(0), node.next_frame(), kNow);
    while (stores->next_turn()) stores->go_on(kNow);
    keep(*stores, rows);
    for (const std::string& message : said) node.hear(message);
  };
  exchange();
  for (const char* key : {"/a", "/b", "/c"}) node.ask(1, add_one(key));
  node.ask(2, add_one("/c"));
  exchange();
  node.ask(3, add_one("/c"));  // this is a third connection
  exchange();
  CHECK(node.refusals[3] ==
        "all jobs' stores in the rendezvous have 2 connections, the limit is 2 (ddprund "
        "--limits=connections=N)");
  node.ask(2, add_one("/c"));
  node.ask(1, add_one("/d"));
  node.ask(1, add_one("/c"));
  exchange();
  CHECK(node.refusals[1] ==
        "ADD: this job's stores in the rendezvous have 3 keys, the limit is 3 (ddprund "
        "--job-limits=keys=N)");
  CHECK(node.replies[1].size() == 3 * 8);
  CHECK(node.replies[2].size() == 2 * 8);

  // A ddprund with other limits comes to the same result from these rows.
  stores = std::make_unique<ProxiedStores>(
      options([&](auto, const std::string& message) { said.push_back(message); }));
  stores->restore(rows, [](auto, const std::string& why) { FAIL(why); });
  CHECK(stores->usage().keys == 3);
  CHECK(stores->usage().connections == 3);  // two of them were refused, and are still open
  node.reconnect();
  exchange();
  node.ask(2, add_one("/c"));
  exchange();
  std::int64_t sum = 0;
  REQUIRE(node.replies[2].size() == 3 * 8);
  std::memcpy(&sum, node.replies[2].data() + 16, 8);
  CHECK(sum == 4);
}

TEST_CASE("ProxiedStores: a node that has replies which the journal lost is told so") {
  std::vector<std::string> said, troubles;
  ProxiedStores before(options([&](auto, const std::string& message) { said.push_back(message); }));
  Node node;
  for (int i = 0; i < 2; ++i) {
    before.received(1, seat_of(0), node.next_frame(), kNow);
    before.release(before.take_marks());
    node.hear(said.back());
    if (i == 0) node.ask(1, add_one("/k"));
  }
  auto named = options([&](auto, const std::string& message) { said.push_back(message); });
  named.trouble = [&](auto, const std::string& why) { troubles.push_back(why); };
  ProxiedStores after(named);  // this one has kept nothing
  after.received(1, seat_of(0), node.next_frame(), kNow);
  REQUIRE(troubles.size() == 1);
  CHECK(troubles[0] == "a store proxy has replies that are not known here");
}

TEST_CASE("ProxiedStores: nobody waits while the many keys of a store that ends are freed") {
  std::vector<std::string> said;
  auto plain = options([&](auto, const std::string& message) { said.push_back(message); });
  plain.is_journalled = false;
  std::function<bool()> some;
  plain.in_turns = [&](std::function<bool()> given) { some = std::move(given); };
  ProxiedStores stores(plain);
  Node node;
  for (int key = 0; key < kManyKeys; ++key) {
    node.ask(1, request_of(Opcode::kSet, std::to_string(key)));
  }
  node.ask(1, request_of(Opcode::kGetNumKeys));  // SETs have no reply, so not all are acknowledged
  do {
    stores.received(1, seat_of(0), node.next_frame(), kNow);
    while (stores.next_turn()) stores.go_on(kNow);
    stores.release(stores.take_marks());
    for (const std::string& message : std::exchange(said, {})) node.hear(message);
  } while (node.replies[1].empty());
  REQUIRE(stores.usage().keys == kManyKeys);
  double longest = cpu_seconds_of([&] {
    stores.keep_only([](std::uint64_t) { return false; });
    stores.closed(1);
  });
  CHECK(stores.usage().keys == kManyKeys);  // they count until they are freed
  for (bool goes_on = true; goes_on;) {
    longest = std::max(longest, cpu_seconds_of([&] { goes_on = some(); }));
  }
  some = nullptr;
  CHECK(stores.usage().stores == 0);
  CHECK(stores.usage().keys == 0);
  CHECK(longest < seconds_to_free_many_keys() / 2);
}

TEST_CASE("store limits: names and units") {
  StoreLimits limits;
  CHECK(set_limits("keys=5k,bytes=2GiB", limits).empty());
  CHECK(set_limits("requests=10,connections=3M", limits).empty());
  CHECK(limits.keys == 5'000);
  CHECK(limits.bytes == std::uint64_t{2} << 30);
  CHECK(limits.requests == 10);
  CHECK(limits.connections == 3'000'000);
  for (const char* bad : {"", "keys", "keys=", "keys=x", "keys=1T", "keys=-1", "nodes=3", "keys=1,",
                          "bytes=99999999999GiB"}) {
    CHECK_FALSE(set_limits(bad, limits).empty());
  }
}
