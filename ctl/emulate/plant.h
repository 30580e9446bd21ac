// SPDX-License-Identifier: Apache-2.0
// Bugs to be planted, one at a time, so that the emulator's tests see each of its checks fail.
// Nothing else uses them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::ctl {

struct Plant {
  enum class Kind {
    kNone,
    kStaleMessage,     // a late message of the type `message` is taken as one of the live round
    kHasty,            // nodes say that their workers are gone before they are
    kUnfenced,         // nodes that lost contact keep their workers
    kRankTwice,        // a node is told another one's rank
    kRankMissing,      // a member is not told to start
    kBudget,           // the machine allows one restart more than it was asked for
    kNoDeadline,       // the rendezvous waits without a deadline
    kNoDeadlineAgent,  // an agent doesn't try to come back
    kOtherVerdict,     // a node is told another end
    kUnfoundedStop,    // a round is stopped that nothing happened to
  };
  Kind kind = Kind::kNone;
  std::string message;  // kStaleMessage
};

// "stale:stop_round", "rank-twice", …; nullopt: there is none of that name.
std::optional<Plant> plant_named(std::string_view name);
// All that there are.
std::vector<std::string> plant_names();

}  // namespace ddprun::ctl
