// SPDX-License-Identifier: Apache-2.0
// The hosts of an emulation: who they are, how they are built, which of them are there.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bench/fleet/emulation.h"
#include "bench/fleet/random.h"
#include "bench/fleet/world.h"

namespace ddprun::bench {

membership::JobSettings job_settings(const EmulationOptions& options);

class Fleet {
 public:
  // `steps`: workers say that they made a first step. `slow`: nodes that lag. All but the options
  // outlive it.
  Fleet(const EmulationOptions& options, std::string run_id, bool steps,
        const std::vector<int>& slow, World& world, Random& random);

  int size() const { return static_cast<int>(seats_.size()); }
  bool is_slow(int node) const { return seat(node).slow; }
  // How late a slow node comes.
  std::chrono::microseconds lateness();

  // An agent starts there: the first one, or one more after the last has died or exited.
  void begin(int node);
  // An agent starts there in a while, unless no more are wanted then.
  void begin_again(int node);
  void want_no_more() { wants_more_ = false; }

  bool is_in(int node) const { return seat(node).in; }
  int num_in() const { return num_in_; }
  // True: it is there for the first time.
  bool came_in(int node);
  void went_out(int node);

 private:
  struct Seat {
    bool slow = false;
    bool in = false;  // welcome, not dead, not exited
    int num_begun = 0;
    bool was_in = false;
    std::chrono::milliseconds spawn_time{0}, stop_time{0};
  };
  const Seat& seat(int node) const { return seats_[static_cast<std::size_t>(node)]; }
  Seat& seat(int node) { return seats_[static_cast<std::size_t>(node)]; }
  std::chrono::milliseconds at_most(std::chrono::milliseconds most);

  const EmulationOptions& options_;
  const std::string run_id_;
  const bool steps_;
  World& world_;
  Random& random_;
  std::vector<Seat> seats_;
  int num_in_ = 0;
  bool wants_more_ = true;
};

}  // namespace ddprun::bench
