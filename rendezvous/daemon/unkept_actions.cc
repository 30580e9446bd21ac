// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/unkept_actions.h"

#include <utility>

#include "common/check.h"

namespace ddprun::rendezvous {

bool UnkeptActions::must_wait(const journal::Batch& changes, bool says_something) const {
  if (journal_ == nullptr) return false;
  return !changes.empty() || !waiting_.empty() || (says_something && journal_->is_shared());
}

void UnkeptActions::add(journal::Batch changes, std::function<void()> carry_out,
                        std::shared_ptr<const void> owner) {
  DDPRUN_CHECK(journal_ != nullptr);
  waiting_.push_back({std::move(carry_out), {}});
  journal_->commit(std::move(changes), [this, owner = std::move(owner)] { kept(); });
}

void UnkeptActions::kept() {
  if (stopped_ || waiting_.empty()) return;
  const Waiting kept = std::move(waiting_.front());
  waiting_.pop_front();
  kept.carry_out();
  for (const auto& done : kept.then) done();
}

void UnkeptActions::when_kept(std::function<void()> done) {
  if (waiting_.empty()) return done();
  waiting_.back().then.push_back(std::move(done));
}

void UnkeptActions::stop() {
  stopped_ = true;
  waiting_.clear();
}

}  // namespace ddprun::rendezvous
