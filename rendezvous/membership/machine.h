// SPDX-License-Identifier: Apache-2.0
// The rendezvous' side: every job by run id, and the decisions about each. All that happens goes in
// as an event, all that must be done comes out as actions. Pure: no I/O, clock, thread or
// randomness. docs/internals/rendezvous.md has the states × events table.
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
#include "common/log_level.h"
#include "common/variant.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/membership/finished_jobs.h"
#include "rendezvous/membership/ledger.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

// Drawn by the owner, never reused.
using ConnectionId = std::uint64_t;

// The transport's facts about a connection.
struct ConnectionFacts {
  std::string peer_addr;   // numeric, where the agent's connection comes from
  std::string local_addr;  // numeric, ours, as the agent reached it
  std::uint16_t local_port = 0;
  bool peer_is_loopback = false;
  // The agent's user, if only the kernel's word vouches for it: over loopback without a token or
  // TLS. kNobody (common/peer_user.h): it is not known.
  std::optional<std::uint32_t> user{};
};

namespace event {
struct Message {
  ConnectionId connection = 0;
  AgentEnvelope envelope;
  ConnectionFacts facts;  // needed with Join only
};
struct Heard {
  ConnectionId connection = 0;
};  // a ping: the agent lives
struct Closed {
  ConnectionId connection = 0;
};               // the connection ended, whoever ended it
struct Tick {};  // next_deadline() has come
// The agent's store proxy said something that doesn't fit its store here, and never will.
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
};  // once everything sent before has left
struct Log {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};
// A round begins. on_daemon_port: static mode; c10d connections to the daemon's own port get a
// fresh key space from now on, older ones keep theirs.
struct RoundStarted {
  std::string run_id;
  std::uint64_t round = 0;
  bool on_daemon_port = false;
  // The seconds that its rendezvous took; nullopt: it began before this process did.
  std::optional<double> rendezvous{};
  std::optional<std::uint32_t> owner{};  // whose workers they are, as JobState has it
};
// The cause of a round's end is final: no worker of it is left.
struct RoundOver {
  std::string run_id;
  RoundEnd end = RoundEnd::kOther;
};
struct JobOver {
  std::string run_id;
  int exit_code = 0;
  bool on_daemon_port = false;
};
// An agent says what a rank wrote: to whoever asked for it (JobTable::ask_for_tail).
struct TailSaid {
  ConnectionId connection = 0;
  Tail tail;
};
}  // namespace action
using Action = variants::variant<action::Send, action::Close, action::Log, action::RoundStarted,
                                 action::RoundOver, action::JobOver, action::TailSaid>;
using Actions = std::vector<Action>;

// The rendezvous' own settings; the job's come with its first Join.
struct MachineOptions {
  std::chrono::milliseconds reconnect_grace{150};
  std::chrono::milliseconds stop_margin{15'000};  // beyond shutdown: then a node counts as stuck
  std::chrono::milliseconds end_linger{10'000};   // how long JobEnd waits for its acknowledgement
  std::chrono::milliseconds end_grace{1'000};     // likewise, once its connection has ended
  // After restore(): until agents must have come back; at least a job's keep-alive time.
  std::chrono::milliseconds restore_grace{10'000};
  std::chrono::milliseconds keep_finished{0};  // how long finished() has a job; 0: none
  bool embedded = false;                       // goes into Welcome
  std::int64_t embedding_pid = 0;              // of the ddprun that serves it, where it is embedded
  bool journalled = false;                     // somebody calls take_changes()
  bool shared = false;  // restore() may be of what another machine's rendezvous has left
  // One user or address may have so many (client_of()), until their last nodes are forgotten. It is
  // above what a site runs from one login node, and bounds what one client costs the others.
  std::size_t max_jobs_per_client = 4'096;
};

// A node of a job's live round, as a connection's peer.
struct Seat {
  std::uint64_t job = 0;  // drawn by the table, never reused
  std::uint64_t node = 0;
  std::uint64_t round = 0;
  StoreMode store = StoreMode::kDirect;
};

// Which ranks are asked, and what. The first one's request has this number, the next one's the
// next.
struct TailQuestion {
  std::vector<int> global_ranks;
  std::uint64_t first_request = 0;
  TailKind kind = TailKind::kOutput;
};

// The connection that was asked about a rank.
struct TailRoute {
  std::optional<ConnectionId> connection;  // TailSaid with the request comes from it, or nothing
  std::string why_not;                     // for people, where there is none
  std::string host = {};                   // of the rank's node; empty: it isn't known
};

// The last one of a node, and when it came.
struct SeenNodeReport {
  NodeReport report;
  Clock::time_point at{};
};
struct NodeStatus {
  std::string host, addr, phase;
  std::optional<int> node_rank;  // in the current round
  int num_workers = 0;
  bool connected = false;
  std::optional<SeenNodeReport> monitor;  // nullopt: it has said none
  std::vector<RankStepTime> step_times;   // of the live round, as it said last
};
struct HangStatus {
  std::uint64_t round = 0;
  std::string text;
  std::vector<std::string> lines;
  bool acted = false;  // the round ended because of it
};
struct JobStatus {
  std::uint64_t number = 0;  // drawn by the table, in order of creation
  std::string run_id, phase;
  std::uint64_t round = 0;
  int failures = 0, node_losses = 0;
  int preemptions = 0;
  std::string preempting;  // why the live round is about to end; empty: it isn't
  int idle_rounds = 0;     // in a row, without a finished step
  std::map<std::string, std::string> excluded;  // node → why
  JobSettings settings;
  std::vector<NodeStatus> nodes;    // in join order, spares included
  std::vector<RoundRecord> rounds;  // the last ones, see ledger.h
  PhaseSeconds seconds;             // of all rounds, the live one's phases as far as they are over
  // The phase that lasts, which counts in it from then on; null: none does.
  double PhaseSeconds::*lasting = nullptr;
  Clock::time_point lasts_since{};
  Clock::time_point delayed_until{};  // a rendezvous is a crash loop's delay until then
  struct Lasting {
    double PhaseSeconds::*phase = nullptr;
    Clock::time_point since{};
    PhaseSeconds before;  // `seconds`, with a delay that is over
  };
  Lasting lasting_at(Clock::time_point now) const;
  // With that, as if it ended now; nullopt before the first round.
  std::optional<double> ettr_at(Clock::time_point now) const;
  std::optional<HangStatus> hang;          // the last verdict that was news
  std::vector<std::string> stragglers;     // of the live round
  std::optional<TrainingStatus> training;  // of the live round, over all nodes that said something
  std::optional<JobEnd> verdict;
};

// All jobs, counted.
struct JobNumbers {
  std::array<std::size_t, 4> in_phase{};  // by JobPhase
  std::size_t waiting_nodes = 0;          // connected ones of jobs that are forming
};

// A job that is no more, and the connections that are still there: workers that stop may use the
// store behind one.
struct DroppedJob {
  std::uint64_t number = 0;
  std::vector<ConnectionId> connections;
};

class Job;
class JobIndex;

class JobTable {
 public:
  // new_session: draws a session id that nobody can guess.
  JobTable(MachineOptions options, std::function<std::string()> new_session);
  ~JobTable();

  // `now` never goes back. A connection is known from its first message to its Closed event.
  Actions step(const Event& event, Clock::time_point now);

  // From now on no new job is begun. Those that wait for their first round are given back: their
  // agents are told to try again. For a rendezvous that is about to end.
  Actions close_to_new_jobs(Clock::time_point now);

  // When Tick is due; nullopt only when there is no job, and none is remembered. One Tick is for
  // kJobsPerTick of the jobs that are due: while there are more, the next one is due at once.
  std::optional<Clock::time_point> next_deadline() const;

  // nullopt: the connection is no member's of a round.
  std::optional<Seat> seat(ConnectionId connection) const;
  bool has_job(std::uint64_t number) const;
  // The jobs that are no more, since the last call.
  std::vector<DroppedJob> take_dropped() { return std::exchange(dropped_, {}); }

  // The first job with a number above `after`, without its nodes; nullopt: there is none. All jobs
  // are looked at one by one, since there may be many.
  std::optional<JobStatus> next_status(std::uint64_t after) const;
  // Empty: the job is no more.
  std::vector<NodeStatus> nodes_of(std::uint64_t number) const;
  std::vector<JobStatus> status() const;  // all of it
  const JobNumbers& numbers() const;
  // The sums over all jobs, including jobs that are gone and phases that last. A job counts since
  // it began here, or was restored.
  PhaseSeconds seconds(Clock::time_point now) const;
  bool idle() const { return num_jobs() == 0; }
  std::size_t num_jobs() const;
  // The jobs that are over and gone from status(), for MachineOptions::keep_finished from their
  // ends, at most FinishedJobs::kMost; who ended first is first.
  const FinishedJobs& finished() const { return finished_; }

  // It bounds how long one Tick takes, while others wait.
  static constexpr std::size_t kJobsPerTick = 64;

  // Asks the agents of ranks of a job's live round, or of its last one. A route for each of them,
  // in their order. The requests are the caller's, and come back.
  std::vector<TailRoute> ask_for_tails(const std::string& run_id, const TailQuestion& question,
                                       Actions& out);
  // How many ranks that round has; 0: none has begun yet. nullopt: there is no such job.
  std::optional<int> num_ranks(const std::string& run_id) const;

  // Changes to all jobs since the last call, for a journal. They must be kept before the actions
  // since then are carried out. With MachineOptions::journalled only.
  journal::Batch take_changes();
  // Before restore(): takes a job that can't go on out of them, and has them erased.
  void forget_rows(std::uint64_t job, journal::Rows& rows);
  // Jobs of an earlier rendezvous process, from its journal: before their agents' first message.
  // They are expected back. `clock_shift`: what is to be added to the earlier process' times. A
  // job whose rows make no sense is left out and named in a Log, and its rows are erased.
  Actions restore(const journal::Rows& rows, Clock::duration clock_shift, Clock::time_point now);

 private:
  void join(const event::Message& message, const Join& join, Clock::time_point now, Actions& out);
  void hint_at_siblings(Job& job, Clock::time_point now, Actions& out);
  void refuse(ConnectionId connection, Refused refused, Actions& out) const;
  void settle(Job& job, Clock::time_point now);
  Job* job_named(const std::string& run_id) const;

  const MachineOptions options_;
  const std::function<std::string()> new_session_;
  std::uint64_t next_number_ = 1;  // of a job, in the journal
  journal::Batch erased_;          // rows of jobs that are gone, since take_changes()
  const std::unique_ptr<JobIndex> jobs_;
  std::set<std::uint64_t> changed_;  // jobs, since take_changes(); with a journal only
  FinishedJobs finished_;
  std::vector<DroppedJob> dropped_;
  PhaseSeconds seconds_of_dropped_;  // of those
  bool closed_to_new_jobs_ = false;
};

}  // namespace ddprun::membership
