// SPDX-License-Identifier: Apache-2.0
// A journal that others may take over: no action goes out before its cause is kept.
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "rendezvous/journal/journal.h"
#include "tests/rendezvous/journal/posts.h"
#include "tests/support/catch.h"
#include "tests/support/log_lines.h"

namespace ddprun::journal {
namespace {

using namespace std::chrono_literals;
using test::Posts;

// The place to which all journals write. It fails, hangs or names another leader as a test says.
class Shelf {
 public:
  enum class Mood { kWell, kFails, kHangs, kOthers };

  void set(Mood mood) {
    const std::lock_guard lock(mutex_);
    mood_ = mood;
    wakes_.notify_all();
  }
  void put(const Batch& batch) {
    std::unique_lock lock(mutex_);
    ++num_tries_;
    wakes_.notify_all();
    wakes_.wait(lock, [this] { return mood_ != Mood::kHangs || cancelled_; });
    if (cancelled_) throw std::runtime_error("cancelled");
    if (mood_ == Mood::kFails) throw std::runtime_error("can't write to the shelf: it is full");
    if (mood_ == Mood::kOthers) throw Deposed("somebody else writes there");
    batches_.push_back(batch);
  }
  void cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    wakes_.notify_all();
  }
  void await_tries(std::size_t number) {
    std::unique_lock lock(mutex_);
    REQUIRE(wakes_.wait_for(lock, 30s, [&] { return num_tries_ >= number; }));
  }
  // Batches of so many rows find no place between the parts of another one.
  static constexpr std::size_t kManyRows = 5;
  std::vector<Batch> batches() {
    const std::lock_guard lock(mutex_);
    return batches_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wakes_;
  Mood mood_ = Mood::kWell;
  bool cancelled_ = false;
  std::size_t num_tries_ = 0;
  std::vector<Batch> batches_;
};

class ShelfWriter : public BatchWriter {
 public:
  explicit ShelfWriter(std::shared_ptr<Shelf> shelf) : shelf_(std::move(shelf)) {}
  void commit(const Batch& batch) override { shelf_->put(batch); }
  // In two parts, of which the shelf has the first one before the others' batch.
  void commit_in_parts(const Batch& batch, const Others& others) override {
    shelf_->put({});
    others([this](const Batch& other) {
      if (other.size() == Shelf::kManyRows) return false;
      shelf_->put(other);
      return true;
    });
    shelf_->put(batch);
  }
  void cancel() override { shelf_->cancel(); }
  std::string name() const override { return "the shelf"; }

 private:
  const std::shared_ptr<Shelf> shelf_;  // second owner: the test
};

struct SharedJournal {
  explicit SharedJournal(std::chrono::milliseconds limit = 20s)
      : journal(std::make_unique<ShelfWriter>(shelf), posts.post(),
                {.is_shared = true,
                 .deposed = [this](const std::string& why) { deposed = why; },
                 .commit_limit = limit,
                 .first_retry = 5ms,
                 .last_retry = 20ms}) {}
  void commit(Batch batch, int number, RowKind kind = RowKind::kDecision) {
    journal.commit(
        std::move(batch), [this, number] { done.push_back(number); }, kind);
  }
  Posts posts;
  const std::shared_ptr<Shelf> shelf = std::make_shared<Shelf>();  // second owner: the writer
  std::vector<int> done;
  std::string deposed;
  Journal journal;
};

TEST_CASE("Shared journal: an empty batch asks, too, whether it may go on") {
  SharedJournal shared;
  shared.commit({}, 1);
  shared.posts.run_until([&] { return shared.done == std::vector{1}; });
  REQUIRE(shared.shelf->batches().size() == 1);
  CHECK(shared.shelf->batches()[0].empty());
}

TEST_CASE("Shared journal: nothing is done while it can't be written, then all of it in order") {
  SharedJournal shared;
  shared.shelf->set(Shelf::Mood::kFails);
  shared.commit({{"a", "1"}}, 1);
  shared.shelf->await_tries(3);
  shared.commit({{"a", "2"}, {"b", "1"}}, 2);
  shared.commit({}, 3);
  shared.shelf->await_tries(6);
  // Runs the tasks posted so far, one of which logs the line.
  bool marked = false;
  shared.posts.post()([&] { marked = true; });
  shared.posts.run_until([&] { return marked; });
  CHECK(shared.done.empty());
  REQUIRE(shared.journal.trouble());
  CHECK(shared.journal.trouble()->what == "can't write to the shelf: it is full");

  shared.shelf->set(Shelf::Mood::kWell);
  shared.posts.run_until([&] { return shared.done.size() == 3; });
  CHECK(shared.done == std::vector{1, 2, 3});
  CHECK_FALSE(shared.journal.trouble());
  REQUIRE(shared.shelf->batches().size() >= 1);
  const Batch first = shared.shelf->batches()[0];
  REQUIRE(first.size() == 2);
  CHECK(first[0].key == "a");
  CHECK(first[0].content == "2");

  shared.commit({{"c", "1"}}, 4);
  shared.posts.run_until([&] { return shared.done.size() == 4; });
}

TEST_CASE("Shared journal: one that hangs is trouble, and nothing is done before it answers") {
  SharedJournal shared(20ms);
  shared.shelf->set(Shelf::Mood::kHangs);
  shared.commit({{"a", "1"}}, 1);
  shared.posts.run_until([&] { return shared.journal.trouble().has_value(); });
  CHECK(shared.done.empty());
  shared.shelf->set(Shelf::Mood::kWell);
  shared.posts.run_until([&] { return !shared.done.empty(); });
  CHECK_FALSE(shared.journal.trouble());
}

TEST_CASE("Shared journal: a decision doesn't wait for a large value that came before it") {
  SharedJournal shared;
  shared.shelf->set(Shelf::Mood::kHangs);
  shared.commit({{"store", std::string(std::size_t{2} << 20, 'x')}}, 1, RowKind::kStore);
  shared.shelf->await_tries(1);
  shared.commit({{"job", "1"}}, 2);
  shared.shelf->set(Shelf::Mood::kWell);
  shared.posts.run_until([&] { return shared.done.size() == 2; });
  CHECK(shared.done == std::vector{2, 1});
  const std::vector<Batch> batches = shared.shelf->batches();
  REQUIRE(batches.size() == 3);
  CHECK(batches[1].at(0).key == "job");
  CHECK(batches[2].at(0).key == "store");
}

TEST_CASE(
    "Shared journal: decisions that find no place in a large value come before the next one") {
  SharedJournal shared;
  const std::string large(std::size_t{2} << 20, 'x');
  shared.shelf->set(Shelf::Mood::kHangs);
  shared.commit({{"store", large}}, 1, RowKind::kStore);
  shared.shelf->await_tries(1);
  Batch many;
  for (std::size_t i = 0; i < Shelf::kManyRows; ++i) many.push_back({std::to_string(i), "1"});
  shared.commit(many, 2);
  shared.commit({{"other store", large}}, 3, RowKind::kStore);
  shared.shelf->set(Shelf::Mood::kWell);
  shared.posts.run_until([&] { return shared.done.size() == 3; });
  CHECK(shared.done == std::vector{1, 2, 3});
  const std::vector<Batch> batches = shared.shelf->batches();  // each large value's in two parts
  REQUIRE(batches.size() == 5);
  CHECK(batches[2].size() == Shelf::kManyRows);
}

TEST_CASE("Shared journal: rows of both kinds that can't be written are written later") {
  SharedJournal shared;
  shared.shelf->set(Shelf::Mood::kFails);
  shared.commit({{"store", std::string(std::size_t{2} << 20, 'x')}}, 1, RowKind::kStore);
  shared.commit({{"job", "1"}}, 2);
  shared.shelf->await_tries(3);
  shared.shelf->set(Shelf::Mood::kWell);
  shared.posts.run_until([&] { return shared.done.size() == 2; });
  Rows rows;
  for (const Batch& batch : shared.shelf->batches()) apply_batch(batch, rows);
  CHECK(rows.size() == 2);
}

TEST_CASE("Shared journal: a deposed journal does nothing any more, and tells it once") {
  SharedJournal shared;
  shared.commit({{"a", "1"}}, 1);
  shared.posts.run_until([&] { return shared.done.size() == 1; });
  shared.shelf->set(Shelf::Mood::kOthers);
  shared.commit({{"a", "2"}}, 2);
  shared.posts.run_until([&] { return !shared.deposed.empty(); });
  CHECK(shared.deposed == "somebody else writes there");
  shared.deposed.clear();
  shared.shelf->set(Shelf::Mood::kWell);
  shared.commit({{"a", "3"}}, 3);
  bool marked = false;
  shared.posts.post()([&] { marked = true; });
  shared.posts.run_until([&] { return marked; });
  CHECK(shared.done == std::vector{1});
  CHECK(shared.deposed.empty());
  CHECK(shared.shelf->batches().size() == 1);
}

TEST_CASE(
    "Shared journal: its end waits for nothing, and writes nothing that nobody has heard of") {
  constexpr auto kLimit = 20s;
  const auto begun = Clock::now();
  std::shared_ptr<Shelf> shelf;
  {
    SharedJournal shared(kLimit);
    shelf = shared.shelf;
    shelf->set(Shelf::Mood::kHangs);
    shared.commit({{"a", "1"}}, 1);
    shelf->await_tries(1);
    shared.commit({{"b", "1"}}, 2);
  }
  CHECK(Clock::now() - begun < kLimit / 2);
  CHECK(shelf->batches().empty());
}

}  // namespace
}  // namespace ddprun::journal
