// SPDX-License-Identifier: Apache-2.0
// What was decided and is not carried out yet: the journal has first to keep what it follows from.
// In the order in which it was decided; nothing overtakes. io thread only.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "rendezvous/journal/journal.h"

namespace ddprun::rendezvous {

class UnkeptActions {
 public:
  // `journal`: nullptr: none, and nothing has to wait; else it outlives this.
  explicit UnkeptActions(journal::Journal* journal) : journal_(journal) {}

  // Whether what follows from `changes` has to wait, and is to be add()ed: they, or something
  // before them, are not kept yet. Where others may take over, what `says_something` to anybody
  // waits in any case: nothing is said before it is known that nobody else decides by now.
  bool must_wait(const journal::Batch& changes, bool says_something) const;

  // Calls `carry_out` from the io context, once `changes` and all that was added before are kept.
  // `owner`, of which this is a part, lives until then. Precondition: there is a journal.
  void add(journal::Batch changes, std::function<void()> carry_out,
           std::shared_ptr<const void> owner);

  // Calls `done` as soon as all that was added so far is carried out: at once where nothing waits,
  // else right after the last of it.
  void when_kept(std::function<void()> done);

  bool empty() const { return waiting_.empty(); }

  // No call follows.
  void stop();

 private:
  struct Waiting {
    std::function<void()> carry_out;
    std::vector<std::function<void()>> then;
  };

  void kept();

  journal::Journal* const journal_;
  std::deque<Waiting> waiting_;  // each for its commit
  bool stopped_ = false;
};

}  // namespace ddprun::rendezvous
