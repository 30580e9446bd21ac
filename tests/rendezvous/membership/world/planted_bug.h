// SPDX-License-Identifier: Apache-2.0
// Bugs that a test plants in a world, one at a time, to see that the world's checks find them.
#pragma once

#include <string>

namespace ddprun::membership::testing {

struct PlantedBug {
  enum class Kind {
    kNone,
    // Bugs of the rendezvous:
    kStaleMessage,  // a message of the type `message` is taken as one of the live round
    kRankTwice,     // a node is told another one's rank
    kRankMissing,   // a member is not told to start
    kBudget,        // the machine allows one restart more than it was asked for
    kNoDeadline,    // the rendezvous waits without a deadline
    kOtherVerdict,  // a node is told another end
    // Bugs of nodes:
    kLingering,        // workers outlive what their agent says of their end
    kUnfenced,         // nodes that lost contact keep their workers
    kNoDeadlineAgent,  // an agent doesn't try to come back
    kUnfoundedStop,    // a round is stopped that nothing happened to
  };
  Kind kind = Kind::kNone;
  std::string message{};  // for kStaleMessage
};

}  // namespace ddprun::membership::testing
