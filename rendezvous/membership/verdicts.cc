// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/verdicts.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "common/endpoint.h"
#include "common/exit_codes.h"
#include "common/signal_names.h"
#include "common/text.h"
#include "rendezvous/messages/codec.h"
#include "rendezvous/messages/job_settings.h"

namespace ddprun::membership {
namespace {

// Returns the number of nodes that the job wants: "2 nodes", "1:4 nodes".
std::string wanted_nodes(const JobState& job) { return counted(nnodes_text(job.settings), "node"); }

constexpr std::size_t kMaxNamedNodes = 8;

std::string seconds_text(std::chrono::milliseconds time) {
  if (time.count() % 1000 == 0) return concat(time.count() / 1000, " s");
  return concat(time.count(), " ms");
}

// Returns "a, b and 3 more" for the nodes that `wanted` picks.
template <typename Predicate>
std::string names(const JobState& job, Predicate wanted) {
  std::vector<const Node*> picked;
  for (const auto& [id, node] : job.nodes) {
    if (wanted(node)) picked.push_back(&node);
  }
  return first_listed(picked, kMaxNamedNodes, [](const Node* node) { return describe(*node); });
}

// Returns whether the failure names a rank; if all ranks hang together, it names none.
bool names_a_rank(const WorkerFailure& failure) {
  return !failure.hung || failure.global_rank >= 0;
}

JobEnd end_of(const JobState& job, int exit_code, std::string reason) {
  JobEnd end;
  end.exit_code = exit_code;
  end.reason = std::move(reason);
  end.rounds = job.round;
  return end;
}

JobEnd retryable(const JobState& job, std::string reason) {
  return end_of(job, static_cast<int>(ExitCode::kRetryable), std::move(reason));
}

// Returns whether MIN nodes are left, or the job waits for others.
bool enough_are_left(const JobState& job, std::ptrdiff_t left) {
  return left >= job.settings.min_nodes || job.timeouts.replacement.count() > 0;
}

// Counts the workers of all nodes and of `join`. It returns an upper bound if that isn't too large:
// every join calls this, and counting needs a walk over all nodes.
std::int64_t num_workers_with(const JobState& job, const Join& join) {
  const auto most = static_cast<std::int64_t>(job.nodes.size() + 1) * kMaxWorkersPerNode;
  if (most <= std::numeric_limits<int>::max()) return most;
  std::int64_t sum = join.num_workers;
  for (const auto& [id, node] : job.nodes) sum += node.join.num_workers;
  return sum;
}

bool has_a_place(const Node& node) {
  return node.connection && !node.gone && !node.excluded && !node.warned;
}

// Returns "ddprun, pid 4711 on gpu01, which runs train.py".
std::string holder_text(const Node& holder, const Join& join) {
  std::string text = concat("ddprun, pid ", holder.join.pid, " on ", holder.join.host,
                            ", which runs ", holder.join.program);
  if (holder.join.user_id != join.user_id) text += concat(" as user ", holder.join.user_id);
  return text;
}

}  // namespace

Refused refused_usage(std::string message) {
  return Refused{std::move(message), static_cast<int>(ExitCode::kUsage)};
}

std::optional<Refused> admission(const JobState& job, const Join& join,
                                 const ConnectionFacts& facts) {
  if (const auto out = job.excluded.find(node_key(join, facts)); out != job.excluded.end()) {
    return Refused{concat("job ", job.run_id, ": ", out->first, " is excluded: ", out->second),
                   static_cast<int>(ExitCode::kRetryable)};
  }
  if (const auto difference = first_difference(join.settings, job.settings)) {
    const std::string first =
        job.nodes.empty() ? "the node that came first"
                          : concat(describe(job.nodes.begin()->second), ", which came first");
    return refused_usage(concat("job ", job.run_id, ": ", difference->flag, " is ",
                                difference->here, " here, but ", difference->there, " on ", first,
                                "; give the same value on every node"));
  }
  if (num_workers_with(job, join) > std::numeric_limits<int>::max()) {
    return refused_usage(concat("job ", job.run_id, ": with the ", join.num_workers,
                                " workers of this node there would be more than ",
                                std::numeric_limits<int>::max(),
                                "; give fewer with --nproc-per-node"));
  }
  if (!join.node_rank) return refuse_surplus(job, join, facts);
  if (*join.node_rank < 0 || *join.node_rank >= job.settings.max_nodes) {
    return refused_usage(concat("--node-rank=", *join.node_rank,
                                " is out of range: with --nnodes=", nnodes_text(job.settings),
                                " node ranks are 0 to ", job.settings.max_nodes - 1));
  }
  const auto holder = job.rank_wishes.find(*join.node_rank);
  if (holder != job.rank_wishes.end() && job.nodes.at(holder->second).connection) {
    return refused_usage(concat("--node-rank=", *join.node_rank, " is already taken by ",
                                describe(job.nodes.at(holder->second)),
                                "; give each node its own"));
  }
  return refuse_surplus(job, join, facts);
}

std::string join_warning(const JobState& job, const Join& join) {
  for (const auto& [id, node] : job.nodes) {
    if (node.join.program == join.program) return {};
    return concat("this node runs ", join.program, ", but ", describe(node), " runs ",
                  node.join.program);
  }
  return {};
}

std::optional<JobEnd> after_failure(const JobState& job, const WorkerFailure& failure) {
  const auto left = nodes_left(job);
  const bool enough_nodes = enough_are_left(job, left);
  const bool restarts_left = job.failures <= job.settings.max_restarts;
  if (restarts_left && enough_nodes && !failure.lasting) return std::nullopt;
  int code = failure.signal_number != 0 ? exit_status_for_signal(failure.signal_number)
                                        : failure.exit_code;
  if (code == 0) code = 1;  // a failure must not end the job with 0
  std::string reason = describe(failure);
  if (!enough_nodes) {
    reason +=
        concat("; with the excluded nodes out, ", left, " of ", wanted_nodes(job), " are left");
  } else if (restarts_left) {
    reason += "; a restart doesn't mend that";
  } else if (job.settings.max_restarts > 0) {
    reason += job.settings.max_restarts == 1
                  ? "; its one restart is used up"
                  : concat("; all ", job.settings.max_restarts, " restarts are used up");
  }
  JobEnd end = end_of(job, code, std::move(reason));
  if (names_a_rank(failure)) end.first_failure = failure;
  return end;
}

std::ptrdiff_t nodes_left(const JobState& job) {
  return std::ranges::count_if(
      job.nodes, [](const auto& entry) { return !entry.second.gone && !entry.second.excluded; });
}

std::optional<JobEnd> after_loss(const JobState& job, const std::string& what_happened) {
  const auto left = nodes_left(job);
  if (!enough_are_left(job, left)) {
    return retryable(job, concat(what_happened, "; ", left, " of ", wanted_nodes(job),
                                 " are left and there is no spare"));
  }
  if (job.node_losses > job.settings.max_node_losses) {
    return retryable(
        job, concat(what_happened, "; the job lost nodes ", counted(job.node_losses, "time"),
                    ", --max-node-losses is ", job.settings.max_node_losses));
  }
  return std::nullopt;
}

std::optional<JobEnd> after_idle_round(const JobState& job, const std::string& what_happened) {
  const int limit = job.settings.no_progress_restarts;
  if (limit == 0 || job.idle_rounds < limit) return std::nullopt;
  return end_of(job, static_cast<int>(ExitCode::kNoProgress),
                concat(job.idle_rounds,
                       " rounds in a row ended without a finished step "
                       "(--no-progress-restarts=",
                       limit, "); the last one: ", what_happened));
}

std::chrono::milliseconds restart_delay(const JobState& job, int quick_failures) {
  constexpr int kMostDoublings = 20;
  if (quick_failures < 2) return std::chrono::milliseconds(0);
  const std::chrono::milliseconds delay =
      std::chrono::seconds(1) * (1 << std::min(quick_failures - 2, kMostDoublings));
  return std::min(delay, job.timeouts.max_restart_delay);
}

std::chrono::milliseconds join_restart_delay(int vain_restarts) {
  constexpr std::chrono::milliseconds kFirst = std::chrono::seconds(30);
  constexpr std::chrono::milliseconds kMost = std::chrono::hours(1);
  constexpr int kMostDoublings = 10;
  if (vain_restarts == 0) return std::chrono::milliseconds(0);
  return std::min(kMost, kFirst * (1 << std::min(vain_restarts - 1, kMostDoublings)));
}

std::string exclusion_reason(const JobState& job, int first_failures) {
  return concat("its workers were the first to fail ", counted(first_failures, "time"),
                " (--exclude-after=", job.settings.exclude_after, ")");
}

std::string exclusion_reason(const WorkerRequest& request) {
  if (request.global_rank == kAgentItself) return request.reason;
  return concat("rank ", request.global_rank, " asked for it: ", request.reason);
}

std::optional<JobEnd> after_preemption(const JobState& job, const std::string& what_happened,
                                       bool takes_rendezvous) {
  const auto left = nodes_left(job);
  std::string why;
  if (takes_rendezvous) {
    why = left == 0 ? "; it is the job's only node"
                    : "; its ddprun serves the rendezvous, without which no other node can go on";
  } else if (!enough_are_left(job, left)) {
    why = concat("; ", left, " of ", wanted_nodes(job), " are left");
  } else if (job.preemptions > job.settings.max_preemptions) {
    why = concat("; the job was preempted ", counted(job.preemptions, "time"),
                 ", --max-preemptions is ", job.settings.max_preemptions);
  } else {
    return std::nullopt;
  }
  return retryable(job, concat("preempted: ", what_happened, why));
}

JobEnd after_time_limit(const JobState& job, const std::string& what_happened) {
  return end_of(job, static_cast<int>(ExitCode::kTimeLimit), what_happened);
}

JobEnd preempted(const JobState& job, const Node& node) {
  return retryable(
      job, concat("preempted: ", describe(node), "; job ", job.run_id, " goes on without it"));
}

JobEnd after_stop_request(const JobState& job, const Node& node, const WorkerRequest& request) {
  return end_of(job, request.exit_code,
                concat("rank ", request.global_rank, " on ", describe(node),
                       " asked to stop the job: ", request.reason));
}

JobEnd excluded(const JobState& job, const Node& node) {
  return retryable(job, concat(node.key, " is excluded from the job: ", job.excluded.at(node.key)));
}

JobEnd after_leave(const JobState& job, const Node& node, const Leave& leave) {
  return end_of(job, leave.exit_code, concat(describe(node), " left: ", leave.reason));
}

JobEnd all_succeeded(const JobState& job) { return end_of(job, 0, {}); }

JobEnd join_timeout(const JobState& job, const std::string& hint) {
  const auto came = std::ranges::count_if(
      job.nodes, [](const auto& entry) { return entry.second.connection.has_value(); });
  const char* advice = is_static(job.settings)
                           ? "the same --master-addr and --master-port, and its own --node-rank, "
                             "on each of the others"
                           : "the same --rdzv-endpoint and --rdzv-id on the others";
  return retryable(
      job, concat("only ", came, " of ", wanted_nodes(job), " came to job ", job.run_id, " within ",
                  seconds_text(job.timeouts.join), ": ",
                  names(job, [](const Node& node) { return node.connection.has_value(); }),
                  hint.empty() ? concat("; start ddprun with ", advice) : ". " + hint));
}

JobEnd replacement_timeout(const JobState& job, const std::string& what_happened) {
  return retryable(
      job, concat(what_happened, "; ", nodes_left(job), " of ", wanted_nodes(job),
                  " are left and no other came within ", seconds_text(job.timeouts.replacement)));
}

JobEnd start_timeout(const JobState& job) {
  return retryable(job, concat("round ", job.round, ": workers were not started within ",
                               seconds_text(job.timeouts.start), " on ", names(job, [](auto& node) {
                                 return node.phase == NodePhase::kStarting;
                               })));
}

JobEnd stop_timeout(const JobState& job, std::chrono::milliseconds waited) {
  return retryable(
      job,
      concat("round ", job.round, ": workers were not stopped within ", seconds_text(waited),
             " on ", names(job, [](auto& node) { return node.phase == NodePhase::kStopping; })));
}

JobEnd exit_barrier_timeout(const JobState& job) {
  return retryable(
      job, concat("round ", job.round, ": still running ", seconds_text(job.timeouts.exit_barrier),
                  " after the first node finished: ", names(job, [](auto& node) {
                    return is_member(node) && node.phase != NodePhase::kSucceeded;
                  })));
}

std::string describe(const WorkerFailure& failure) {
  if (!names_a_rank(failure)) return "no progress: " + failure.note;
  std::string text = concat("rank ", failure.global_rank, " (node ", failure.node_rank);
  if (!failure.host.empty()) text += ", " + failure.host;
  if (failure.pid > 0) text += concat(", pid ", failure.pid);
  if (failure.hung) return concat(text, ") made no progress: ", failure.note);
  text += failure.signal_number != 0 ? ") was killed by " + signal_name(failure.signal_number)
                                     : concat(") failed with exit code ", failure.exit_code);
  if (!failure.note.empty()) text += ": " + failure.note;
  return text;
}

std::string_view user_of_made_id(std::string_view id) {
  constexpr std::string_view kDigits = "0123456789", kHexDigits = "0123456789abcdef";
  const std::size_t dash = id.find('-');
  const bool made = dash != std::string_view::npos && dash > 0 &&
                    id.size() - dash - 1 == kMadeHashDigits &&
                    id.find_first_not_of(kDigits) == dash &&
                    id.find_first_not_of(kHexDigits, dash + 1) == std::string_view::npos;
  return made ? id.substr(0, dash) : std::string_view();
}

std::string other_job_hint(const JobState& job, const JobState& other, int other_nodes) {
  return concat("Another job of yours, ", other.run_id, ", waits too (", other_nodes, " of ",
                other.settings.min_nodes, "): if it should be this one, ", job.run_id,
                ", the commands or --nnodes differ; give both the same --rdzv-id");
}

Waiting waiting_note(const JobState& job, int have_nodes, std::chrono::milliseconds longest,
                     const std::string& hint) {
  Waiting waiting;
  waiting.have_nodes = have_nodes;
  waiting.need_nodes = job.settings.min_nodes;
  if (have_nodes < job.settings.min_nodes || longest.count() <= 0) {
    if (!hint.empty()) {
      waiting.note = concat("waiting for nodes: ", have_nodes, " of ", waiting.need_nodes,
                            " are here. ", hint);
    }
    return waiting;
  }
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(longest).count();
  const std::string here =
      concat(counted(have_nodes, "node"), have_nodes == 1 ? " is here" : " are here");
  if (have_nodes >= job.settings.max_nodes) {
    waiting.note = concat(here, "; the next round begins in ", seconds, " s");
  } else if (job.round > 0) {
    waiting.note =
        concat(here, ", enough to go on; waiting up to ", seconds, " s for more (at most ",
               job.settings.max_nodes, "); later ones wait for the next round");
  } else {
    waiting.note =
        concat(here, ", enough to start; waiting up to ", seconds, " s for more (at most ",
               job.settings.max_nodes, "; --last-call-timeout)");
  }
  if (!hint.empty()) waiting.note += ". " + hint;
  return waiting;
}

// ---- surplus nodes ----

std::optional<Refused> refuse_surplus(const JobState& job, const Join& join,
                                      const ConnectionFacts& facts) {
  const JobSettings& settings = job.settings;
  const bool fixed = is_static(settings);
  const bool no_spares = fixed || (settings.max_nodes == 1 && settings.spares == 0);
  const auto places =
      static_cast<std::size_t>(settings.max_nodes + (no_spares ? 0 : settings.spares));
  if (job.nodes.size() < places) return std::nullopt;  // every join calls this
  const Node* holder = nullptr;
  std::size_t num_here = 0;
  bool one_of_them = false;
  for (const auto& [id, node] : job.nodes) {
    if (!has_a_place(node)) continue;
    if (holder == nullptr) holder = &node;
    ++num_here;
    one_of_them |= node.join.program == join.program && node.join.user_id == join.user_id;
  }
  if (num_here < places || (one_of_them && !no_spares)) return std::nullopt;
  if (fixed) return port_in_use(job, join, facts);
  return refused_usage(concat(
      "job ", job.run_id, " already has ", num_here, " of ", counted(places, "node"),
      ": it is in use by ", holder_text(*holder, join), "; for a new job give another --rdzv-id"));
}

Refused port_in_use(const JobState& job, const Join& join, const ConnectionFacts& facts) {
  return refused_usage(concat("port ", facts.local_port, " is in use by ",
                              holder_text(job.nodes.begin()->second, join), " (job ", job.run_id,
                              "); give this job another --master-port"));
}

std::string client_of(const ConnectionFacts& facts) {
  if (facts.user) return concat("user ", *facts.user);
  return facts.peer_is_loopback ? "this machine" : network_of(facts.peer_addr);
}

std::string client_of(const JobState& job) {
  if (job.owner) return concat("user ", *job.owner);
  return job.nodes.empty() ? std::string() : client_of(job.nodes.begin()->second.facts);
}

Refused too_many_jobs(const std::string& client, std::size_t limit) {
  return {.message = concat("jobs of ", client, " are as many as one user or address may have at ",
                            "once, ", limit, " (ddprund --jobs-per-client=N)"),
          .exit_code = static_cast<int>(ExitCode::kRetryable)};
}

Waiting spare_note(const JobState& job, int num_members, int num_spares) {
  Waiting waiting;
  waiting.spare = true;
  const std::string max = std::to_string(job.settings.max_nodes);
  if (num_members < job.settings.max_nodes) {
    waiting.note = concat("job ", job.run_id, " runs on ", counted(num_members, "node"),
                          "; this one comes in with the next round");
  } else if (num_spares <= job.settings.spares) {
    waiting.note = concat("job ", job.run_id, " has its ", counted(max, "node"),
                          "; ready as spare (", num_spares, " of ", job.settings.spares, ")");
  } else {
    waiting.note = concat("job ", job.run_id, " already has ", max, " of ", max,
                          "; waiting as spare; for a new job give --rdzv-id");
  }
  return waiting;
}

// ---- in place ----

std::string doubt_about_failure(const JobState& job, const WorkerFailure& failure) {
  if (job.settings.recovery != Recovery::kInPlace) return "not asked for";
  // Workers may use an old store, or an old round's part of one, as long as they live.
  if (!store_is_at_node(job.settings)) return "the workers' store is at the rendezvous";
  if (failure.hung) return "no worker has died";
  if (job.verdict_after_stop) return "the job ends";
  if (!job.preempting.empty()) return "a node is about to be taken away";
  int num_members = 0;
  for (const auto& [id, node] : job.nodes) {
    if (!is_member(node)) continue;
    ++num_members;
    if (node.phase == NodePhase::kStarting) return describe(node) + " still starts";
    if (node.phase != NodePhase::kRunning) return describe(node) + " has finished";
    if (!node.connection) return describe(node) + " has no connection";
    if (node.excluded) return describe(node) + " is excluded";
  }
  if (num_members != job.round_nodes) return "a node was lost";
  return {};
}

std::string doubt_about_kept(const JobState& job) {
  if (job.verdict_after_stop) return "the job ends";
  int num_members = 0;
  for (const auto& [id, node] : job.nodes) {
    if (!is_member(node)) continue;
    ++num_members;
    if (node.kept == 0) return describe(node) + " has no workers to go on with";
    if (!node.connection) return describe(node) + " has no connection";
    if (node.excluded || node.left || node.warned) return describe(node) + " goes";
  }
  if (num_members != job.round_nodes) return "a node was lost";
  return {};
}

std::vector<NodeId> members_in_order(const JobState& job) {
  std::vector<NodeId> order;
  for (const auto& [id, node] : job.nodes) {
    if (is_member(node)) order.push_back(id);
  }
  std::ranges::sort(order, [&](NodeId a, NodeId b) {
    return job.nodes.at(a).node_rank < job.nodes.at(b).node_rank;
  });
  return order;
}

}  // namespace ddprun::membership
