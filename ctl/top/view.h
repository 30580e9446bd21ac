// SPDX-License-Identifier: Apache-2.0
// The user's view of the jobs, and how keys change it. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ctl/top/state.h"

namespace ddprun::top {

enum class NodeOrder { kRank, kCpu, kGpu, kNetwork, kStepTime };
const char* order_name(NodeOrder order);

inline constexpr char kLookAway[] = R"({"tail":null})";

// Room for scrolling, as the last picture had it.
struct Extent {
  std::size_t most_scroll = 0, page = 1;
};

struct View {
  std::string wanted = {};            // Job::key(), or a run id; empty: the first one
  std::optional<bool> has_list = {};  // nullopt: where there are several jobs
  NodeOrder order = NodeOrder::kRank;
  bool has_help = false, has_output = false;
  std::size_t scroll = 0;      // lines of the job that are above the screen
  std::string output_of = {};  // run id of the job whose rank's output is shown
  std::int64_t rank = 0;       // that one
  std::string typed = {};      // digits of a rank, before Enter

  bool shows_list(const State& state) const;
  // The job that is looked at, an index; nullopt: there is none.
  std::optional<std::size_t> chosen(const State& state) const;
  // Null also where it is over.
  const Job* live_job(const State& state) const;
  bool shows_output(const State& state) const;

  // `key`: as ncurses has it. False: the user has enough.
  bool press(int key, const State& state, const Extent& extent);
  // After each state: with another job the output is that of its rank of interest.
  void settle(const State& state);

  // Why the rendezvous can't be asked for the output; empty: it can.
  std::string why_not_asked(const State& state) const;
  // The rendezvous is to be told this: kLookAway, or the rank (docs/status-page.md).
  std::string wish(const State& state) const;

 private:
  bool press_output_key(int key, const State& state);
};

}  // namespace ddprun::top
