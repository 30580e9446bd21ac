// SPDX-License-Identifier: Apache-2.0
// The rendezvous' state of one job, and the part of it that the journal has. It is plain data;
// formation.cc and verdicts.cc only read it. Pure.
#pragma once

#include <boost/describe/class.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/membership/finished_jobs.h"
#include "rendezvous/membership/ledger.h"
#include "rendezvous/membership/machine.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

using NodeId = std::uint64_t;  // counts joins: a node with a smaller id joined earlier

enum class NodePhase {
  kIdle,       // runs no worker: can be placed, or is a spare
  kStarting,   // StartRound was sent
  kRunning,    // all its workers run
  kSucceeded,  // all its workers exited with 0
  kStopping,   // StopRound was sent
};

inline constexpr std::size_t kNumNodePhases = 5;

struct Node {
  NodeId id = 0;
  Join join;
  ConnectionFacts facts;
  std::string key;  // node_key() at its first join
  std::string session;
  std::optional<ConnectionId> connection;
  Channel<RendezvousMessage> channel;
  NodePhase phase = NodePhase::kIdle;
  std::optional<int> node_rank;  // in the live or last round; spares have none
  Clock::time_point last_heard{};
  std::optional<Clock::time_point> grace_until;   // set while there is no connection
  std::optional<Clock::time_point> fenced_until;  // cut off: its workers may live until then
  bool returning = false;       // from an earlier rendezvous process, and not heard of since
  bool stepped = false;         // its workers have finished a step of the live round
  bool emptied = false;         // kSucceeded, and none of its processes is left
  bool warned = false;          // it is about to be taken away
  bool departed = false;        // kSucceeded, but its workers left before their work was done
  bool preempted = false;       // excluded only for now, since it was warned
  bool excluded = false;        // goes when the round is stopped
  bool left = false;            // excluded: its user ended it while its workers were being stopped
  bool left_by_signal = false;  // a second signal there ends the job; not in the journal
  int kept = 0;                 // kStopping: so many of its workers wait for a round in place
  int in_place = 0;             // its workers in a live round in place; 0: it started all
  // Its last reports in the live round.
  std::vector<RankStepTime> step_times;
  std::optional<TrainingStatus> training;
  std::optional<SeenNodeReport> monitor;  // the last in any round
  bool gone = false;  // lost after its success, which counts; it gets no further place
};

inline bool is_member(const Node& node) { return node.node_rank.has_value(); }
inline bool is_placeable(const Node& node) {
  return node.phase == NodePhase::kIdle && node.connection.has_value() && !node.gone &&
         !node.excluded;
}

// Returns the number of the node's workers in the live round or, between rounds, in the next one.
inline int num_workers(const Node& node) {
  return node.in_place > 0 ? node.in_place : node.join.num_workers;
}

// Returns host name and address, which identify the machine when its agent comes again.
std::string node_key(const Join& join, const ConnectionFacts& facts);

const char* to_string(NodePhase phase);

// Returns "node 1 (gpu07, 10.0.0.7)" or, for a node without a rank, "gpu07 (10.0.0.7)".
std::string describe(const Node& node);

// A job's nodes in the order in which they joined. A node is changed through edit(), which notes
// that its row may have changed.
class NodeTable {
 public:
  using Map = std::map<NodeId, Node>;

  Map::const_iterator begin() const { return nodes_.begin(); }
  Map::const_iterator end() const { return nodes_.end(); }
  Map::const_iterator find(NodeId id) const { return nodes_.find(id); }
  const Node& at(NodeId id) const { return nodes_.at(id); }
  std::size_t size() const { return nodes_.size(); }
  bool empty() const { return nodes_.empty(); }

  // The reference is valid until erase(id).
  Node& edit(NodeId id) {
    mark(id);
    return nodes_.at(id);
  }
  Node& add(NodeId id) {
    nodes_[id].id = id;
    return edit(id);
  }
  void erase(NodeId id) {
    mark(id);
    nodes_.erase(id);
  }
  // As edit(), but no field that the journal keeps may be changed.
  Node& edit_unkept(NodeId id) { return nodes_.at(id); }
  // Notes a sign of life, which the journal doesn't keep.
  void heard(NodeId id, Clock::time_point now) { nodes_.at(id).last_heard = now; }
  template <typename Change>
  void edit_each(Change&& change) {
    for (auto& [id, node] : nodes_) {
      mark(id);
      change(node);
    }
  }

  // Sets whether take_changed() will be called. If not, changes aren't remembered.
  void remember_changes(bool on) { remembers_ = on; }
  // Returns the nodes that were added, changed or erased since the last call.
  std::set<NodeId> take_changed() { return std::exchange(changed_, {}); }

 private:
  Map nodes_;
  void mark(NodeId id) {
    if (remembers_) changed_.insert(id);
  }

  bool remembers_ = true;
  std::set<NodeId> changed_;
};

// The failures of one round in the order in which they happened, which isn't the order of their
// messages. The first one is the cause, the others are its victims.
class RoundFailures {
 public:
  struct Entry {
    NodeId node = 0;
    std::string node_key;
    WorkerFailure failure;
    Clock::time_point at{};             // when it happened, by our clock
    std::chrono::microseconds error{};  // the possible error of `at`
  };

  // Called when a new round began.
  void begin(Clock::time_point now);

  // Adds a failure. Its own time is limited to the range from the round's begin to now; without
  // one, now counts. Returns whether it is the first failure known so far.
  bool add(const Node& node, const WorkerFailure& failure, Clock::time_point now);

  bool empty() const { return entries_.empty(); }
  const Entry& first() const { return entries_.front(); }

  // Returns all but the first, in order: "rank 3 (…) failed with exit code 1 12 ms later (± 1 ms)".
  // After kMaxVictims lines one line says how many more there are.
  std::vector<std::string> victims() const;

  static constexpr std::size_t kMaxVictims = 8;

  // For the journal: it differs after each change.
  std::uint64_t version() const { return version_; }

 private:
  std::vector<Entry> entries_;  // by time; at most kMaxVictims + 1
  std::size_t num_dropped_ = 0;
  Clock::time_point round_began_{};
  std::uint64_t version_ = 0;

  BOOST_DESCRIBE_CLASS(RoundFailures, (), (), (), (entries_, num_dropped_, round_began_))
};

enum class JobPhase {
  kForming,   // no live round: waiting for enough idle nodes
  kRunning,   // a round is live
  kStopping,  // the round is over, its workers are being stopped
  kEnded,     // JobEnd was sent: waiting for acknowledgements
};

// The deadlines of the waits in each phase; see docs/internals/rendezvous.md.
struct JobDeadlines {
  using Optional = std::optional<Clock::time_point>;
  Optional join;          // kForming
  Optional last_call;     // kForming with MIN ≤ placeable < MAX
  Optional backoff;       // kStopping, kForming: the end of a crash loop's delay
  Optional fenced;        // kForming: until then a silent node may still run workers
  Optional start;         // kRunning: some node is kStarting
  Optional barrier;       // kRunning: some node is kSucceeded
  Optional preempt;       // kRunning: a warning is pending (JobState::preempting)
  Optional stop;          // kStopping
  Optional linger;        // kEnded
  Optional join_restart;  // kRunning: a node has joined (Rounds::restart_for_joined)
};

// A job's state has parts. Only the class that is named beside a part changes it; the others read
// it.
struct RosterState {  // Roster
  NodeTable nodes;
  NodeId next_node_id = 1;
  std::map<int, NodeId> rank_wishes;  // --node-rank → the last node that came with it
};

struct RoundState {  // Rounds; but Blame changes deadlines.preempt
  JobPhase phase = JobPhase::kForming;
  JobDeadlines deadlines;
  std::optional<JobEnd> verdict;      // set in kEnded
  std::optional<FinishedJob> record;  // set in kEnded, if jobs are kept (FinishedJobs)

  // About the live or last round.
  std::uint64_t round = 0;
  Clock::time_point round_started{};
  int round_nodes = 0;                      // the nodes that it began with
  std::vector<std::string> rank_labels;     // topology labels, by node rank
  int num_stepped = 0;                      // members that sent FirstStep
  std::uint64_t first_step = 0;             // the smallest of them; 0: one has no number
  std::chrono::microseconds connecting{0};  // the longest of them
  RoundEnd round_end = RoundEnd::kOther;    // of the round that is being stopped, as known so far
  bool keeping = false;                     // while it is stopped: the next may go on in place

  Ledger ledger;                      // accounts for all rounds' time
  int vain_join_restarts = 0;         // in a row (Rounds::restart_for_joined)
  int nodes_before_join_restart = 0;  // of the round that the last such restart ended
};

struct BlameState {                             // Blame
  std::map<std::string, int> first_failures;    // by node_key: how often it failed first
  std::map<std::string, std::string> excluded;  // node_key → reason
  // The job ends with this once the round's workers are gone on all nodes. Until then the round's
  // store is kept: workers may need it to end properly. Set in kStopping only.
  std::optional<JobEnd> verdict_after_stop;
  RoundFailures round_failures;  // of the last round; empty if something else ended it
  int failures = 0;              // rounds that a failed worker ended
  int node_losses = 0;           // rounds that a lost or excluded node ended
  int idle_rounds = 0;           // rounds in a row without a finished step
  int quick_failures = 0;        // rounds in a row that a failed worker ended soon

  // About warnings.
  std::string preempting;                    // the pending warning's reason; empty: none
  bool time_is_over = false;                 // the job's time is over
  bool was_preempted = false;                // a warning was pending when the round ended
  std::optional<JobEnd> preemption_verdict;  // used if nothing else decides
  int preemptions = 0;                       // rounds that a warning ended
};

struct HangState {  // HangInquiry
  std::optional<HangStatus> last_hang;
  std::uint64_t inquiries = 0;
};

struct JobState : RosterState, RoundState, BlameState, HangState {
  std::string run_id;
  JobSettings settings;
  JobTimeouts timeouts;
  // ConnectionFacts::user of the node that began it. Over loopback only this user and root may
  // join.
  std::optional<std::uint32_t> owner;
  std::optional<Clock::time_point> began;  // nullopt: it began in an older rendezvous
};

void log(Actions& out, const JobState& job, LogLevel level, const std::string& text,
         bool is_about_stranger = false);

inline bool is_static(const JobSettings& settings) {
  return settings.rdzv_backend == kStaticBackend;
}

const char* to_string(JobPhase phase);

// The job as rows of the journal (docs/durability.md): "job", "state", "blame", "rounds",
// "failures", "record" and "nodes/ID". Reported step times and an open inquiry are not kept: agents
// report both again. collect() gives the rows that changed since the last call; the first call
// gives all.
class JobRows {
 public:
  // Appends to `batch`; keys begin with `prefix` ("jobs/3/").
  void collect(JobState& job, const std::string& prefix, journal::Batch& batch);
  // Appends the erasure of a dropped job's rows.
  static void erase(JobState& job, const std::string& prefix, journal::Batch& batch);

 private:
  // Stands for a text without a copy. Texts of equal length and hash count as equal.
  struct Digest {
    std::size_t size = 0, hash = 0;
    friend bool operator==(const Digest&, const Digest&) = default;
  };
  static Digest digest_of(const std::string& text) {
    return {text.size(), std::hash<std::string>()(text)};
  }

  bool is_new_ = true;
  bool has_record_ = false;
  std::string state_, blame_;                   // as last written
  std::unordered_map<NodeId, Digest> written_;  // each node's row, as last written
  std::uint64_t ledger_version_ = 0, failures_version_ = 0;
};

// The row "KEY" of a job is "jobs/NUMBER/KEY" in the journal.
std::string job_row_prefix(std::uint64_t number);
// Returns each job's rows by the job's number, with keys without that prefix. Other rows are left
// out.
std::map<std::uint64_t, journal::Rows> rows_by_job(const journal::Rows& rows);

// Reads a job from its rows, whose keys have no prefix; times are moved by `clock_shift`. Throws
// Error(kProtocol) if a row is missing or invalid.
JobState read_job(const journal::Rows& rows, Clock::duration clock_shift);

}  // namespace ddprun::membership
