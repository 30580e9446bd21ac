// SPDX-License-Identifier: Apache-2.0
// The decisions about a job and the sentences that tell them: may a node come in, does the job go
// on after a failure or a loss, how does it end. Pure functions of the job's state.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/membership/state.h"

namespace ddprun::membership {

// Refused with ExitCode::kUsage.
Refused refused_usage(std::string message);

// Why this new agent can't be taken in; nullopt: it can. Names both sides' values.
// What differs but is legal is left to join_warning.
std::optional<Refused> admission(const JobState& job, const Join& join,
                                 const ConnectionFacts& facts);

// Empty, or what its user should know ("runs another program than …").
std::string join_warning(const JobState& job, const Join& join);

// The live round ended by a worker's failure, already counted in job.failures.
// nullopt: a new round; else the job's end, with the worker's code or 128 + signal.
std::optional<JobEnd> after_failure(const JobState& job, const WorkerFailure& failure);

// A member of the live round (or of the one being stopped, or of the last one) is gone and out of
// job.nodes; if that ends the live round, job.node_losses has it already. nullopt: enough nodes are
// left for a new round.
std::optional<JobEnd> after_loss(const JobState& job, const std::string& what_happened);

// The live round ended without a finished step, already counted in job.idle_rounds. nullopt: the
// job goes on; else its end.
std::optional<JobEnd> after_idle_round(const JobState& job, const std::string& what_happened);

// How long the next round waits after a worker failed, when `quick_failures` rounds in a row lived
// less than kCrashLoopRound: nothing once, then 1 s, 2 s, 4 s, … up to the job's limit.
std::chrono::milliseconds restart_delay(const JobState& job, int quick_failures);
inline constexpr std::chrono::seconds kCrashLoopRound{60};

// How long a round must have run before it is ended for a node that joined (--on-join=restart),
// after so many such restarts in a row that brought nothing: 0, 30 s, 60 s, … up to an hour.
std::chrono::milliseconds join_restart_delay(int vain_restarts);

// "its workers were the first to fail 3 times (--exclude-after=3)"
std::string exclusion_reason(const JobState& job, int first_failures);
// "rank 3 asked for it: uncorrectable ECC error"
std::string exclusion_reason(const WorkerRequest& request);
// What an excluded node is told as its end.
JobEnd excluded(const JobState& job, const Node& node);

// A warning ended the live round, already counted in job.preemptions; the nodes that were warned
// are marked as excluded. nullopt: the job goes on without them. `takes_rendezvous`: one of them is
// the node whose ddprun serves this rendezvous.
std::optional<JobEnd> after_preemption(const JobState& job, const std::string& what_happened,
                                       bool takes_rendezvous);
JobEnd after_time_limit(const JobState& job, const std::string& what_happened);
// What a node that was warned is told as its end, while the job goes on.
JobEnd preempted(const JobState& job, const Node& node);

JobEnd after_stop_request(const JobState& job, const Node& node, const WorkerRequest& request);
JobEnd after_leave(const JobState& job, const Node& node, const Leave& leave);
JobEnd all_succeeded(const JobState& job);

// Deadlines that passed; each names who is missing.
JobEnd join_timeout(const JobState& job);
JobEnd start_timeout(const JobState& job);
JobEnd stop_timeout(const JobState& job, std::chrono::milliseconds waited);
JobEnd exit_barrier_timeout(const JobState& job);
// `what_happened`: why too few nodes were left.
JobEnd replacement_timeout(const JobState& job, const std::string& what_happened);

// "rank 3 (node 1, gpu07, pid 4711) failed with exit code 5" or "… was killed by SIGSEGV".
std::string describe(const WorkerFailure& failure);

inline constexpr std::size_t kMadeHashDigits = 12;

// Whether both are job ids that ddprun made, "<uid>-<hash of the command>", of one user.
bool differ_in_hash_only(std::string_view a, std::string_view b);

// To nodes that wait while another job, which may be meant to be theirs, waits beside it.
std::string other_job_hint(const JobState& job, const JobState& other, int other_nodes);

// How many nodes the next round needs and how many are there; where those are enough, how long they
// wait for more at most. `hint`: what may be wrong, or empty.
Waiting waiting_note(const JobState& job, int have_nodes, std::chrono::milliseconds longest,
                     const std::string& hint);

}  // namespace ddprun::membership
