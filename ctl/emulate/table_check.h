// SPDX-License-Identifier: Apache-2.0
// The invariants of the rendezvous, checked on each of its steps: what it decides, tells and waits
// for. Pure.
#pragma once

#include <optional>
#include <string>

#include "rendezvous/membership/machine.h"

namespace ddprun::ctl {

class TableCheck {
 public:
  // What the job was asked for.
  explicit TableCheck(membership::JobSettings settings) : settings_(std::move(settings)) {}

  // What followed from one event. Returns what is wrong: a rank that isn't given exactly once in a
  // round that starts, a round of a size or at a cost that is not allowed, two different ends.
  std::optional<std::string> stepped(const membership::JobTable& table,
                                     const membership::Actions& actions);
  // `deadline`: when the rendezvous will look again by itself.
  static std::optional<std::string> waits(const membership::JobTable& table,
                                          std::optional<Clock::time_point> deadline);

  // An event that must change nothing: all of this before, then what followed from it.
  static std::string fingerprint(const membership::JobTable& table);
  static std::optional<std::string> ignored(const std::string& before,
                                            const membership::JobTable& table,
                                            const membership::Actions& actions);

 private:
  std::optional<std::string> round_started(const membership::JobTable& table,
                                           const membership::Actions& actions, std::uint64_t round);
  std::optional<std::string> within_budget(const membership::JobStatus& job) const;

  const membership::JobSettings settings_;
  std::uint64_t round_ = 0;
  std::optional<int> end_;
};

}  // namespace ddprun::ctl
