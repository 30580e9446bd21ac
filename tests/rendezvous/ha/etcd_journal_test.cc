// SPDX-License-Identifier: Apache-2.0
// Tests with real etcd servers. etcd_journal_model_test.cc has every way in which a transaction can
// go wrong.
#include "rendezvous/ha/etcd_journal.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "common/text.h"
#include "rendezvous/journal/row.h"
#include "tests/rendezvous/ha/etcd_clients.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"

namespace ddprun::ha::testing {
namespace {

using namespace std::chrono_literals;
using journal::apply_batch;
using journal::Batch;
using journal::Deposed;
using journal::Rows;
using test::code_of;

constexpr char kPrefix[] = "/jobs of ours";

// Takes over from the present leader.
std::int64_t lead(const EtcdOptions& options, std::int64_t lease = 0) {
  EtcdClient client(options);
  client.change_if({}, {{leader_key(kPrefix), std::nullopt}});
  return client.change_if({{leader_key(kPrefix), 0}}, {{leader_key(kPrefix), "me", lease}})
      .revision;
}

std::unique_ptr<EtcdJournal> journal_of(const EtcdOptions& options, std::int64_t leadership,
                                        EtcdJournalLimits limits = {}) {
  return std::make_unique<EtcdJournal>(std::make_unique<EtcdClient>(options), "etcd://test",
                                       kPrefix, leadership, limits);
}

std::unique_ptr<EtcdJournal> new_leader(const EtcdOptions& options, EtcdJournalLimits limits = {}) {
  return journal_of(options, lead(options), limits);
}

std::string random_text(std::mt19937_64& random, std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
    const std::uint64_t bytes = random();
    std::memcpy(text.data() + i, &bytes, std::min(sizeof bytes, size - i));
  }
  return text;
}

TEST_CASE("EtcdJournal: rows come back as they were written, small and large ones, few and many",
          "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  OneEtcd etcd;
  std::mt19937_64 random(7);
  const std::size_t large = test::fewer_if_sanitized(20, 3);
  Rows model;
  auto leader = new_leader(etcd.options());
  CHECK(leader->load().rows.empty());
  const auto commit = [&](const Batch& batch) {
    leader->commit(batch);
    apply_batch(batch, model);
  };
  commit({{"jobs/1/job", "{\"run\":1}"}, {"jobs/1/state", ""}, {std::string("\0\xff", 2), "x"}});
  commit({{"jobs/1/state", std::nullopt}, {"never there", std::nullopt}});
  const auto begun = Clock::now();
  commit({{"stores/1/1/base/0", random_text(random, large << 20)}, {"small", "1"}});
  std::cout << "commit of " << large << " MiB: " << (Clock::now() - begun) / 1ms << " ms"
            << std::endl;
  Batch many;
  for (int i = 0; i < test::fewer_if_sanitized(3000, 600); ++i)
    many.push_back({concat("jobs/2/nodes/", i), random_text(random, 700)});
  commit(many);
  const auto loaded = new_leader(etcd.options())->load();
  CHECK(loaded.losses.empty());
  CHECK(loaded.clock_shift.count() == 0);
  CHECK((loaded.rows == model));

  leader = new_leader(etcd.options());
  leader->load();
  for (auto& row : many) row.content.reset();
  commit(many);
  commit({{"stores/1/1/base/0", "now it is short"}});
  commit({{"small", "2"}});
  CHECK((new_leader(etcd.options())->load().rows == model));
  // Nothing is left of the large rows.
  EtcdClient client(etcd.options());
  CHECK(client.get_prefix(blobs_prefix(kPrefix)).empty());
  CHECK(client.get_prefix(log_prefix(kPrefix)).empty());
}

TEST_CASE(
    "EtcdJournal: a thousand random batches, leaders that are replaced, an etcd that restarts",
    "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  std::mt19937_64 random(test::seed());
  OneEtcd etcd;
  auto leader = new_leader(etcd.options());
  leader->load();
  Rows model;
  const int num_batches = test::fewer_if_sanitized(1000, 200);
  for (int i = 0; i < num_batches; ++i) {
    Batch batch;
    const std::size_t num_rows = random() % 100 == 0 ? 300 : 1 + random() % 10;
    for (std::size_t row = 0; row < num_rows; ++row) {
      const std::size_t size = random() % 2000 == 0 ? std::size_t{1} << 20 : random() % 600;
      const std::string key = concat("rows/", random() % 400);
      if (random() % 3 == 0) {
        batch.push_back({key, std::nullopt});
      } else {
        batch.push_back({key, random_text(random, size)});
      }
    }
    leader->commit(batch);
    apply_batch(batch, model);
    if (random() % 50 == 0) {
      const auto old = std::exchange(leader, new_leader(etcd.options()));
      const auto loaded = leader->load();
      REQUIRE(loaded.losses.empty());
      REQUIRE((loaded.rows == model));
      CHECK_THROWS_AS(old->commit({{"rows/1", "late"}}), Deposed);
      CHECK_THROWS_AS(old->commit({}), Deposed);
    }
    if (i % 400 == 399) {
      etcd.cluster.members.front()->kill();
      etcd.cluster.members.front()->start();
    }
  }
  CHECK((new_leader(etcd.options())->load().rows == model));
}

TEST_CASE("EtcdJournal: a commit fails while etcd is away, and is made afterwards", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  OneEtcd etcd;
  auto leader = journal_of(hasty(etcd.cluster.endpoints()), lead(etcd.options()));
  leader->load();
  test::EtcdProcess& member = *etcd.cluster.members.front();
  member.kill();
  std::string what;
  const Batch batch{{"a", "1"}, {"b", std::string(600 << 10, 'b')}};
  CHECK(code_of([&] { leader->commit(batch); }, &what) == ErrorCode::kUnavailable);
  CHECK_THAT(what, test::Contains("connection refused"));
  CHECK(code_of([&] { leader->commit({}); }) == ErrorCode::kUnavailable);
  member.start();
  await_ready(etcd.cluster.endpoints());
  // A hasty client may fail some more times.
  while (code_of([&] { leader->commit(batch); })) {
  }
  Rows model;
  apply_batch(batch, model);
  CHECK((new_leader(etcd.options())->load().rows == model));
}

TEST_CASE("EtcdJournal: leadership ends with its lease, also inside a large batch", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  OneEtcd etcd;
  EtcdClient client(etcd.options());
  const std::int64_t lease = client.grant_lease(60s);
  auto leader = journal_of(etcd.options(), lead(etcd.options(), lease));
  leader->load();
  leader->commit({{"a", "1"}});
  SECTION("between batches") { client.revoke(lease); }
  SECTION("inside") {
    std::thread ends([&] {
      // Waits until a part of the batch is there.
      EtcdClient other(etcd.options());
      while (other.get_prefix(blobs_prefix(kPrefix)).empty()) std::this_thread::yield();
      other.revoke(lease);
    });
    CHECK_THROWS_AS(
        leader->commit(
            {{"a", "2"},
             {"b", std::string(std::size_t{test::fewer_if_sanitized(40, 10)} << 20, 'b')}}),
        Deposed);
    ends.join();
  }
  SECTION("by time") {
    client.revoke(lease);
    const std::int64_t brief = client.grant_lease(1s);
    const std::int64_t mine = lead(etcd.options(), brief);
    leader = journal_of(etcd.options(), mine);
    leader->load();
    leader->commit({{"a", "1"}});
    client.await_erased(leader_key(kPrefix), mine, Deadline::after(20s));
  }
  CHECK_THROWS_AS(leader->commit({{"a", "3"}}), Deposed);
  CHECK_THROWS_AS(leader->commit({}), Deposed);
  auto next = new_leader(etcd.options());
  CHECK((next->load().rows == Rows{{"a", "1"}}));
  next->commit({{"a", "4"}});
  CHECK(client.get_prefix(blobs_prefix(kPrefix)).empty());
}

TEST_CASE("EtcdJournal: an etcd that is full says so, and loses nothing", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  test::EtcdCluster cluster(1, {}, {"--quota-backend-bytes=4194304"});
  const EtcdOptions options = patient(cluster.endpoints());
  await_ready(options.endpoints);
  auto leader = new_leader(options);
  leader->load();
  Rows model, with_last;
  std::string what;
  std::optional<ErrorCode> code;
  while (!code) {
    const Batch batch{{"a", std::string(100 << 10, 'a')}, {"n", concat(model["n"], "+")}};
    code = code_of([&] { leader->commit(batch); }, &what);
    apply_batch(batch, with_last);
    if (!code) model = with_last;
  }
  CHECK(code == ErrorCode::kUnavailable);
  CHECK_THAT(what, test::Contains("mvcc: database space exceeded"));
  CHECK(model["n"].size() > 5);
  const Rows rows =
      journal_of(options, EtcdClient(options).get(leader_key(kPrefix))->create_revision)
          ->load()
          .rows;
  // A request that finds too little space may be carried out all the same (etcd's quotaApplierV3).
  CHECK((rows == model || rows == with_last));
}

TEST_CASE("EtcdJournal: a row that is written again and again doesn't fill etcd", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  test::EtcdCluster cluster(1, {}, {"--quota-backend-bytes=33554432"});
  const EtcdOptions options = patient(cluster.endpoints());
  await_ready(options.endpoints);
  EtcdJournalLimits limits;
  limits.compact_after_bytes = 1 << 20;
  auto leader = new_leader(options, limits);
  leader->load();
  const std::string content(200 << 10, 'a');
  for (int i = 0; i < 400; ++i) leader->commit({{"a", concat(content, i)}});
}

TEST_CASE("EtcdJournal: a commit that is under way can be cancelled", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  OneEtcd etcd;
  auto leader = new_leader(etcd.options());
  leader->load();
  etcd.cluster.members.front()->pause();
  std::thread cancels([&] {
    std::this_thread::sleep_for(50ms);
    leader->cancel();
  });
  const auto begun = Clock::now();
  CHECK(code_of([&] { leader->commit({{"a", "1"}}); }) == ErrorCode::kAborted);
  CHECK(Clock::now() - begun < 4s);  // sooner than request_limit, 5 s
  cancels.join();
  etcd.cluster.members.front()->go_on();
}

TEST_CASE("EtcdJournal: a small commit is one transaction", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  OneEtcd etcd;
  auto leader = new_leader(etcd.options());
  leader->load();
  leader->commit({{"a", "0"}});
  EtcdClient client(etcd.options());
  const std::int64_t before = client.get(clock_key(kPrefix))->mod_revision;
  for (const bool is_empty : {true, false}) {
    std::vector<Clock::duration> times;
    for (int i = 0; i < 200; ++i) {
      Batch batch;
      if (!is_empty) batch = {{"a", std::string(2000, 'a')}, {"b", std::string(1000, 'b')}};
      const auto begun = Clock::now();
      leader->commit(batch);
      times.push_back(Clock::now() - begun);
    }
    std::sort(times.begin(), times.end());
    const auto us = [](Clock::duration time) {
      return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
    };
    std::cout << (is_empty ? "check of leadership" : "commit of 2 rows, 3 kB") << ": median "
              << us(times[100]) << " us, 99 %: " << us(times[198]) << " us" << std::endl;
    CHECK(client.get(clock_key(kPrefix))->mod_revision == before + (is_empty ? 0 : 200));
  }
}

}  // namespace
}  // namespace ddprun::ha::testing
