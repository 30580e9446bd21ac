// SPDX-License-Identifier: Apache-2.0
// A ddprun that a channel's agent started (channel_agent.h): what it inherits, and what it owes.
#pragma once

#include <optional>
#include <string>

#include "common/environment.h"
#include "launcher/hosts/channel_codec.h"

namespace ddprun::launcher {

struct UnderChannel {
  // A socket to the agent. At its end when the channel is.
  static constexpr int kFd = 3;

  bool serves = false;  // the rendezvous, on a free port; Serving says which
  int stop_signal = 0;  // for the workers at the channel's end

  // Besides Serving: Room without bytes for each round in which global rank 0 is here, and End with
  // the report that the launcher prints once for all nodes.
  static void say(const channel::Message& message);
  // From now on only the socket says that the agent is gone.
  static void watch();
};

// nullopt: nobody did. Takes the variable that says so out of `environment`, keeps the socket from
// the workers, and sees to it that this process gets the signal when the agent is gone, until
// watch().
std::optional<UnderChannel> under_channel(Environment& environment);

// The variable for a child of this process: NAME=VALUE.
std::string under_channel_variable(const UnderChannel& child);

}  // namespace ddprun::launcher
