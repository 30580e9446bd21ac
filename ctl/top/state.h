// SPDX-License-Identifier: Apache-2.0
// What a rendezvous says of its jobs (docs/status-page.md), as `ddprunctl top` shows it. What it
// says may be anything: texts are as they came, and made harmless where they are shown (line.h).
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::top {

// nullopt: it can't say.
struct Gpu {
  std::optional<double> use;  // 0 … 1
  std::optional<double> memory_bytes, memory_used_bytes;
};
struct Monitor {
  std::optional<double> cpu;  // 0 … 1
  std::optional<double> memory_bytes, memory_used_bytes;
  std::optional<double> received, sent;  // bytes per second
  std::vector<Gpu> gpus;
};

struct RankTime {
  std::int64_t rank = 0;                // global
  double seconds = 0, own_seconds = 0;  // of a step; outside of collectives
};

enum class NodeState {
  kIdle,
  kSpare,
  kStarting,
  kRunning,
  kSucceeded,
  kStopping,
  kFailed,
  kLost,
  kOther
};

struct Node {
  std::string host, addr, phase;
  NodeState state = NodeState::kOther;
  std::optional<std::int64_t> node_rank;
  std::optional<std::int64_t> first_rank;  // global; nullopt: not known
  std::int64_t num_workers = 0;
  std::optional<Monitor> monitor;
  std::vector<RankTime> times;
};

struct Spread {
  double mean = 0, worst = 0;
  std::int64_t worst_rank = 0;
};

struct Training {
  std::string phase;
  std::int64_t step = 0;
  std::optional<double> loss, samples_per_second;
  std::int64_t nan_ranks = 0;  // whose loss is no number, which is not in the mean
  std::optional<Spread> step_seconds, communication, exposed, loader;
};

struct Round {
  std::int64_t round = 0, num_nodes = 0, world_size = 0, first_step = 0, last_step = 0;
  double seconds = 0;                // all that was spent in it, as far as it is told
  std::string cause, first_failure;  // empty: none yet
};

struct Hang {
  std::int64_t round = 0;
  std::string text;
  std::vector<std::string> lines;
};

struct Job {
  std::string run_id, phase, reason, preempting;
  std::int64_t round = 0, min_nodes = 0, max_nodes = 0;
  std::int64_t failures = 0, max_restarts = 0, node_losses = 0, max_node_losses = 0;
  std::int64_t preemptions = 0, max_preemptions = 0;
  std::int64_t idle_rounds = 0, max_idle_rounds = 0;
  std::optional<std::int64_t> exit_code;
  std::optional<double> ettr;  // 0 … 1
  std::optional<Training> training;
  std::optional<Hang> hang;
  std::vector<Node> nodes;     // in the order of their ranks, spares behind
  std::size_t num_hidden = 0;  // nodes that are not among them
  std::vector<Round> rounds;   // oldest first
  std::vector<std::string> stragglers;
  std::map<std::string, std::string> excluded;  // host → why
};

struct FinishedJob {
  std::string run_id, reason, first_failure, summary, began, ended;
  std::int64_t exit_code = 0, rounds = 0, failures = 0, node_losses = 0, preemptions = 0,
               num_nodes = 0;
  std::vector<std::string> nodes;
};

// What a rank wrote last, oldest line first. `note`: which of its output is not in it, and why.
struct Tail {
  std::string run_id;
  std::int64_t rank = 0;  // global
  std::vector<std::string> lines;
  std::string note;
};

struct Daemon {
  std::string version;
  std::int64_t pid = 0, num_agents = 0;
  double uptime_seconds = 0;
  bool is_embedded = false;
  bool knows_tails = false;          // else it ends the connection of who asks for one
  std::string role;                  // empty: it is alone
  std::optional<bool> journal_kept;  // nullopt: there is none
  std::string journal_trouble;       // while it isn't
};

struct State {
  Daemon daemon;
  std::vector<Job> jobs;
  std::vector<FinishedJob> finished;  // newest first
  std::size_t num_hidden_finished = 0;
};

// A frame of /v1/watch.
struct Message {
  enum class Kind { kState, kStatus, kTooLarge, kTail, kEnd, kUnknown };
  Kind kind = Kind::kUnknown;
  State state;           // kState; of kStatus only its daemon
  double num_bytes = 0;  // kTooLarge
  Tail tail;
  std::string why;  // kEnd
};

// Both throw Error(kProtocol) where it makes no sense.
Message read_message(std::string_view frame);
// The pages /v1/status and /v1/jobs.
State read_pages(const std::string& status, const std::string& jobs);

// "node 3 (gpu07)", or the host's name alone.
std::string node_name(const Node& node);
// The global rank that a text of the daemon is about, "rank 3 (node 1, …) …"; -1: none.
std::int64_t rank_named(std::string_view text);
// The rank whose output says most: one that failed, hangs or lags behind in the round that is, as
// the daemon names it; else 0.
std::int64_t rank_of_interest(const Job& job);
// Who is waited for, one sentence; empty: nobody.
std::string waits_text(const Job& job);
// "a, b, c, d and 7 more"
std::string names_text(const std::vector<std::string>& names, std::size_t most = 4);

}  // namespace ddprun::top
