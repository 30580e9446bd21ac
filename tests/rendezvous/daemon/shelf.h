// SPDX-License-Identifier: Apache-2.0
// A journal in memory that a test can shut.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/row.h"

namespace ddprun::rendezvous::testing {

// A journal in memory; commits wait while it is shut.
struct Shelf {
  journal::Rows content() {
    const std::lock_guard lock(mutex);
    return rows;
  }
  void shut(bool on) {
    const std::lock_guard lock(mutex);
    is_shut = on;
    changed.notify_all();
  }
  std::mutex mutex;
  std::condition_variable changed;
  journal::Rows rows;
  bool is_shut = false;
  int num_asked = 0;
};

class ShelfWriter : public journal::BatchWriter {
 public:
  explicit ShelfWriter(std::shared_ptr<Shelf> shelf) : shelf_(std::move(shelf)) {}
  void commit(const journal::Batch& batch) override {
    std::unique_lock lock(shelf_->mutex);
    ++shelf_->num_asked;
    shelf_->changed.wait(lock, [this] { return !shelf_->is_shut || is_cancelled_; });
    if (is_cancelled_) throw journal::Deposed("it ends");
    journal::apply_batch(batch, shelf_->rows);
  }
  void cancel() override {
    const std::lock_guard lock(shelf_->mutex);
    is_cancelled_ = true;
    shelf_->changed.notify_all();
  }
  std::string name() const override { return "the shelf"; }

 private:
  const std::shared_ptr<Shelf> shelf_;  // second owner: the test
  bool is_cancelled_ = false;           // guarded by the shelf's mutex
};

}  // namespace ddprun::rendezvous::testing
