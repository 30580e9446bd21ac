// SPDX-License-Identifier: Apache-2.0
// The rendezvous' state (docs/status-page.md), as `ddprunctl top` shows it. Also keeps each job's
// past figures, since the daemon keeps none. All texts are harmless (styled_text.h), except run
// ids, which are unchanged. Pure.
#pragma once

#include <array>
#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/text.h"
#include "ctl/top/styled_text.h"

namespace ddprun::top {

namespace json = boost::json;

using json_at::at, json_at::list, json_at::number, json_at::text, json_at::texts, json_at::whole;

// The state of a node or a rank. If a cell stands for several, the greatest one is shown.
enum Condition : std::size_t {
  kSucceeded,
  kSpare,
  kIdle,
  kRunning,
  kStarting,
  kStopping,
  kOther,
  kSlow,  // a rank that lags behind
  kFailed,
  kLost
};
struct ConditionText {
  const char *phase, *sign, *words;  // the daemon's name, the cell's sign, and words for people
  char style;
};
inline constexpr std::array<ConditionText, kLost + 1> kConditions = {
    {{"succeeded", "✓", "finished", kGood},
     {"", "○", "spare", kDim},
     {"idle", "○", "waiting", kDim},
     {"running", "▪", "running", kInfo},
     {"starting", "▸", "starting", kWarn},
     {"stopping", "■", "being stopped", kWarn},
     {"", "?", "in another state", kWarn},
     {"", "▲", "straggling", kWarn},
     {"failed", "✕", "failed", kBad},
     {"", "!", "without a connection", kBad}}};

struct RankTime {
  std::int64_t rank = 0;                // global
  double seconds = 0, own_seconds = 0;  // of a step; its part outside of collectives
};

// nullopt: the value isn't known.
using Values = std::vector<std::optional<double>>;
std::optional<double> mean_of(const Values& values);
std::optional<double> median_of(std::vector<double> values);

struct Node {
  std::string host, phase;
  Condition condition = kOther;
  std::optional<std::int64_t> node_rank, first_rank;  // first_rank is a global rank
  std::int64_t num_workers = 0;
  std::optional<double> cpu, memory;     // 0 … 1
  std::optional<double> received, sent;  // bytes per second
  Values gpus;
  std::vector<RankTime> times;

  // "node 3 (gpu07)", or the host's name alone.
  std::string name() const {
    return node_rank ? concat("node ", *node_rank, " (", host, ")") : host;
  }
  bool has(std::int64_t rank) const {
    return first_rank && rank >= *first_rank && rank < *first_rank + num_workers;
  }
};

// Figures that have a history. The last three are means and a sum over all nodes.
enum Figure : std::size_t { kLoss, kSamples, kStepTime, kGpu, kCpu, kNetwork, kNumFigures };

struct Job {
  std::string run_id;
  bool is_over = false;
  json::value said = {};             // the job's whole page; fields not below are read from it
  std::size_t num_hidden = 0;        // nodes that are left out of `nodes`
  std::vector<Node> nodes = {};      // by rank, spares last; empty for a job that is over
  std::set<std::int64_t> slow = {};  // ranks that lag behind
  std::int64_t failed = -1;          // the rank that ended the round
  std::array<std::optional<double>, kNumFigures> figures = {};

  // Identifies the job in the list, where several jobs with one run id may be over.
  std::string key() const;
};

struct State {
  json::value daemon;
  std::vector<Job> jobs;     // live ones, then those that are over, the newest first
  std::size_t num_live = 0;  // how many of `jobs` are live
  std::size_t num_hidden_live = 0, num_hidden_over = 0;  // jobs left out of `jobs`
};

// Both throw Error(kProtocol) if the text or frame is wrong.
json::value read_json(std::string_view text);
// `frame` is of the type "state", or an object with the pages "status" and "jobs".
State read_state(const json::value& frame);

// Values in the order in which they came, at most kMostValues. A full series drops every second
// value of its older half, and keeps its first one.
using Series = std::vector<double>;
inline constexpr std::size_t kMostValues = 600;
void add_value(Series& series, double value);
using JobHistory = std::array<Series, kNumFigures>;
using History = std::map<std::string, JobHistory>;  // by run id
// Adds the figures of each live job, and drops the other jobs.
void remember(History& history, const State& state);

// Returns the global rank that a text of the daemon is about: "rank 3 (node 1, …) …"; -1: none.
std::int64_t rank_named(std::string_view text);
// Returns the rank whose output tells most: one that the daemon names as failed, hanging or lagging
// behind in this round, else 0.
std::int64_t rank_of_interest(const Job& job);
// Counts the nodes with a rank, or, while a round forms and none has one, the connected nodes.
// Hidden nodes count, too.
std::int64_t num_here(const Job& job);
// Returns one sentence about the nodes that the job waits for; empty: none.
std::string waits_text(const Job& job);
// "a, b, c, d and 7 more"
std::string names_text(const Lines& names, std::size_t most = 4);

}  // namespace ddprun::top
