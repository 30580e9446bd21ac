// SPDX-License-Identifier: Apache-2.0
// A ddprun that a channel's agent started (channel_agent.h): what it inherits, and what it owes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/environment.h"

namespace ddprun::launcher {

struct UnderChannel {
  int words_fd = -1;              // for the report at the end
  int lifeline_fd = -1;           // at its end when the channel is
  int stop_signal = 0;            // for the workers then
  std::vector<int> listener_fds;  // of the rendezvous, bound already; empty: it is elsewhere

  // Standard input is for this node now: a round begins in which global rank 0 is here.
  void want_input() const;
  // In place of the report on stderr, which the launcher prints once for all nodes. `by_job`: the
  // rendezvous has decided it, not this node alone.
  void say_last_words(bool by_job, const std::string& report) const;
  // From now on only the lifeline says that the agent is gone.
  void watch_lifeline() const;
};

// nullopt: nobody did. Takes the variable that says so out of `environment`, keeps the descriptors
// from the workers, and sees to it that this process gets the signal when the agent is gone, until
// watch_lifeline().
std::optional<UnderChannel> under_channel(Environment& environment);

// The variable for a child whose words go to descriptor `words_fd`, with the lifeline and
// `num_listeners` more behind it, and that is to end by `stop_signal`: NAME=VALUE.
std::string under_channel_variable(int words_fd, int num_listeners, int stop_signal);

}  // namespace ddprun::launcher
