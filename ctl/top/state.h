// SPDX-License-Identifier: Apache-2.0
// The rendezvous' state (docs/status-page.md), as `ddprunctl top` shows it. All texts in it are
// harmless (styled_text.h) but run ids, which are as they came. Pure.
#pragma once

#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::top {

namespace json = boost::json;

// Members of an object. One that is missing, or of another type, is null, empty, 0 or nullopt.
const json::value& member(const json::value& object, std::string_view name);
std::string text(const json::value& object, std::string_view name);
std::vector<std::string> texts(const json::value& object, std::string_view name);
const json::array& list(const json::value& object, std::string_view name);
std::int64_t whole(const json::value& object, std::string_view name);  // sums can't overflow
std::optional<double> number(const json::value& object, std::string_view name);  // finite

// The state of a node or a rank. A greater one matters more: it stands for several of them.
enum class Condition {
  kSucceeded,
  kSpare,
  kIdle,
  kRunning,
  kStarting,
  kStopping,
  kOther,
  kSlow,  // of a rank: it lags behind
  kFailed,
  kLost
};
struct ConditionText {
  const char *phase, *sign, *words;  // the daemon's name, a cell, and what it says
  char style;
};
constexpr std::size_t kNumConditions = 10;
const ConditionText& text_of(Condition condition);

struct RankTime {
  std::int64_t rank = 0;                // global
  double seconds = 0, own_seconds = 0;  // of a step; outside of collectives
};

// nullopt: it can't say.
struct Node {
  std::string host, phase;
  Condition condition = Condition::kOther;
  std::optional<std::int64_t> node_rank, first_rank;  // the latter is a global one
  std::int64_t num_workers = 0;
  std::optional<double> cpu, memory;     // 0 … 1
  std::optional<double> received, sent;  // bytes per second
  std::vector<std::optional<double>> gpus;
  std::vector<RankTime> times;

  std::string name() const;  // "node 3 (gpu07)", or the host's name alone
  bool has(std::int64_t rank) const;
};

struct Job {
  std::string run_id;
  bool is_over = false;
  json::value said;             // all of it; what isn't below is read where it is shown
  std::vector<Node> nodes;      // by rank, spares behind; none of a job that is over
  std::size_t num_hidden = 0;   // nodes that are not among them
  std::set<std::int64_t> slow;  // ranks that lag behind
  std::int64_t failed = -1;     // the rank that ended the round

  // Tells it from others in the list: of one run id several may be over.
  std::string key() const;
};

struct State {
  json::value daemon;
  std::vector<Job> jobs;  // live ones, then those that are over, the newest first
  std::size_t num_live = 0, num_hidden_over = 0;
};

// Both throw Error(kProtocol) where it makes no sense.
json::value read_json(std::string_view text);
// A frame of the type "state", or another object with the pages "status" and "jobs".
State read_state(const json::value& frame);

// The global rank that a text of the daemon is about, "rank 3 (node 1, …) …"; -1: none.
std::int64_t rank_named(std::string_view text);
// The rank whose output says most: one that failed, hangs or lags behind in this round, as the
// daemon names it; else 0.
std::int64_t rank_of_interest(const Job& job);
// One sentence about the nodes that the job waits for; empty: none.
std::string waits_text(const Job& job);
// "a, b, c, d and 7 more"
std::string names_text(const std::vector<std::string>& names, std::size_t most = 4);

}  // namespace ddprun::top
