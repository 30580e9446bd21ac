// SPDX-License-Identifier: Apache-2.0
// What the user looks at, and what keys change of it. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ctl/top/keys.h"
#include "ctl/top/state.h"

namespace ddprun::top {

enum class Focus { kList, kJob };
enum class NodeOrder { kRank, kCpu, kGpu, kNetwork, kStepTime };
const char* order_name(NodeOrder order);

// Of the connection to the rendezvous.
struct Connection {
  enum class Kind { kConnecting, kLive, kLost };
  Kind kind = Kind::kConnecting;
  std::string endpoint;  // as the user named it
  std::string why;       // it is not live
  std::string shown_at;  // when what is shown came, "03:11:40"; empty: there is nothing yet
};

// A rank whose output is looked at.
struct LookedAt {
  std::string run_id;
  std::int64_t rank = 0;
};

struct View {
  std::string wanted = {};          // key_of() of a job, or a run id; empty: the first one
  std::optional<Focus> focus = {};  // nullopt: the list where there are several jobs
  NodeOrder order = NodeOrder::kRank;
  bool has_help = false;
  std::size_t scroll = 0;  // lines of the job that are above the screen
  bool has_output = false;
  std::optional<LookedAt> looked_at = {};  // nullopt, or of another job: none of this one is picked
  std::string typed = {};                  // digits of a rank, before Enter

  Focus focus_on(const State& state) const;
};

// Jobs in the order of the list: live ones, then those that are over.
std::size_t num_jobs(const State& state);
std::string key_of(const State& state, std::size_t index);
// The one that is looked at; nullopt: there is none.
std::optional<std::size_t> chosen(const State& state, const View& view);

// What a picture of it said: for the keys.
struct Extent {
  std::size_t most_scroll = 0, page = 1;
};
// False: the user has enough.
bool press(View& view, Key key, const State& state, const Extent& extent);

}  // namespace ddprun::top
