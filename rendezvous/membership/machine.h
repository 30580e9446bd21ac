// SPDX-License-Identifier: Apache-2.0
// The rendezvous' state machine: every job by run id, and the decisions about each. It takes
// events, and returns the actions to carry out. Pure: no I/O, clock, thread or randomness.
// docs/internals/rendezvous.md has the states × events table.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/death_limits.h"
#include "common/log_level.h"
#include "common/variant.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/membership/finished_jobs.h"
#include "rendezvous/membership/ledger.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

// The caller chooses it and never reuses it.
using ConnectionId = std::uint64_t;

// The transport's facts about a connection.
struct ConnectionFacts {
  std::string peer_addr;   // numeric; where the agent's connection comes from
  std::string local_addr;  // numeric; our address, as the agent reached it
  std::uint16_t local_port = 0;
  bool peer_is_loopback = false;
  // The agent's user if only the kernel identifies it: over loopback without a token or TLS.
  // kNobody (common/peer_user.h): it is not known.
  std::optional<std::uint32_t> user{};
};

namespace event {
struct Message {
  ConnectionId connection = 0;
  AgentEnvelope envelope;
  ConnectionFacts facts;  // used with Join only
};
struct Heard {
  ConnectionId connection = 0;
};  // the agent has sent a ping
struct Closed {
  ConnectionId connection = 0;
};               // the connection ended, by either side
struct Tick {};  // next_deadline() has come
// The agent's store proxy sent something that doesn't fit its store here, and never will.
struct StoreLost {
  ConnectionId connection = 0;
  std::string why;
};
}  // namespace event
using Event =
    variants::variant<event::Message, event::Heard, event::Closed, event::Tick, event::StoreLost>;

namespace action {
struct Send {
  ConnectionId connection = 0;
  RendezvousEnvelope envelope;
};
struct Close {
  ConnectionId connection = 0;
};  // after all earlier messages are sent
struct Log {
  LogLevel level = LogLevel::kInfo;
  std::string text;
  bool is_about_stranger = false;  // log_about_peer() is for it
};
// A round begins. on_daemon_port is true in static mode. Then new c10d connections to the daemon's
// port get a new key space, and older ones keep theirs.
struct RoundStarted {
  std::string run_id;
  std::uint64_t round = 0;
  bool on_daemon_port = false;
  // The seconds that its rendezvous took; nullopt: it began before this process.
  std::optional<double> rendezvous{};
  std::optional<std::uint32_t> owner{};  // JobState::owner
};
// A round is over: none of its workers is left, and the cause of its end is final.
struct RoundOver {
  std::string run_id;
  RoundEnd end = RoundEnd::kOther;
};
struct JobOver {
  std::string run_id;
  int exit_code = 0;
  bool on_daemon_port = false;
};
// An agent's answer about a rank, for the caller of JobTable::ask_for_tails().
struct TailSaid {
  ConnectionId connection = 0;
  Tail tail;
};
}  // namespace action
using Action = variants::variant<action::Send, action::Close, action::Log, action::RoundStarted,
                                 action::RoundOver, action::JobOver, action::TailSaid>;
using Actions = std::vector<Action>;

// The rendezvous' own settings. A job's settings come with its first Join.
struct MachineOptions {
  std::chrono::milliseconds reconnect_grace{150};
  // After this time beyond the shutdown time a node counts as stuck.
  std::chrono::milliseconds stop_margin{kNodeStoppedMargin};
  std::chrono::milliseconds end_linger{10'000};  // JobEnd waits so long for its `ack`
  std::chrono::milliseconds end_grace{1'000};    // the same for a node without a connection
  // After restore() agents must come back within this time, or the job's keep-alive time if longer.
  std::chrono::milliseconds restore_grace{10'000};
  std::chrono::milliseconds keep_finished{0};  // so long finished() has a job; 0: none
  bool embedded = false;                       // see Welcome
  std::int64_t embedding_pid = 0;              // if embedded: of the ddprun that serves it
  bool journalled = false;                     // the caller uses take_changes()
  bool shared = false;                         // restore() may get another machine's journal
  // The most jobs of one user or address (client_of()); a job counts until its last node is
  // forgotten. It is more than a site runs from one login node, and bounds the load that one client
  // can cause.
  std::size_t max_jobs_per_client = 4'096;
};

// The member of a job's round at the other end of a connection.
struct Seat {
  std::uint64_t job = 0;  // JobTable's number, never reused
  std::uint64_t node = 0;
  std::uint64_t round = 0;
  StoreMode store = StoreMode::kDirect;
};

// A question about ranks. The first rank's request has the number first_request, each later one the
// next number.
struct TailQuestion {
  std::vector<int> global_ranks;
  std::uint64_t first_request = 0;
  TailKind kind = TailKind::kOutput;
};

// The result of asking about one rank.
struct TailRoute {
  std::optional<ConnectionId> connection;  // TailSaid may come from it; nullopt: not asked
  std::string why_not;                     // for people, if not asked
  std::string host = {};                   // the rank's node; empty: not known
};

// A node's last report, and when it came.
struct SeenNodeReport {
  NodeReport report;
  Clock::time_point at{};
};
struct NodeStatus {
  std::string host, addr, phase;
  std::optional<int> node_rank;  // in the current round
  int num_workers = 0;
  bool connected = false;
  std::optional<SeenNodeReport> monitor;  // nullopt: it has sent none
  std::vector<RankStepTime> step_times;   // the last reported in the live round
};
struct HangStatus {
  std::uint64_t round = 0;
  std::string text;
  std::vector<std::string> lines;
  bool acted = false;  // the round ended because of it
};
struct JobStatus {
  std::uint64_t number = 0;  // JobTable's, in order of creation
  std::string run_id, phase;
  std::uint64_t round = 0;
  int failures = 0, node_losses = 0;
  int preemptions = 0;
  std::string preempting;                       // pending warning of the live round; empty: none
  int idle_rounds = 0;                          // rounds in a row without a finished step
  std::map<std::string, std::string> excluded;  // node → reason
  JobSettings settings;
  std::vector<NodeStatus> nodes;    // in join order, spares included
  std::vector<RoundRecord> rounds;  // the last ones (ledger.h)
  PhaseSeconds seconds;             // of all rounds, without the present phase
  // The present phase's member of PhaseSeconds, and when the phase began; null: there is none.
  double PhaseSeconds::*lasting = nullptr;
  Clock::time_point lasts_since{};
  Clock::time_point delayed_until{};  // until then the phase "rendezvous" is a crash loop's delay
  struct Lasting {
    double PhaseSeconds::*phase = nullptr;
    Clock::time_point since{};
    PhaseSeconds before;  // `seconds` plus a delay that is over
  };
  Lasting lasting_at(Clock::time_point now) const;
  // Returns the training time ratio as if the present phase ended now; nullopt before the first
  // round.
  std::optional<double> ettr_at(Clock::time_point now) const;
  std::optional<HangStatus> hang;          // the last hang that was found
  std::vector<std::string> stragglers;     // of the live round
  std::optional<TrainingStatus> training;  // of the live round, over all nodes that reported
  std::optional<JobEnd> verdict;
};

// Counts over all jobs.
struct JobNumbers {
  std::array<std::size_t, 4> in_phase{};  // index: JobPhase
  std::size_t waiting_nodes = 0;          // connected nodes of forming jobs
};

// A job that was dropped, and its connections that are still open: stopping workers may still use
// the store behind one.
struct DroppedJob {
  std::uint64_t number = 0;
  std::vector<ConnectionId> connections;
};

class Job;
class JobIndex;

class JobTable {
 public:
  // `new_session` makes a session id that can't be guessed.
  JobTable(MachineOptions options, std::function<std::string()> new_session);
  ~JobTable();

  // Handles one event; `now` never goes back. A connection is known from its first message to its
  // Closed event.
  Actions step(const Event& event, Clock::time_point now);

  // Begins no new job from now on; for a rendezvous that is about to end. Jobs that wait for their
  // first round are dropped, and their agents are told to try again.
  Actions close_to_new_jobs(Clock::time_point now);

  // Returns when Tick is due; nullopt only if there is no job and no finished one. A Tick handles
  // at most kJobsPerTick due jobs; if there are more, the next Tick is due at once.
  std::optional<Clock::time_point> next_deadline() const;

  // Returns nullopt if the connection belongs to no member of a round.
  std::optional<Seat> seat(ConnectionId connection) const;
  bool has_job(std::uint64_t number) const;
  // Returns the jobs that were dropped since the last call.
  std::vector<DroppedJob> take_dropped() { return std::exchange(dropped_, {}); }

  // Returns the first job with a number above `after`, without its nodes; nullopt: there is none.
  // So callers can go through many jobs one by one.
  std::optional<JobStatus> next_status(std::uint64_t after) const;
  // Returns an empty list if there is no such job.
  std::vector<NodeStatus> nodes_of(std::uint64_t number) const;
  std::vector<JobStatus> status() const;  // all jobs, with their nodes
  const JobNumbers& numbers() const;
  // Returns the sums over all jobs, with dropped jobs and present phases. A job counts from its
  // begin here, or from its restore.
  PhaseSeconds seconds(Clock::time_point now) const;
  bool idle() const { return num_jobs() == 0; }
  std::size_t num_jobs() const;
  // Returns the jobs that are over and not in status() any more, the first to end in front. They
  // are kept for MachineOptions::keep_finished after their ends, at most FinishedJobs::kMost.
  const FinishedJobs& finished() const { return finished_; }

  // Bounds the time of one Tick, during which other events wait.
  static constexpr std::size_t kJobsPerTick = 64;

  // Asks agents about ranks of a job's live or last round. Returns a route for each rank, in their
  // order. The caller chooses the request numbers, and finds them in the answers.
  std::vector<TailRoute> ask_for_tails(const std::string& run_id, const TailQuestion& question,
                                       Actions& out);
  // Returns the number of ranks of that round; 0: no round has begun. nullopt: there is no such
  // job.
  std::optional<int> num_ranks(const std::string& run_id) const;

  // Returns the changes to all jobs since the last call, for a journal. They must be kept before
  // the actions since then are carried out. Used only with MachineOptions::journalled.
  journal::Batch take_changes();
  // Called before restore(): removes the rows of a job that can't go on, also from the journal.
  void forget_rows(std::uint64_t job, journal::Rows& rows);
  // Restores the jobs of an earlier rendezvous process from its journal, before their agents' first
  // message. The agents are expected back. `clock_shift` is added to the earlier process' times. A
  // job with invalid rows is left out and named in a Log, and its rows are erased.
  Actions restore(const journal::Rows& rows, Clock::duration clock_shift, Clock::time_point now);

 private:
  void join(const event::Message& message, const Join& join, Clock::time_point now, Actions& out);
  void hint_at_siblings(Job& job, Clock::time_point now, Actions& out);
  void refuse(ConnectionId connection, Refused refused, Actions& out) const;
  void settle(Job& job, Clock::time_point now);
  Job* job_named(const std::string& run_id) const;

  const MachineOptions options_;
  const std::function<std::string()> new_session_;
  std::uint64_t next_number_ = 1;  // the next job's
  journal::Batch erased_;          // rows of dropped jobs, since take_changes()
  const std::unique_ptr<JobIndex> jobs_;
  std::set<std::uint64_t> changed_;  // jobs since take_changes(), if journalled
  FinishedJobs finished_;
  std::vector<DroppedJob> dropped_;
  PhaseSeconds seconds_of_dropped_;  // of all dropped jobs
  bool closed_to_new_jobs_ = false;
};

}  // namespace ddprun::membership
