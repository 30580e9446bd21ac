// SPDX-License-Identifier: Apache-2.0
// In which order an agent tries the endpoints of its rendezvous, turn after turn, and what to say
// of those that failed. Pure: no I/O, clock or thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "rendezvous/membership/connect_failure.h"

namespace ddprun::membership {

class EndpointTurns {
 public:
  // At least one.
  explicit EndpointTurns(std::vector<Endpoint> endpoints);

  // Forgets what failed. A turn goes through the list from `first` on, and then from its begin to
  // `first`.
  void begin(std::size_t first);

  // Whose attempt comes: an index into the list.
  std::size_t current() const { return current_; }
  // What an attempt may take, beside other limits: of one endpoint kLongestAttempt; of several less
  // in the first turns, so that one that drops packets doesn't hide the others.
  std::chrono::milliseconds attempt_limit() const;
  // current() failed, the next one comes. True: all have failed since the turn began.
  bool failed(const ConnectFailure& failure);

  // "a:29400", "a:29400 or b:29400".
  std::string names() const;
  // What happened last at each: "connection refused (…)"; of several "a:29400: connection refused
  // (…); b:29400: it is a standby". Without any failure: "there was no time for an attempt".
  std::string failures() const;

  static constexpr std::chrono::milliseconds kLongestAttempt{5'000};
  static constexpr std::chrono::milliseconds kFirstAttempt{1'000};  // of several

 private:
  bool is_alone() const { return endpoints_.size() == 1; }
  std::string described(const ConnectFailure& failure) const;

  const std::vector<Endpoint> endpoints_;
  std::vector<std::string> failures_;  // by endpoint; empty: it wasn't tried
  std::size_t current_ = 0;
  std::size_t num_failed_ = 0;  // of the current turn
  int num_turns_ = 0;           // that are over
};

}  // namespace ddprun::membership
