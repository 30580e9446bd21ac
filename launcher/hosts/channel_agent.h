// SPDX-License-Identifier: Apache-2.0
// `ddprun --from-channel`: one node's agent for a launcher elsewhere, over standard input and
// output (docs/ssh.md), and what the ddprun that it starts inherits and owes.
#pragma once

#include <optional>

#include "common/environment.h"
#include "launcher/hosts/channel_codec.h"

namespace ddprun::launcher {

// How ddprun is asked to be it.
inline constexpr char kFromChannel[] = "--from-channel";

// Runs until ddprun has ended and that was said, or nobody listens any more. `environment`: of this
// process. Returns the exit status.
int run_channel_agent(Environment environment);

struct UnderChannel {
  // A socket to the agent. At its end when the channel is.
  static constexpr int kFd = 3;

  bool serves = false;  // the rendezvous, on a free port; Serving says which
  int stop_signal = 0;  // for the workers at the channel's end

  // Besides Serving: Room without bytes for each round in which the rank that has stdin is here.
  // Then End with the report that the launcher prints once for all nodes.
  static void say(const channel::Message& message);
  // From now on only the socket says that the agent is gone.
  static void watch();
};

// nullopt: no agent started this process. Takes the variable that says so out of `environment`,
// and keeps the socket from the workers. This process gets the signal when the agent is gone, until
// watch().
std::optional<UnderChannel> under_channel(Environment& environment);

}  // namespace ddprun::launcher
