// SPDX-License-Identifier: Apache-2.0
// Candidates of one real etcd: the leader, and the begin and end of its term.
#include "rendezvous/ha/leadership.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/ha/etcd_journal.h"
#include "tests/rendezvous/ha/etcd_clients.h"
#include "tests/support/catch.h"
#include "tests/support/log_lines.h"

namespace ddprun::ha {
namespace {

using namespace std::chrono_literals;
using testing::OneEtcd;

constexpr char kPrefix[] = "/test";
constexpr std::chrono::seconds kLease{6};  // the machine may stand still for 2 s

// A ddprund's part in the leadership, and the events that it was told, in order.
class Member {
 public:
  Member(const OneEtcd& etcd, std::string name)
      : work_(io_.get_executor()), name_(std::move(name)), thread_([this] { io_.run(); }) {
    LeadershipOptions options;
    options.etcd = etcd.options();
    options.prefix = kPrefix;
    options.lease = kLease;
    options.name = name_;
    Leadership::Handlers handlers;
    handlers.leads = [this](Term term) {
      writer_ = std::move(term.writer);
      note("leads", term.epoch);
    };
    handlers.over = [this](const std::string& why) {
      writer_.reset();
      note("over: " + why);
    };
    handlers.stands_by = [this](const std::string& leader) { note("stands by " + leader); };
    leadership_ = std::make_unique<Leadership>(io_, std::move(options), std::move(handlers));
  }
  ~Member() { leave(); }

  // Ends as a ddprund does that is stopped.
  void leave() {
    if (!leadership_) return;
    on_io([this] {
      writer_.reset();
      leadership_.reset();
    });
    work_.reset();
    thread_.join();
  }

  // The next event, in order; empty: none came in time.
  std::string next(std::chrono::milliseconds limit = 20s) {
    std::unique_lock lock(mutex_);
    if (!wakes_.wait_for(lock, limit, [&] { return num_heard_ < told_.size(); })) return {};
    return told_[num_heard_++];
  }
  std::int64_t epoch() {
    const std::lock_guard lock(mutex_);
    return epoch_;
  }

  void resign(std::int64_t epoch, const std::string& why) {
    on_io([&] { leadership_->resign(epoch, why); });
  }

  // Holds the io thread until `go_on` is called.
  std::function<void()> hold_io() {
    auto go_on = std::make_shared<std::promise<void>>();
    boost::asio::post(io_, [ready = go_on->get_future().share()] { ready.wait(); });
    return [go_on] { go_on->set_value(); };
  }

 private:
  void note(std::string what, std::int64_t epoch = 0) {
    const std::lock_guard lock(mutex_);
    told_.push_back(std::move(what));
    if (epoch != 0) epoch_ = epoch;
    wakes_.notify_all();
  }

  void on_io(const std::function<void()>& call) {
    std::mutex mutex;
    std::condition_variable wakes;
    bool done = false;
    boost::asio::post(io_, [&] {
      call();
      const std::lock_guard lock(mutex);
      done = true;
      wakes.notify_one();
    });
    std::unique_lock lock(mutex);
    wakes.wait(lock, [&] { return done; });
  }

  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  const std::string name_;
  std::mutex mutex_;
  std::condition_variable wakes_;
  std::vector<std::string> told_;
  std::size_t num_heard_ = 0;
  std::int64_t epoch_ = 0;
  std::unique_ptr<journal::BatchWriter> writer_;  // of its term; io thread only
  std::unique_ptr<Leadership> leadership_;
  std::thread thread_;
};

TEST_CASE(
    "Leadership: one leads, the others know who, and when it leaves the next one leads at once",
    "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  const OneEtcd etcd;
  Member first(etcd, "a:1");
  REQUIRE(first.next() == "leads");
  Member second(etcd, "b:1");
  REQUIRE(second.next() == "stands by a:1");
  const auto begun = Clock::now();
  first.leave();
  CHECK(second.next() == "leads");
  CHECK(Clock::now() - begun < kLease / 2);
  CHECK(second.epoch() > first.epoch());
}

TEST_CASE(
    "Leadership: a member that resigned may lead again, and a word about an earlier term ends none",
    "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  const OneEtcd etcd;
  Member member(etcd, "a:1");
  REQUIRE(member.next() == "leads");
  const std::int64_t epoch = member.epoch();
  member.resign(epoch, "deposed");
  REQUIRE(member.next() == "over: deposed");
  REQUIRE(member.next() == "leads");
  CHECK(member.epoch() > epoch);
  member.resign(epoch, "late");
  CHECK(member.next(kLease) == "");
}

TEST_CASE("Leadership: an event loop that stands still for the lease's time leads no more",
          "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  const OneEtcd etcd;
  Member first(etcd, "a:1");
  REQUIRE(first.next() == "leads");
  Member second(etcd, "b:1");
  REQUIRE(second.next() == "stands by a:1");
  const auto go_on = first.hold_io();
  CHECK(second.next() == "leads");
  go_on();
  CHECK_THAT(first.next(), Catch::Contains("its own event loop has not run for 6 s"));
  CHECK(first.next() == "stands by b:1");
}

TEST_CASE("Leadership: the end of the leader's key or its lease is the end of its term",
          "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  const OneEtcd etcd;
  Member member(etcd, "a:1");
  REQUIRE(member.next() == "leads");
  EtcdClient hand(etcd.options());
  const auto key = hand.get(leader_key(kPrefix));
  REQUIRE(key);
  CHECK(key->value == "a:1");
  const auto begun = Clock::now();
  SECTION("its lease is revoked") { hand.revoke(key->lease); }
  SECTION("it is erased") { hand.change_if({}, {{key->key, std::nullopt}}); }
  SECTION("it is another's") {
    hand.change_if({}, {{key->key, std::nullopt}});
    hand.change_if({}, {{key->key, "b:1", hand.grant_lease(1s)}});
  }
  CHECK(member.next() == "over: its key /test/leader in etcd is gone");
  CHECK(Clock::now() - begun < kLease);
  std::string told = member.next();
  if (told == "stands by b:1") told = member.next();
  CHECK(told == "leads");
}

TEST_CASE("Leadership: a key that no ddprund wrote names nobody, and is said to block",
          "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  const OneEtcd etcd;
  test::LogLines log;
  EtcdClient(etcd.options()).change_if({}, {{leader_key(kPrefix), "a:1\r\nevil: header"}});
  Member member(etcd, "b:1");
  CHECK(member.next() == "stands by ");
  CHECK_THAT(log.await("has no lease"), test::Contains("`etcdctl del /test/leader`"));
}

// At any moment of the stop, nothing is left for which others would have to wait.
TEST_CASE("Leadership: stopped at any moment of its campaign, its lease is gone", "[net][proc]") {
  if (!test::has_etcd()) DDPRUN_SKIP(test::kNoEtcd);
  const OneEtcd etcd;
  for (auto after = 500us; after < 6'500us; after += 250us) {
    {
      Member member(etcd, "a:1");
      std::this_thread::sleep_for(after);
    }
    const auto begun = Clock::now();
    Member next(etcd, "b:1");
    std::string told = next.next();
    if (told == "stands by a:1") told = next.next();
    CHECK(told == "leads");
    CHECK(Clock::now() - begun < kLease / 2);
  }
}

}  // namespace
}  // namespace ddprun::ha
