// SPDX-License-Identifier: Apache-2.0
// Every way in which transactions can be cut off, lost, repeated and late, with a map as etcd.
#include <memory>
#include <random>
#include <string>

#include "common/text.h"
#include "rendezvous/ha/etcd_journal.h"
#include "rendezvous/journal/row.h"
#include "tests/rendezvous/ha/model_store.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/seed.h"

namespace ddprun::ha::testing {
namespace {

using journal::apply_batch;
using journal::Batch;
using journal::Deposed;
using journal::Rows;

constexpr char kPrefix[] = "p";
// Limits so small that a few short rows are a large batch, and 30 bytes are a large row.
constexpr EtcdJournal::Limits kTiny{3, 64, 20};

struct Leader {
  Leader(ModelKeys& keys, Random& random, double fault_rate = 0) {
    const std::int64_t leadership = keys.lead(leader_key(kPrefix));
    auto made = std::make_unique<FaultyStore>(keys, random, fault_rate);
    store = made.get();
    journal =
        std::make_unique<EtcdJournal>(std::move(made), "etcd://test", kPrefix, leadership, kTiny);
  }
  FaultyStore* store = nullptr;
  std::unique_ptr<EtcdJournal> journal;
};

Batch random_batch(Random& random) {
  Batch batch;
  const std::size_t num_rows = random() % 4 == 0 ? 1 + random() % 12 : 1 + random() % 2;
  for (std::size_t i = 0; i < num_rows; ++i) {
    const std::string key = concat("r/", random() % 15);
    if (random() % 4 == 0) {
      batch.push_back({key, std::nullopt});
    } else {
      const std::size_t size = random() % 5 == 0 ? random() % 300 : random() % 15;
      batch.push_back({key, concat(random() % 1000, std::string(size, 'x'))});
    }
  }
  return batch;
}

// The content for a new reader, without faults and without a write.
journal::Content content_of(ModelKeys& keys, Random& random) {
  ModelKeys copy = keys;
  return Leader(copy, random).journal->load();
}

std::size_t num_keys(const ModelKeys& keys, const std::string& prefix) {
  return keys.with_prefix(prefix).size();
}

// Checks that a batch that was cut off is there as a whole, or not at all. Returns which.
bool is_whole(ModelKeys& keys, Random& random, const Rows& before, const Rows& after) {
  const auto content = content_of(keys, random);
  CHECK(content.losses.empty());
  CHECK((content.rows == before || content.rows == after));
  return content.rows != before;
}

TEST_CASE("EtcdJournal: a batch that is cut off anywhere is there as a whole, or not at all") {
  Random random(1);
  const Batch first{{"a", "1"}, {"b", std::string(200, 'b')}, {"c", "3"}};
  Batch large{{"a", std::nullopt}, {"b", std::string(300, 'B')}, {"d", std::string(100, 'd')}};
  for (int i = 0; i < 10; ++i) large.push_back({concat("e", i), concat(i)});
  Rows before, after;
  apply_batch(first, before), apply_batch(first, after), apply_batch(large, after);
  bool has_ended = false;
  int num_before = 0, num_after = 0;
  for (int cut = 0; !has_ended; ++cut) {
    ModelKeys keys;
    Leader leader(keys, random);
    CHECK(leader.journal->load().rows.empty());
    leader.journal->commit(first);
    int left = cut;
    leader.store->before_each = [&] {
      if (left-- == 0) keys.lead(leader_key(kPrefix));
    };
    std::optional<ModelKeys> at_cut;
    try {
      leader.journal->commit(large);
      CHECK(content_of(keys, random).rows == after);
      has_ended = left >= 0;
    } catch (const Deposed&) {
    }
    leader.store->before_each = nullptr;
    const bool whole = is_whole(keys, random, before, after);
    (whole ? num_after : num_before) += 1;
    if (has_ended) break;
    // A deposed leader changes nothing any more. The new leader goes on, and leaves nothing over.
    const auto kept = keys.keys;
    CHECK_THROWS_AS(leader.journal->commit({{"a", "late"}}), Deposed);
    CHECK_THROWS_AS(leader.journal->commit({}), Deposed);
    CHECK(keys.keys == kept);
    Leader next(keys, random);
    CHECK(next.journal->load().rows == (whole ? after : before));
    next.journal->commit({{"z", "new"}});
    next.journal->commit({{"z", "newer"}});
    Rows expected = whole ? after : before;
    expected["z"] = "newer";
    CHECK(content_of(keys, random).rows == expected);
    CHECK(num_keys(keys, log_prefix(kPrefix)) == 0);
    CHECK(num_keys(keys, blobs_prefix(kPrefix)) == (whole ? 7 : 4));
  }
  CHECK(num_before > 5);
  CHECK(num_after > 3);
}

TEST_CASE(
    "EtcdJournal: batches between the parts of a large one are there, wherever it is cut off") {
  Random random(1);
  Batch large{{"a", std::string(300, 'A')}, {"b", "2"}};
  for (int i = 0; i < 20; ++i) large.push_back({concat("e", i), concat(i)});
  bool has_ended = false;
  int most_between = 0, num_before = 0, num_after = 0;
  for (int cut = 0; !has_ended; ++cut) {
    ModelKeys keys;
    Leader leader(keys, random);
    leader.journal->load();
    int left = cut, num_between = 0;
    leader.store->before_each = [&] {
      if (left-- == 0) keys.lead(leader_key(kPrefix));
    };
    Rows before, after;
    apply_batch(large, after);
    try {
      leader.journal->commit_in_parts(large, [&](const EtcdJournal::CommitNow& commit_now) {
        const Batch decision{{"z", concat(num_between)}};
        const bool is_kept = commit_now(decision);
        CHECK(is_kept);
        apply_batch(decision, before);
        apply_batch(decision, after);
        ++num_between;
        const bool may_be_large = commit_now({{"y", std::string(30, 'y')}});
        CHECK_FALSE(may_be_large);
        commit_now({});
      });
      has_ended = left >= 0;
    } catch (const Deposed&) {
    }
    leader.store->before_each = nullptr;
    (is_whole(keys, random, before, after) ? num_after : num_before) += 1;
    most_between = std::max(most_between, num_between);
  }
  CHECK(num_before > 10);
  CHECK(num_after > 10);
  CHECK(most_between > 10);
}

TEST_CASE("EtcdJournal: lost, repeated and late transactions, leaders that come and go") {
  Random random(test::seed());
  int num_worlds = 0, num_failed = 0, num_deposed = 0, num_cut = 0;
  // By then the rare events have happened. A few seeds in a thousand need more than 30 worlds.
  const auto has_seen_all = [&] { return num_worlds >= 30 && num_failed > 50 && num_cut > 10; };
  for (; !has_seen_all() && num_worlds < 300; ++num_worlds) {
    ModelKeys keys;
    Rows model;
    for (int term = 0; term < 12; ++term) {
      const double fault_rate = term % 3 == 0 ? 0 : 0.35;
      Leader leader(keys, random, fault_rate);
      std::optional<journal::Content> loaded;
      while (!loaded) test::code_of([&] { loaded = leader.journal->load(); });
      CHECK(loaded->rows == model);
      // The contents that are possible: the last one that is known to be kept, and that with later
      // attempts.
      std::vector<Rows> possible{model};
      Batch owed;
      // From this transaction on another one leads.
      int left = static_cast<int>(random() % 60);
      leader.store->before_each = [&] {
        if (left-- == 0) keys.lead(leader_key(kPrefix));
      };
      for (;;) {
        const Batch more = random_batch(random);
        owed.insert(owed.end(), more.begin(), more.end());
        possible.push_back(possible.front());
        apply_batch(owed, possible.back());
        try {
          if (random() % 4 == 0) leader.journal->commit({});
          leader.journal->commit(owed);
          owed.clear();
          possible.erase(possible.begin(), possible.end() - 1);
        } catch (const Deposed&) {
          REQUIRE(left < 0);
          ++num_deposed;
          break;
        } catch (const Error& error) {
          REQUIRE(error.code() == ErrorCode::kUnavailable);
          ++num_failed;
        }
      }
      leader.store->before_each = nullptr;
      const auto kept = keys.keys;
      for (int i = 0; i < 3; ++i) {
        CHECK(test::code_of([&] {
                try {
                  leader.journal->commit(random_batch(random));
                  FAIL("who was deposed has written");
                } catch (const Deposed&) {
                }
              }).value_or(ErrorCode::kUnavailable) == ErrorCode::kUnavailable);
      }
      CHECK(keys.keys == kept);
      const auto content = content_of(keys, random);
      CHECK(content.losses.empty());
      const auto which = std::find(possible.begin(), possible.end(), content.rows);
      REQUIRE(which != possible.end());
      if (which != possible.begin()) ++num_cut;
      model = content.rows;
    }
    Leader last(keys, random);
    CHECK(last.journal->load().rows == model);
    std::size_t num_parts = 0;
    for (const auto& [key, content] : model) {
      if (content.size() > kTiny.row_bytes) {
        num_parts += (content.size() + kTiny.txn_bytes - 1) / kTiny.txn_bytes;
      }
    }
    for (int i = 0; i < 5; ++i) last.journal->commit({{"end", concat(i)}});
    CHECK(num_keys(keys, blobs_prefix(kPrefix)) == num_parts);
    CHECK(num_keys(keys, log_prefix(kPrefix)) == 0);
    CHECK(num_keys(keys, rows_prefix(kPrefix)) == model.size() + (model.contains("end") ? 0 : 1));
  }
  CHECK(has_seen_all());
  CHECK(num_deposed == 12 * num_worlds);
}

TEST_CASE("EtcdJournal: an entry that can't be read is said once, and the rest is there") {
  Random random(1);
  ModelKeys keys;
  const std::string large(200, 'x');
  {
    Leader leader(keys, random);
    leader.journal->load();
    leader.journal->commit({{"a", "1"}, {"b", large}, {"c", large}});
    leader.journal->commit({{"d", "4"}, {"e\n", "5"}});
  }
  const std::string blob = keys.with_prefix(blobs_prefix(kPrefix)).front().key;
  const auto change = [&](const std::string& key, std::optional<std::string> value) {
    keys.apply({}, {{key, std::move(value)}});
  };
  Rows expected{{"a", "1"}, {"b", large}, {"c", large}, {"d", "4"}, {"e\n", "5"}};
  std::size_t num_losses = 1;
  SECTION("a row") { change(rows_prefix(kPrefix) + "d", "?"), expected.erase("d"); }
  SECTION("an empty row") { change(rows_prefix(kPrefix) + "e\n", ""), expected.erase("e\n"); }
  SECTION("a blob that is missing in part") { change(blob, std::nullopt), expected.erase("b"); }
  SECTION("a blob that was changed") { change(blob, std::string(64, 'y')), expected.erase("b"); }
  SECTION("a log without its parts") { change(log_commit_key(kPrefix), "5 500 1f2e3d4c"); }
  SECTION("a log that is none") { change(log_commit_key(kPrefix), "what?"); }
  SECTION("the clock") { change(clock_key(kPrefix), "what?"); }
  SECTION("a stranger's key") { change("p/other", "x"), num_losses = 0; }
  Leader leader(keys, random);
  const auto content = leader.journal->load();
  CHECK(content.losses.size() == num_losses);
  for (const std::string& loss : content.losses) {
    CHECK(loss.find('\n') == std::string::npos);
    CHECK_THAT(loss, test::Contains("can't be read"));
  }
  CHECK(content.rows == expected);
  leader.journal->commit({{"f", large}});
  expected["f"] = large;
  const auto again = content_of(keys, random);
  CHECK(again.losses.empty());
  CHECK(again.rows == expected);
}

TEST_CASE("EtcdJournal: a stranger's change of its keys ends its leadership") {
  Random random(1);
  ModelKeys keys;
  Leader leader(keys, random);
  leader.journal->load();
  leader.journal->commit({{"a", "1"}});
  const std::string old = keys.keys[clock_key(kPrefix)].value;
  leader.journal->commit({{"a", "2"}});
  SECTION("a backup") { keys.apply({}, {{clock_key(kPrefix), old}}); }
  SECTION("an erasure") { keys.apply({}, {{"p/", std::nullopt, 0, true}}); }
  SECTION("nonsense") { keys.apply({}, {{clock_key(kPrefix), "x"}}); }
  CHECK_THROWS_AS(leader.journal->commit({{"a", "3"}}), Deposed);
}

TEST_CASE("EtcdJournal: deadlines of another machine's clock don't come earlier") {
  Random random(1);
  ModelKeys keys;
  {
    Leader leader(keys, random);
    leader.journal->load();
    leader.journal->commit({{"a", "1"}});
  }
  SECTION("the same machine") { CHECK(content_of(keys, random).clock_shift.count() == 0); }
  SECTION("another one") {
    const Clock::time_point then{std::chrono::hours(5)};
    keys.apply({},
               {{clock_key(kPrefix), concat("1 7 ", then.time_since_epoch().count(), " other")}});
    const auto now = Clock::now();
    const Clock::duration shift = content_of(keys, random).clock_shift;
    CHECK(then + shift >= now);
    CHECK(then + shift <= Clock::now());
  }
  SECTION("a newer ddprund's") {
    keys.apply({}, {{clock_key(kPrefix), "2 whatever"}});
    std::string what;
    CHECK(test::code_of([&] { content_of(keys, random); }, &what) == ErrorCode::kUnsupported);
    CHECK_THAT(what, test::Contains("newer ddprund"));
  }
}

}  // namespace
}  // namespace ddprun::ha::testing
