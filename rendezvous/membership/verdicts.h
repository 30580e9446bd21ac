// SPDX-License-Identifier: Apache-2.0
// The decisions about a job, with the texts that explain them. They are whether a node may come in,
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

// Makes a Refused with ExitCode::kUsage.
Refused refused_usage(std::string message);

// Returns why this new agent can't be taken in; nullopt: it can. The text has both sides' values.
// An allowed difference is left to join_warning().
std::optional<Refused> admission(const JobState& job, const Join& join,
                                 const ConnectionFacts& facts);

// Returns a warning for the node's user ("this node runs …, but …"); empty: none.
std::string join_warning(const JobState& job, const Join& join);

// Decides after a worker's failure ended the live round; job.failures counts it already. nullopt: a
// new round follows. Else the job ends with the worker's exit code or 128 + signal.
std::optional<JobEnd> after_failure(const JobState& job, const WorkerFailure& failure);

// Decides after a member of the live or last round is gone and out of job.nodes. If that ends the
// live round, job.node_losses counts it already. Returns nullopt if the job goes on with a new
// round.
std::optional<JobEnd> after_loss(const JobState& job, const std::string& what_happened);

// Decides after the live round ended without a finished step; job.idle_rounds counts it already.
// nullopt: the job goes on.
std::optional<JobEnd> after_idle_round(const JobState& job, const std::string& what_happened);

// Returns how long the next round waits after a worker failed, if `quick_failures` rounds in a row
// lived less than kCrashLoopRound. It is 0 after the first, then 1 s, 2 s, 4 s, … up to the job's
// limit.
std::chrono::milliseconds restart_delay(const JobState& job, int quick_failures);
inline constexpr std::chrono::seconds kCrashLoopRound{60};

// Returns how long a round must have run before it is ended for a node that joined
// (--on-join=restart). The time grows with such restarts in a row that were in vain: 0, 30 s, 60 s,
// … up to an hour.
std::chrono::milliseconds join_restart_delay(int vain_restarts);

// Returns "its workers were the first to fail 3 times (--exclude-after=3)".
std::string exclusion_reason(const JobState& job, int first_failures);
// Returns "rank 3 asked for it: uncorrectable ECC error".
std::string exclusion_reason(const WorkerRequest& request);
// The JobEnd for an excluded node.
JobEnd excluded(const JobState& job, const Node& node);

// Decides after a warning ended the live round. job.preemptions counts it already, and the warned
// nodes are marked as excluded. nullopt: the job goes on without them. `takes_rendezvous` says that
// the ddprun of one of them serves this rendezvous.
std::optional<JobEnd> after_preemption(const JobState& job, const std::string& what_happened,
                                       bool takes_rendezvous);
JobEnd after_time_limit(const JobState& job, const std::string& what_happened);
// Counts the nodes, also spares, that can be in the next round if their connections come back.
std::ptrdiff_t nodes_left(const JobState& job);
// The JobEnd for a warned node, while the job goes on.
JobEnd preempted(const JobState& job, const Node& node);

JobEnd after_stop_request(const JobState& job, const Node& node, const WorkerRequest& request);
JobEnd after_leave(const JobState& job, const Node& node, const Leave& leave);
JobEnd all_succeeded(const JobState& job);

// The job's ends after deadlines; each text names the nodes that are missing. `hint` says what may
// be wrong, or is empty.
JobEnd join_timeout(const JobState& job, const std::string& hint);
JobEnd start_timeout(const JobState& job);
JobEnd stop_timeout(const JobState& job, std::chrono::milliseconds waited);
JobEnd exit_barrier_timeout(const JobState& job);
// `what_happened` says why too few nodes were left.
JobEnd replacement_timeout(const JobState& job, const std::string& what_happened);

// Returns "rank 3 (node 1, gpu07, pid 4711) failed with exit code 5" or "… was killed by SIGSEGV".
std::string describe(const WorkerFailure& failure);

inline constexpr std::size_t kMadeHashDigits = 12;

// Returns the user in a job id that ddprun made, "<uid>-<hash of the command>"; empty: it is no
// such id.
std::string_view user_of_made_id(std::string_view id);

// The hint for waiting nodes if another job waits, too, and may be meant as theirs.
std::string other_job_hint(const JobState& job, const JobState& other, int other_nodes);

// Says how many nodes the next round needs and how many are there. If there are enough, it says how
// long they wait for more at most (`longest`). `hint` says what may be wrong, or is empty.
Waiting waiting_note(const JobState& job, int have_nodes, std::chrono::milliseconds longest,
                     const std::string& hint);

// ---- nodes for which the job has no place: spares, or another job's nodes ----

// Refuses `join` if it belongs to another job: as a spare it would end with this job's exit code.
// It does if the job can have no spares (fixed ranks; one node without --spares). It also does
// beyond the wanted spares, if no node of the job has its program and user. The text names a node
// of the job. A node that is about to go, or has lost its connection, takes no place.
std::optional<Refused> refuse_surplus(const JobState& job, const Join& join,
                                      const ConnectionFacts& facts);

// Refuses `join`, which wants the rendezvous' port for another job: the port is the --master-port
// of `job`. The text names a node of `job`, which must have one.
Refused port_in_use(const JobState& job, const Join& join, const ConnectionFacts& facts);

// Returns the client to which a node's job is counted: "user 1002" if the kernel identifies the
// user, else "this machine" or the address (network_of()).
std::string client_of(const ConnectionFacts& facts);
// The same for a job from an earlier process; empty: it isn't known any more.
std::string client_of(const JobState& job);
// Refuses a node that would exceed this client's `limit` of jobs.
Refused too_many_jobs(const std::string& client, std::size_t limit);

// Tells a surplus agent that it waits as a spare, and how to get a job of its own.
Waiting spare_note(const JobState& job, int num_members, int num_spares);

// ---- whether the living workers may go on in place (docs/inplace.md) ----

// How long an agent waits for its workers to ask to go on. A worker asks when an operation with the
// dead one has failed. So a longer step can't be survived in place.
inline constexpr std::chrono::milliseconds kKeepTime{10'000};

// Called when a worker's failure ends the live round and is already counted. Returns why the other
// workers can't go on in place; empty: they may try.
std::string doubt_about_failure(const JobState& job, const WorkerFailure& failure);

// Called when all members of the stopping round have answered. Returns why the next round can't
// begin in place; empty: it can.
std::string doubt_about_kept(const JobState& job);

// Returns the members by node rank.
std::vector<NodeId> members_in_order(const JobState& job);

}  // namespace ddprun::membership
