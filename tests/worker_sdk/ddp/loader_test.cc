// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/loader.h"

#include <atomic>
#include <future>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using test::error_of;

namespace {

using Indices = std::vector<std::int64_t>;

Indices same(const Indices& indices) { return indices; }

Indices all_of(Loader<Indices>& loader) {
  Indices all;
  while (const auto batch = loader.next()) all.insert(all.end(), batch->begin(), batch->end());
  return all;
}

DistributedSampler in_order(std::int64_t num_samples) {
  return {num_samples, 1, 0, {.shuffle = false}};
}

// Threads wait in come() until so many have come.
class Meeting {
 public:
  explicit Meeting(int num) : missing_(num) {}
  void come() {
    std::unique_lock lock(mutex_);
    if (--missing_ == 0) all_came_.notify_all();
    all_came_.wait(lock, [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_came_;
  int missing_;
};

}  // namespace

TEST_CASE("Loader: batches come in the sampler's order, whatever the number of threads") {
  const DistributedSampler sampler(103, 2, 1, {.seed = 7});
  for (const int num_threads : {0, 1, 2, 5}) {
    Loader<Indices> loader(sampler, {.batch_size = 8, .num_threads = num_threads, .prefetch = 3},
                           [](const Indices& indices) {
                             if (indices.front() % 2 == 0) std::this_thread::yield();
                             return indices;
                           });
    for (const std::uint64_t epoch : {0, 1, 5}) {
      loader.set_epoch(epoch);
      CHECK(all_of(loader) == sampler.indices(epoch));
      CHECK_FALSE(loader.next());
    }
  }
}

TEST_CASE("Loader: the last batch is smaller, or left out") {
  for (const bool drop_last : {false, true}) {
    Loader<Indices> loader(in_order(10), {.batch_size = 4, .drop_last = drop_last}, same);
    loader.set_epoch(0);
    CHECK(loader.next() == Indices{0, 1, 2, 3});
    CHECK(loader.next() == Indices{4, 5, 6, 7});
    if (!drop_last) CHECK(loader.next() == Indices{8, 9});
    CHECK_FALSE(loader.next());
  }
}

TEST_CASE("Loader: goes on in the middle of an epoch, and drops what is left of the one before") {
  const DistributedSampler sampler(50, 1, 0, {.seed = 3});
  Loader<Indices> loader(sampler, {.batch_size = 4}, same);
  loader.set_epoch(0);
  loader.next();
  loader.set_epoch(1, 18);
  const Indices order = sampler.indices(1);
  CHECK(all_of(loader) == Indices(order.begin() + 18, order.end()));
  loader.set_epoch(2, 50);
  CHECK_FALSE(loader.next());
}

TEST_CASE("Loader: all its threads load at once") {
  Meeting meeting(3);
  Loader<Indices> loader(in_order(3), {.num_threads = 3, .prefetch = 3},
                         [&](const Indices& indices) {
                           meeting.come();  // returns only if all three are there
                           return indices;
                         });
  loader.set_epoch(0);
  CHECK(all_of(loader) == Indices{0, 1, 2});
}

TEST_CASE("Loader: it is never further ahead than it was told") {
  std::atomic<int> begun{0};
  constexpr int kAhead = 3;
  Loader<Indices> loader(in_order(40), {.num_threads = 4, .prefetch = kAhead},
                         [&](const Indices& indices) {
                           ++begun;
                           return indices;
                         });
  loader.set_epoch(0);
  for (int taken = 0; taken < 40; ++taken) {
    CHECK(begun <= taken + kAhead);
    REQUIRE(loader.next());
  }
  CHECK(begun == 40);
}

TEST_CASE("Loader: an exception surfaces in its place, and again until the next epoch") {
  for (const int num_threads : {0, 2}) {
    bool fails = true;
    Loader<Indices> loader(in_order(5), {.num_threads = num_threads}, [&](const Indices& indices) {
      if (fails && indices.front() == 2) throw std::runtime_error("bad file");
      return indices;
    });
    loader.set_epoch(0);
    CHECK(loader.next() == Indices{0});
    CHECK(loader.next() == Indices{1});
    CHECK_THROWS_WITH(loader.next(), "bad file");
    CHECK_THROWS_WITH(loader.next(), "bad file");
    loader.set_epoch(1, 5);  // waits for the loads that are under way
    fails = false;
    loader.set_epoch(1);
    CHECK(all_of(loader) == Indices{0, 1, 2, 3, 4});
  }
}

TEST_CASE("Loader: its end in the middle of an epoch waits for the loads under way, not for more") {
  std::atomic<int> under_way{0}, num_loaded{0};
  {
    Loader<Indices> loader(in_order(1000), {.num_threads = 2, .prefetch = 2},
                           [&](const Indices& indices) {
                             ++under_way;
                             std::this_thread::yield();
                             ++num_loaded;
                             --under_way;
                             return indices;
                           });
    loader.set_epoch(0);
    loader.next();
  }
  CHECK(under_way == 0);
  CHECK(num_loaded <= 3);
}

TEST_CASE("Loader: waiting is counted, and on the progress page, too") {
  using namespace std::chrono_literals;
  WorkerProgress progress;
  for (const int num_threads : {0, 1}) {
    const std::uint64_t before = progress.page().loading_ns;
    Loader<Indices> loader(in_order(4), {.num_threads = num_threads, .progress = &progress},
                           [](const Indices& indices) {
                             std::this_thread::sleep_for(5ms);  // makes the loader slow
                             return indices;
                           });
    CHECK(loader.waited() == 0ns);
    loader.set_epoch(0);
    all_of(loader);
    CHECK(loader.waited() >= 15ms);  // one thread may be a load ahead
    const std::uint64_t on_page = progress.page().loading_ns - before;
    CHECK(on_page == static_cast<std::uint64_t>(loader.waited().count()));
  }
}

TEST_CASE("Loader: one that is ahead holds nobody up") {
  std::promise<void> loaded;
  Loader<Indices> loader(in_order(1), {.num_threads = 1}, [&](const Indices& indices) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    loaded.set_value();
    return indices;
  });
  loader.set_epoch(0);
  loaded.get_future().wait();
  CHECK(loader.next());
  CHECK(loader.waited() < std::chrono::milliseconds(50));
}

TEST_CASE("Loader: an invalid option or call is refused") {
  const auto refused = [](const LoaderOptions& options) {
    return error_of([&] { Loader<Indices>(in_order(1), options, same); }).code() ==
           ErrorCode::kInvalidArgument;
  };
  CHECK(refused({.batch_size = 0}));
  CHECK(refused({.num_threads = -1}));
  CHECK(refused({.prefetch = 0}));

  Loader<Indices> loader(in_order(1), {}, same);
  const Error too_early = error_of([&] { loader.next(); });
  CHECK(too_early.code() == ErrorCode::kInvalidArgument);
  CHECK(test::contains(too_early.what(), "no batches before set_epoch()"));
  CHECK(error_of([&] { loader.set_epoch(0, -1); }).code() == ErrorCode::kInvalidArgument);
  CHECK(test::contains(error_of([&] { loader.set_epoch(0, 2); }).what(), "sample 2: a rank has 1"));
  loader.set_epoch(0);
  CHECK(all_of(loader) == Indices{0});
}
