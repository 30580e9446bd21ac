// SPDX-License-Identifier: Apache-2.0
// The rendezvous of a world: the shipped JobTable and its journal, which can be restarted at will.
// Each step is checked. Pure.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tests/rendezvous/membership/world/planted_bug.h"
#include "tests/rendezvous/membership/world/table_check.h"

namespace ddprun::membership::testing {

class WorldRendezvous {
 public:
  struct Options {
    bool journalled = false;  // if true, restart() may be called
    std::chrono::milliseconds keep_finished{0};
    bool looks_always = true;  // of TableCheck
    PlantedBug bug{};
    std::function<void(const std::string&)> violated{};
  };
  explicit WorldRendezvous(Options options);

  // Returns the actions. `is_late`: nobody would send that now, and it must change nothing.
  Actions step(const Event& event, Clock::time_point now, bool is_late = false);
  // Kills the rendezvous, and starts it again with its journal. No connection is left.
  void restart(Clock::time_point now);
  // Asks JobTable, which must not change by it.
  TailRoute ask_for_tail(const std::string& run_id, int global_rank, std::uint64_t request,
                         TailKind kind, Actions& out);

  std::optional<Clock::time_point> next_deadline() const;
  const JobTable& table() const { return *table_; }

 private:
  std::unique_ptr<JobTable> make_table();
  void keep();
  void violated_if(const std::optional<std::string>& wrong) const;
  void plant_in(event::Message& message) const;
  void plant_in(Actions& actions);

  const Options options_;
  TableCheck check_;
  int num_sessions_ = 0;
  std::unique_ptr<JobTable> table_;
  journal::Rows journal_;
  bool has_shown_ = false;  // whether the planted bug has shown itself
};

}  // namespace ddprun::membership::testing
