// SPDX-License-Identifier: Apache-2.0
// The rendezvous' knowledge of one job, and the journal's part of it. Plain data; formation.cc and
// verdicts.cc only read it. Pure.
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

using NodeId = std::uint64_t;  // counts joins: a smaller one joined earlier

enum class NodePhase {
  kIdle,       // no process of any round: can be placed, or is a spare
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
  std::string key;  // node_key() of when it first joined
  std::string session;
  std::optional<ConnectionId> connection;
  Channel<RendezvousMessage> channel;
  NodePhase phase = NodePhase::kIdle;
  std::optional<int> node_rank;  // in the live or last round; spares have none
  Clock::time_point last_heard{};
  std::optional<Clock::time_point> grace_until;   // set while there is no connection
  std::optional<Clock::time_point> fenced_until;  // it was cut off: its workers live until then
  bool returning = false;  // known from an earlier rendezvous process, not heard of since
  bool stepped = false;    // its workers have finished a step of the live round
  bool emptied = false;    // kSucceeded, and said that no process of the round is left
  bool warned = false;     // it is about to be taken away
  bool departed = false;   // kSucceeded: its workers left before their work was done
  bool preempted = false;  // excluded, for now only: it was warned
  bool excluded = false;   // its key is in JobState::excluded: goes when the round is stopped
  bool left = false;       // excluded, and ended by its user while its workers were being stopped
  bool left_by_signal = false;  // and a second signal there ends the job; not kept
  int kept = 0;      // kStopping: so many of its workers wait for a round that goes on in place
  int in_place = 0;  // the number of its workers in the live round; 0: all that it starts
  // In the live round, as it said last.
  std::vector<RankStepTime> step_times;
  std::optional<TrainingStatus> training;
  std::optional<SeenNodeReport> monitor;  // in any round, likewise
  bool gone = false;  // lost after its success: its success counts, but it gets no place in a round
};

inline bool is_member(const Node& node) { return node.node_rank.has_value(); }
inline bool is_placeable(const Node& node) {
  return node.phase == NodePhase::kIdle && node.connection.has_value() && !node.gone &&
         !node.excluded;
}

// How many workers the node has in the live round or, before that begins, in the next one.
inline int num_workers(const Node& node) {
  return node.in_place > 0 ? node.in_place : node.join.num_workers;
}

// The same machine when its agent comes again: host name and address.
std::string node_key(const Join& join, const ConnectionFacts& facts);

const char* to_string(NodePhase phase);

// "node 1 (gpu07, 10.0.0.7)"; a node that has no rank: "gpu07 (10.0.0.7)".
std::string describe(const Node& node);

// A job's nodes in the order in which they joined. One is changed through edit(), which notes what
// must be written to the journal.
class NodeTable {
 public:
  using Map = std::map<NodeId, Node>;

  Map::const_iterator begin() const { return nodes_.begin(); }
  Map::const_iterator end() const { return nodes_.end(); }
  Map::const_iterator find(NodeId id) const { return nodes_.find(id); }
  const Node& at(NodeId id) const { return nodes_.at(id); }
  std::size_t size() const { return nodes_.size(); }
  bool empty() const { return nodes_.empty(); }

  // The reference holds until erase(id).
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
  // As edit(), for changes that the journal needn't have: no field that is kept may change.
  Node& edit_unkept(NodeId id) { return nodes_.at(id); }
  // A sign of life: the journal needn't have it either.
  void heard(NodeId id, Clock::time_point now) { nodes_.at(id).last_heard = now; }
  template <typename Change>
  void edit_each(Change&& change) {
    for (auto& [id, node] : nodes_) {
      mark(id);
      change(node);
    }
  }

  // Whether take_changed() will be called; else nothing is remembered for it.
  void remember_changes(bool on) { remembers_ = on; }
  // Added, changed or erased since the last call.
  std::set<NodeId> take_changed() { return std::exchange(changed_, {}); }

 private:
  Map nodes_;
  void mark(NodeId id) {
    if (remembers_) changed_.insert(id);
  }

  bool remembers_ = true;
  std::set<NodeId> changed_;
};

// The failures of one round in the order in which they happened, not in which they were heard of.
// The first one is the cause, the others are its victims.
class RoundFailures {
 public:
  struct Entry {
    NodeId node = 0;
    std::string node_key;
    WorkerFailure failure;
    Clock::time_point at{};             // when it happened, on our clock
    std::chrono::microseconds error{};  // of `at`
  };

  // A new round began.
  void begin(Clock::time_point now);

  // Adds one that was heard of now. Its own time is moved to lie between the round's begin and now;
  // without one, now counts. True: it is the first one, as far as is known.
  bool add(const Node& node, const WorkerFailure& failure, Clock::time_point now);

  bool empty() const { return entries_.empty(); }
  const Entry& first() const { return entries_.front(); }

  // All but the first, in order: "rank 3 (…) failed with exit code 1 12 ms later (± 1 ms)". After
  // kMaxVictims of them: how many more.
  std::vector<std::string> victims() const;

  static constexpr std::size_t kMaxVictims = 8;

  // For the journal: another number after each change.
  std::uint64_t version() const { return version_; }

 private:
  std::vector<Entry> entries_;  // by time; the first kMaxVictims + 1
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

// Each waiting phase has one; see docs/internals/rendezvous.md.
struct JobDeadlines {
  using Optional = std::optional<Clock::time_point>;
  Optional join;          // kForming
  Optional last_call;     // kForming with MIN ≤ placeable < MAX
  Optional backoff;       // kStopping, kForming: a crash loop's next round waits for it
  Optional fenced;        // kForming: a silent node may still run workers before that
  Optional start;         // kRunning: some node is kStarting
  Optional barrier;       // kRunning: some node is kSucceeded
  Optional preempt;       // kRunning: a warning is pending, JobState::preempting says which
  Optional stop;          // kStopping
  Optional linger;        // kEnded
  Optional join_restart;  // kRunning: some node has joined, see Rounds::restart_for_joined
};

// A job's state has parts. Each is changed by the class that is named beside it; the others read.
struct RosterState {  // Roster
  NodeTable nodes;
  NodeId next_node_id = 1;
  std::map<int, NodeId> rank_wishes;  // --node-rank → the last node that came with it
};

struct RoundState {  // Rounds; Blame: deadlines.preempt
  JobPhase phase = JobPhase::kForming;
  JobDeadlines deadlines;
  std::optional<JobEnd> verdict;      // set in kEnded
  std::optional<FinishedJob> record;  // set in kEnded, where it is kept: see FinishedJobs

  // The live or last round.
  std::uint64_t round = 0;
  Clock::time_point round_started{};
  int round_nodes = 0;                      // that it began with
  std::vector<std::string> rank_labels;     // topology labels, by node rank
  int num_stepped = 0;                      // members that said FirstStep
  std::uint64_t first_step = 0;             // the smallest; 0: one of them has no number
  std::chrono::microseconds connecting{0};  // the longest that they said
  RoundEnd round_end = RoundEnd::kOther;  // of the round that is being stopped, as far as is known
  bool keeping = false;                   // likewise: the next one may go on in place

  Ledger ledger;                      // the cost of all rounds
  int vain_join_restarts = 0;         // in a row, see Rounds::restart_for_joined
  int nodes_before_join_restart = 0;  // of the round that the last one ended
};

struct BlameState {                             // Blame
  std::map<std::string, int> first_failures;    // how often a node was the first, by node_key
  std::map<std::string, std::string> excluded;  // node_key → why it is kept out
  // The job ends with this once the round's workers are gone everywhere. The round's store lives
  // until then, since they may need it to end in order. Set in kStopping only.
  std::optional<JobEnd> verdict_after_stop;
  RoundFailures round_failures;  // of the last round; empty where something else ended it
  int failures = 0;              // rounds that a failed worker ended
  int node_losses = 0;           // rounds that ended as a node was lost or excluded
  int idle_rounds = 0;           // in a row that ended without a finished step
  int quick_failures = 0;        // in a row that a failed worker ended soon

  // A warning is pending, or was.
  std::string preempting;                    // why the live round is about to end; empty: it isn't
  bool time_is_over = false;                 // likewise: for good
  bool was_preempted = false;                // the round that is being stopped
  std::optional<JobEnd> preemption_verdict;  // what that means, where nothing else decides
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
  // ConnectionFacts::user of who began it: over loopback it is that user's, and root's, alone.
  std::optional<std::uint32_t> owner;
  std::optional<Clock::time_point> began;  // nullopt: an older rendezvous took the job in
};

void log(Actions& out, const JobState& job, LogLevel level, const std::string& text);

inline bool is_static(const JobSettings& settings) {
  return settings.rdzv_backend == kStaticBackend;
}

const char* to_string(JobPhase phase);

// The job as rows of the journal (docs/durability.md): "job", "state", "blame", "rounds",
// "failures", "record" and "nodes/ID". Steps that a node told and an open inquiry are not kept:
// both are said again. collect() gives the rows that changed since the last call; at first all.
class JobRows {
 public:
  // Appends to `batch`; keys begin with `prefix` ("jobs/3/").
  void collect(JobState& job, const std::string& prefix, journal::Batch& batch);
  // The rows of a job that is no more.
  static void erase(JobState& job, const std::string& prefix, journal::Batch& batch);

 private:
  // Stands for a text, without a copy. Two texts of one length and hash are taken for the same.
  struct Digest {
    std::size_t size = 0, hash = 0;
    friend bool operator==(const Digest&, const Digest&) = default;
  };
  static Digest digest_of(const std::string& text) {
    return {text.size(), std::hash<std::string>()(text)};
  }

  bool is_new_ = true;
  bool has_record_ = false;
  std::string state_, blame_;                   // as written last
  std::unordered_map<NodeId, Digest> written_;  // each node's row, likewise
  std::uint64_t ledger_version_ = 0, failures_version_ = 0;
};

// The row "KEY" of a job is "jobs/NUMBER/KEY" in the journal.
std::string job_row_prefix(std::uint64_t number);
// The rows of each job, without that, by the job's number; others are left out.
std::map<std::uint64_t, journal::Rows> rows_by_job(const journal::Rows& rows);

// From the rows of one job, their keys without prefix; time is moved by `clock_shift`. Throws
// Error(kProtocol): one is missing or makes no sense.
JobState read_job(const journal::Rows& rows, Clock::duration clock_shift);

}  // namespace ddprun::membership
