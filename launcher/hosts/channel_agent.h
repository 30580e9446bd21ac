// SPDX-License-Identifier: Apache-2.0
// `ddprun --from-channel`: one node's agent for a launcher on another host, over standard input and
// output (docs/ssh.md). Also the side of the ddprun that the agent starts.
#pragma once

#include <optional>

#include "common/environment.h"
#include "launcher/hosts/channel_codec.h"

namespace ddprun::launcher {

// The flag that makes ddprun an agent.
inline constexpr char kFromChannel[] = "--from-channel";

// Runs until ddprun's end has been reported, or the channel has ended. `environment` is this
// process'. Returns the exit status.
int run_channel_agent(Environment environment);

struct UnderChannel {
  // A socket to the agent. It ends when the channel does.
  static constexpr int kFd = 3;

  bool serves = false;  // serves the rendezvous on a free port, told in a Serving
  int stop_signal = 0;  // sent to the workers at the channel's end

  // Sends a message to the agent. Besides Serving: an empty Room for each round in which the rank
  // that has stdin is here. Last comes End, with the report that the launcher prints once for all
  // nodes.
  static void say(const channel::Message& message);
  // From now on only the socket's end tells that the agent is gone.
  static void watch();
};

// Returns how this ddprun runs under an agent; nullopt: no agent started this process. Removes the
// variable that says so from `environment`, and keeps the socket from the workers. Until watch()
// this process gets `stop_signal` when the agent is gone.
std::optional<UnderChannel> under_channel(Environment& environment);

}  // namespace ddprun::launcher
