// SPDX-License-Identifier: Apache-2.0
// The decisions about a job and the sentences that tell them. Decides whether a node may come in,
// whether the job goes on after a failure or a loss, and how it ends. Pure functions of the job's
// state.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/membership/state.h"

namespace ddprun::membership {

// Refused with ExitCode::kUsage.
Refused refused_usage(std::string message);

// Why this new agent can't be taken in; nullopt: it can. Names both sides' values.
// A legal difference is left to join_warning.
std::optional<Refused> admission(const JobState& job, const Join& join,
                                 const ConnectionFacts& facts);

// Empty, or what its user should know ("runs another program than …").
std::string join_warning(const JobState& job, const Join& join);

// The live round ended by a worker's failure, already counted in job.failures.
// nullopt: a new round. Else the job's end, with the worker's code or 128 + signal.
std::optional<JobEnd> after_failure(const JobState& job, const WorkerFailure& failure);

// A node is gone, and out of job.nodes. It was in the round that runs, that is being stopped, or
// that ran last. If that ends the live round, job.node_losses has it already. Returns `nullopt` if
// enough nodes are left for a new round.
std::optional<JobEnd> after_loss(const JobState& job, const std::string& what_happened);

// The live round ended without a finished step, already counted in job.idle_rounds. nullopt: the
// job goes on; else its end.
std::optional<JobEnd> after_idle_round(const JobState& job, const std::string& what_happened);

// How long the next round waits after a worker failed, when `quick_failures` rounds in a row lived
// less than kCrashLoopRound. It is nothing once, then 1 s, 2 s, 4 s, … up to the job's limit.
std::chrono::milliseconds restart_delay(const JobState& job, int quick_failures);
inline constexpr std::chrono::seconds kCrashLoopRound{60};

// How long a round must have run before it is ended for a node that joined (--on-join=restart). It
// grows with the number of such restarts in a row that brought nothing: 0, 30 s, 60 s, … up to an
// hour.
std::chrono::milliseconds join_restart_delay(int vain_restarts);

// "its workers were the first to fail 3 times (--exclude-after=3)"
std::string exclusion_reason(const JobState& job, int first_failures);
// "rank 3 asked for it: uncorrectable ECC error"
std::string exclusion_reason(const WorkerRequest& request);
// The end that an excluded node is told.
JobEnd excluded(const JobState& job, const Node& node);

// A warning ended the live round, already counted in job.preemptions; the nodes that were warned
// are marked as excluded. nullopt: the job goes on without them. `takes_rendezvous`: one of them is
// the node whose ddprun serves this rendezvous.
std::optional<JobEnd> after_preemption(const JobState& job, const std::string& what_happened,
                                       bool takes_rendezvous);
JobEnd after_time_limit(const JobState& job, const std::string& what_happened);
// Nodes that can be in the next round, if their connections come back; spares are among them.
std::ptrdiff_t nodes_left(const JobState& job);
// The end that a warned node is told, while the job goes on.
JobEnd preempted(const JobState& job, const Node& node);

JobEnd after_stop_request(const JobState& job, const Node& node, const WorkerRequest& request);
JobEnd after_leave(const JobState& job, const Node& node, const Leave& leave);
JobEnd all_succeeded(const JobState& job);

// Deadlines that passed; each names who is missing.
// `hint`: what may be wrong, or empty.
JobEnd join_timeout(const JobState& job, const std::string& hint);
JobEnd start_timeout(const JobState& job);
JobEnd stop_timeout(const JobState& job, std::chrono::milliseconds waited);
JobEnd exit_barrier_timeout(const JobState& job);
// `what_happened`: why too few nodes were left.
JobEnd replacement_timeout(const JobState& job, const std::string& what_happened);

// "rank 3 (node 1, gpu07, pid 4711) failed with exit code 5" or "… was killed by SIGSEGV".
std::string describe(const WorkerFailure& failure);

inline constexpr std::size_t kMadeHashDigits = 12;

// The user of a job id that ddprun made, "<uid>-<hash of the command>"; empty: it is no such id.
std::string_view user_of_made_id(std::string_view id);

// To nodes that wait while another job, which may be meant to be theirs, waits beside it.
std::string other_job_hint(const JobState& job, const JobState& other, int other_nodes);

// How many nodes the next round needs and how many are there; where those are enough, how long they
// wait for more at most. `hint`: what may be wrong, or empty.
Waiting waiting_note(const JobState& job, int have_nodes, std::chrono::milliseconds longest,
                     const std::string& hint);

// ---- a node for which the job has no place: a spare, or another job's? ----

// Not nullopt: `join` is a job of its own, and waiting would end with somebody else's exit code.
// That is so if nobody can be meant to wait (fixed ranks; a job of one node without --spares).
// It is so beyond the asked spares if the program or the user is another one than on every node of
// the job. Names who holds the job. A node that is about to go, or has lost its connection, keeps
// no place.
std::optional<Refused> refuse_surplus(const JobState& job, const Join& join,
                                      const ConnectionFacts& facts);

// The rendezvous' port is this job's --master-port, and `join` wants it for another one. Names who
// holds it: a node of `job`, which must have one.
Refused port_in_use(const JobState& job, const Join& join, const ConnectionFacts& facts);

// The client for whom a node's job is counted: "user 1002", where the kernel vouches for the user;
// else "this machine", or the address (network_of()).
std::string client_of(const ConnectionFacts& facts);
// The same for a job that an earlier process took in; empty: it isn't known any more.
std::string client_of(const JobState& job);
// To a node that would begin a job more than `limit` of this client.
Refused too_many_jobs(const std::string& client, std::size_t limit);

// Tells a surplus agent that it waits as a spare, and what to do for a job of its own.
Waiting spare_note(const JobState& job, int num_members, int num_spares);

// ---- whether the workers that live may go on where they are (docs/inplace.md) ----

// How long an agent waits until its workers have asked to go on. A worker asks when an operation
// with the dead one has failed, so this is also the longest step that is survived in place.
inline constexpr std::chrono::milliseconds kKeepTime{10'000};

// A worker has failed, which ends the live round, and is counted already. Empty: those that are
// left may try; else why not.
std::string doubt_about_failure(const JobState& job, const WorkerFailure& failure);

// All members of the round that is being stopped have answered. Empty: the next round begins in
// place; else why not.
std::string doubt_about_kept(const JobState& job);

// The members by node rank.
std::vector<NodeId> members_in_order(const JobState& job);

}  // namespace ddprun::membership
