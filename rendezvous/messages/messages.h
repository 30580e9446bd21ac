// SPDX-License-Identifier: Apache-2.0
// The messages between an agent and the rendezvous, as plain structs. docs/internals/rendezvous.md
// has the grammar, the JSON form and the table of who sends each message when. Pure.
#pragma once

#include <boost/describe/class.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/variant.h"
#include "common/version_range.h"
#include "rendezvous/messages/reports.h"

namespace ddprun::membership {

inline constexpr int kProtocolVersion = 3;        // the newest version this ddprun speaks
inline constexpr int kOldestProtocolVersion = 1;  // the oldest version it speaks
// Stands for a pair (ddprund --standby), a feature of older versions in which agents voted for
// their leader. A Welcome or a Claim from a pair is read as a Welcome of this version. So an agent
// refuses it as it refuses any unknown version.
inline constexpr int kPairVersion = 0;
inline constexpr VersionRange kProtocolVersions{kOldestProtocolVersion, kProtocolVersion};
inline constexpr int kTailVersion = 2;   // the first with TailWanted
inline constexpr int kStackVersion = 3;  // the first with TailKind::kStack
// A node that has lost the rendezvous kills its workers this long after it noticed. The rendezvous,
// which hears nothing of the node, takes its workers for dead a margin later.
inline constexpr std::chrono::milliseconds kFenceGrace{1'000};
inline constexpr std::chrono::milliseconds kFenceMargin{1'000};
// The place of the round's store. It is at node rank 0's agent, or in the rendezvous, where workers
// reach it through their node's agent (docs/store-proxy.md).
enum class StoreMode { kDirect, kProxy };

inline constexpr char kProxyAddr[] = "127.0.0.1";   // a node's store proxy, for its workers alone
inline constexpr char kStaticBackend[] = "static";  // the rdzv_backend of a job with fixed ranks

// The reaction to a rank that stopped making progress.
enum class HangAction {
  kDefault,  // kRestart if the rank writes its progress page, else kReport
  kRestart,
  kReport,
  kOff,  // no rank is watched
};

// Says what becomes of the other workers when one of them has died (docs/inplace.md).
enum class Recovery {
  kRestart,  // they are ended, and all workers are started again
  kInPlace,  // they go on in a new round, if nothing prevents it
};

// These must be the same on every node of a job; a node that differs is refused.
struct JobSettings {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;          // rounds that a failed worker may cost
  int max_node_losses = 16;      // rounds that a lost node may cost, a budget of its own
  int max_preemptions = 16;      // rounds that a preempted node may cost, a budget of its own
  int no_progress_restarts = 0;  // so many rounds in a row without a step end the job; 0: never
  int exclude_after = 0;         // excludes a node that failed first so often; 0: never
  int spares = 0;                // wanted spare nodes beyond max_nodes
  bool restart_on_join = false;  // a late node ends the round: a larger one forms
  HangAction hang_action = HangAction::kDefault;
  std::string rdzv_backend = "c10d";
  StoreMode store = StoreMode::kDirect;
  Recovery recovery = Recovery::kRestart;

  friend bool operator==(const JobSettings&, const JobSettings&) = default;
};

// The longest times of the job's waits. The first node's values count for the whole job, but
// shutdown is the largest of all nodes' values.
struct JobTimeouts {
  std::chrono::milliseconds join{600'000};              // until a round has enough nodes
  std::chrono::milliseconds last_call{30'000};          // with MIN nodes: the wait for MAX nodes
  std::chrono::milliseconds keep_alive{5'000};          // a node silent for so long is lost
  std::chrono::milliseconds start{300'000};             // from StartRound to WorkersRunning
  std::chrono::milliseconds shutdown{30'000};           // from SIGTERM to SIGKILL, at agents
  std::chrono::milliseconds exit_barrier{3'600'000};    // from the first node's success to the last
  std::chrono::milliseconds max_restart_delay{30'000};  // between rounds of a crash loop
  // With fewer than MIN nodes left: the wait for other nodes. 0: the job ends at once.
  std::chrono::milliseconds replacement{0};
  std::chrono::milliseconds rendezvous_lost{60'000};  // this node's workers run so long without one

  friend bool operator==(const JobTimeouts&, const JobTimeouts&) = default;
};

// The limit of WorkerFailure::error_fields; an agent leaves longer ones out.
inline constexpr std::size_t kMaxErrorFieldsBytes = 8192;

// How one worker ended, for the report.
struct WorkerFailure {
  int global_rank = -1;
  int local_rank = -1;
  int node_rank = -1;
  std::string host;  // host name, for people only
  std::int64_t pid = 0;
  int exit_code = 0;                    // meaningful when signal_number == 0
  int signal_number = 0;                // 0: it exited
  std::string note;                     // e.g. "could not exec: No such file or directory"
  std::vector<std::string> last_lines;  // of output, at most 20, oldest first
  // The worker lived, but made no progress; last_lines say what it was doing. With global_rank −1
  // no rank is to blame, and note says what is known.
  bool hung = false;
  // The time of its end, in µs of the rendezvous' monotonic clock, and the largest error of that;
  // 0: not known.
  std::int64_t died_at_us = 0;
  std::int64_t clock_error_us = 0;
  std::int64_t ended_at = 0;  // Unix time in s by its host's clock, for people; 0: not known
  // From its error file (agent/failure_details.h): the traceback, at most 24 lines, and the file's
  // path if the file is kept.
  std::vector<std::string> traceback = {};
  std::string error_file = {};
  // The rest of that file, meant to be a JSON object's text, but not trusted to be one. Empty:
  // none.
  std::string error_fields = {};
  // Facts about memory that ran out (agent/failure_details.h), "ran out: …"; empty: none.
  std::string out_of_memory = {};
  // The communicator operation that it was in; empty: not known. E.g. "rank 3 never came to
  // all_reduce #127 (25.0 MiB float32, sum) of communicator 0; ranks 0–2 waited in it for 30.0 s".
  std::string operation = {};
  std::string flight_recorder = {};         // its last operations' file, if kept
  std::vector<std::string> log_files = {};  // of stdout and stderr; at most 2
  bool lasting = false;  // a restart doesn't help: its program is gone, or can't be executed
  // From its own cgroup (docs/isolation.md). 0: not known, or no limit.
  std::uint64_t memory_peak_bytes = 0;
  std::uint64_t memory_limit_bytes = 0;
  // "warm", or "cold: …" with the reason why its imports weren't done (docs/warm.md). Empty: a warm
  // start wasn't asked for.
  std::string start = {};
  // Errors of the node's GPUs while it ran, in the driver's words (agent/gpu/gpu_error.h);
  // empty: none.
  std::string gpu_errors = {};
};

// ---- agent → rendezvous ----

// The first message of a connection, never numbered. An empty session asks for a new membership.
// Otherwise the agent comes back after a lost connection, within the grace period. The envelope's
// `ack` says what the agent has received; the rendezvous sends the later messages again.
struct Join {
  int version = kProtocolVersion;  // newest and oldest that the agent speaks
  int oldest_version = kOldestProtocolVersion;
  std::string run_id;
  std::string instance;  // random, one per agent process: a repeated Join isn't a new node
  std::string session;
  JobSettings settings;
  JobTimeouts timeouts;
  std::optional<int> node_rank;  // --node-rank, binding; a second node with it is refused
  int num_workers = 1;           // --nproc-per-node
  std::string host;              // host name, for people only
  std::int64_t pid = 0;
  std::string advertised_addr;   // --local-addr; empty: the address the connection came from
  std::uint16_t store_port = 0;  // a listener is bound, for the next round's store
  std::string topology;          // "pod1.rack7" (formation.h); empty: not known
  std::string program;           // a warning if programs differ
  std::string role;              // --role: role ranks count within one role
  std::uint32_t user_id = 0;     // ddprun's, as it claims; part of a job's identity
  // The highest message number of this node that the rendezvous has confirmed. A rendezvous whose
  // own number is lower has lost state.
  std::uint64_t confirmed = 0;
  // The reason why this node can't run its workers (docs/preflight.md). The node is kept out, and
  // the other nodes are told. Empty: it is fit, as far as it knows.
  std::string unfit = {};
};

// Returns the newest version that both sides speak; nullopt: none. Only the versions of `join` need
// be set.
std::optional<int> common_version(const Join& join);

// The answer to JobEnd and Refused. It carries only the envelope's `ack` and is never numbered.
// After it the rendezvous may forget the agent.
struct Ack {};

// All workers of this node run. A message whose `round` isn't the current one changes nothing; that
// holds for the following messages, too.
struct WorkersRunning {
  std::uint64_t round = 0;
  // Workers may begin with their imports done (docs/warm.md). The workers waited warming_us for the
  // imports, and num_warm of them began warm. `cold` says why one of the others didn't; empty:
  // none, or not asked for.
  std::int64_t warming_us = 0;
  int num_warm = 0;
  std::string cold = {};
};

// A worker failed by itself, not because it was told to stop. Only this node's first failure of the
// round is sent: later ones follow from it. The agent keeps the other workers running until it is
// told to stop. The message may come after another node's failure has ended the round; the earlier
// failure is the cause.
struct WorkerFailed {
  std::uint64_t round = 0;
  WorkerFailure failure;
};

// All workers of this node have exited with 0.
struct WorkersSucceeded {
  std::uint64_t round = 0;
};

// All workers of this node have finished their first step of the round. Sent once, and only if the
// workers report their progress (docs/agent-socket.md).
struct FirstStep {
  std::uint64_t round = 0;
  std::uint64_t step = 0;  // its number as the job counts, over restarts; 0: none
  // The time that the slowest worker took to make communicators; 0 also if it isn't reported.
  std::int64_t connecting_us = 0;
};

// Every process of the round is gone, or is kept for the next one. `store_port` is the listener
// that is bound for the next round.
struct WorkersStopped {
  std::uint64_t round = 0;
  std::uint16_t store_port = 0;
  std::uint64_t last_step = 0;  // the last that a worker finished, as the job counts; 0: none
  // The time when the last process was gone, in µs of the rendezvous' monotonic clock; 0: not
  // known.
  std::int64_t gone_at_us = 0;
  // Answers StopRound with `keep`: the number of workers that live on and wait for the next round.
  int kept = 0;
};

inline constexpr int kAgentItself = -1;  // in place of a rank

// A worker asks for something (docs/agent-socket.md), or an agent does that finds its node unfit
// (docs/preflight.md). The first request of a round counts.
struct WorkerRequest {
  enum class Kind {
    kExcludeNode,  // end the round, go on without this node
    kStopJob,      // end the job with exit_code
  };
  std::uint64_t round = 0;
  Kind kind = Kind::kExcludeNode;
  int global_rank = 0;  // that asks; with kExcludeNode maybe kAgentItself
  std::string reason;
  int exit_code = 1;  // for kStopJob: 1 … 255
};

// All workers of this node were asked to leave and have ended, each with 0 or 75, at least one with
// 75.
struct WorkersLeft {
  std::uint64_t round = 0;
};

// This node is about to be taken away, or the job's time is over.
struct Preempted {
  enum class Kind { kNode, kTimeLimit };
  Kind kind = Kind::kNode;
  std::string reason;                        // "got SIGUSR1"
  std::chrono::milliseconds notice{60'000};  // the time until the workers must be gone
  int signal_number = 0;                     // as in Preempt
};

// The agent ends because of a signal, with exit_code. An elastic job with enough other nodes goes
// on as after the loss of a node. Any other job ends, too.
struct Leave {
  std::string reason;
  int exit_code = 0;
  bool alone = false;     // only this node ends, even if the job isn't elastic
  bool everyone = false;  // the job is to end: a second signal
};

// A worker's communicator operation timed out, or the ranks called different operations: each rank
// should keep what it did before. Sent once per node and round.
struct RecordsWanted {
  std::uint64_t round = 0;
};

// The next five messages are never numbered: nobody needs them later.

// The last message of a connection. The rendezvous was silent for the keep-alive time, and the node
// kills its workers within kFenceGrace.
struct CutOff {};

// A rank made no progress for its limit. Sent again after 2, 4, … times the limit.
struct Stalled {
  std::uint64_t round = 0;
  RankReport report;  // without frames
};

// The answer to Inspect. If there are many ranks, the stalled ones come first.
struct Inspection {
  std::uint64_t round = 0;
  std::uint64_t inquiry = 0;      // from Inspect
  std::vector<RankReport> ranks;  // at most kMaxReportedRanks
};

// Says how long this node's steps take, when that changed, at most once in 10 s. `training` says
// how far its ranks are, at most once in 5 s. `monitor` is the node's report, also at most once in
// 5 s, whatever the round. It is a field because an older rendezvous ends the connection at an
// unknown message, but not at an unknown field.
struct StepTimes {
  std::uint64_t round = 0;
  std::vector<RankStepTime> ranks;  // at most kMaxReportedRanks; empty: unchanged
  std::optional<TrainingStatus> training = {};
  std::optional<NodeReport> monitor = {};
};

inline constexpr std::size_t kMaxTailLines = 64;
inline constexpr std::size_t kMaxTailBytes = 16 << 10;  // of all lines together

// The question about a rank: its last lines of output, or its main thread's stack.
enum class TailKind { kOutput, kStack };

// How the lines of a TailKind::kStack begin. The line "state " says what the thread does. "process
// " has the pid and start_ticks(), which identify the process ("process 4242 881234"). The frames
// follow, innermost first, Python's before the native ones.
inline constexpr char kStateLine[] = "state ", kProcessLine[] = "process ",
                      kPythonLine[] = "python ", kNativeLine[] = "native ";

// The answer to TailWanted, never numbered. If the lines exceed the bounds, the last ones are sent.
struct Tail {
  std::uint64_t request = 0;       // from TailWanted
  std::vector<std::string> lines;  // the rank's last output, oldest first, or its stack
  std::string note;                // what is missing there, and why; empty: nothing
};

using AgentMessage =
    variants::variant<Join, Ack, WorkersRunning, WorkerFailed, WorkersSucceeded, FirstStep,
                      WorkersStopped, WorkerRequest, WorkersLeft, Preempted, Leave, RecordsWanted,
                      CutOff, Stalled, Inspection, StepTimes, Tail>;

// Returns whether the message may come without a number, and be lost with its connection.
inline bool may_be_unnumbered(const AgentMessage& message) {
  return variants::holds_alternative<Ack>(message) ||
         variants::holds_alternative<CutOff>(message) ||
         variants::holds_alternative<Stalled>(message) ||
         variants::holds_alternative<Inspection>(message) ||
         variants::holds_alternative<StepTimes>(message) ||
         variants::holds_alternative<Tail>(message);
}

// ---- rendezvous → agent; the size of each doesn't grow with the number of nodes ----

// The answer to Join, never numbered. The envelope's `ack` says which messages of the agent
// arrived; the agent sends the later ones again.
struct Welcome {
  int version = kProtocolVersion;  // of all later messages
  std::string session = {};
  std::string your_addr = {};                  // as the rendezvous sees this agent
  std::chrono::milliseconds keep_alive{5000};  // silent for so long: lost (both sides)
  bool embedded = false;      // it runs inside a node's ddprun: once gone, it won't come back
  std::int64_t clock_us = 0;  // the rendezvous' monotonic clock; 0: not known
};

// Tells people how many nodes are missing. Never numbered, may be lost.
struct Waiting {
  int have_nodes = 0;
  int need_nodes = 0;
  std::string note;    // e.g. "… waiting as spare …"
  bool spare = false;  // this node waits: the live round has no place for it
};

// A round begins: the agent starts the workers.
struct StartRound {
  std::uint64_t round = 0;  // 1, 2, …
  int restart_count = 0;    // round − 1
  int node_rank = 0;
  int num_nodes = 1;
  int first_global_rank = 0;
  int world_size = 1;
  int first_role_rank = 0;  // among the workers of the nodes with this node's role
  int role_world_size = 1;
  std::string node_addr;         // this node's address for its peers
  std::string master_node_addr;  // node rank 0's address for this node
  // For workers' MASTER_ADDR and MASTER_PORT: node rank 0's store, or this node's own proxy. In
  // static mode without proxies they are empty and 0: the agent takes the endpoint it was given.
  std::string master_addr;
  std::uint16_t master_port = 0;
  bool serve_store = false;  // this node serves the round's store, or its proxy, on its listener
  bool in_place = false;     // no worker is spawned: those that were kept go on
};

// The node or the job must stop soon: the agent asks the workers to leave at a step boundary that
// they agree on. The rendezvous ends the round when all have left, or when the notice is over.
struct Preempt {
  std::uint64_t round = 0;
  std::string reason;
  std::chrono::milliseconds notice{0};
  int signal_number = 0;  // sent to the workers that handle it; 0: SIGUSR1
};

// The round is over: the agent stops the workers, then sends WorkersStopped. With `keep` above 0 it
// keeps the living workers if all of them ask for that within this time. A second one without
// `keep` stops the kept workers.
struct StopRound {
  std::uint64_t round = 0;
  std::string reason;
  std::chrono::milliseconds keep{0};
  bool last = false;  // the job ends with this round, as far as decided
};

// A rank of the job stopped making progress: the agent reports what each of its ranks is doing.
struct Inspect {
  std::uint64_t round = 0;
  std::uint64_t inquiry = 0;  // 1, 2, …; an answer to an earlier one is out of date
};

// A node sent RecordsWanted: the agent has each of its ranks write its flight recorder. Sent once
// per round.
struct Record {
  std::uint64_t round = 0;
};

// The result of comparing all ranks, for people. The reaction to it comes as StopRound or JobEnd.
struct HangVerdict {
  std::uint64_t round = 0;
  std::string text;
  std::vector<std::string> lines;  // evidence: e.g. the outlier's stack; at most kMaxVerdictLines
};
inline constexpr std::size_t kMaxVerdictLines = 40;
// The text begins so if the hang was told before.
inline constexpr char kStillHangs[] = "still: ";

// The job is over: the agent stops its workers, reports, and exits with exit_code, the same on
// every node.
struct JobEnd {
  int exit_code = 0;
  std::string reason;  // empty when all succeeded
  std::optional<WorkerFailure> first_failure;
  std::uint64_t rounds = 0;
  // With several rounds: where the job's time went (ledger.h); else empty.
  std::string summary = {};
  std::vector<std::string> victims = {};  // the later failures, one line each, at most 9
  // The nodes that were kept out or left out, one line each with the reason, at most
  // kMaxShownNodes.
  std::vector<std::string> excluded = {};
  // A JSON object's text that accounts for the job's time (ledger.h), at most kMaxLedgerBytes. It
  // is not trusted to be valid. Only node rank 0 of the last round gets it.
  std::string ledger = {};
};
inline constexpr std::size_t kMaxShownNodes = 16;
inline constexpr std::size_t kMaxLedgerBytes = 64 << 10;

// The agent was not taken in: it prints the message and exits with exit_code. With `again` it
// connects again as a new member. This rendezvous is about to end, and the next one on its endpoint
// may take the agent in.
struct Refused {
  std::string message;
  int exit_code = 2;
  bool again = false;
};

// A person looks at a rank of this node: the agent sends its last output, or its stack. Never
// numbered: nobody needs it later. Sent only to an agent of kTailVersion or newer: an older one
// would end the connection. An agent older than kStackVersion takes any kind for kOutput.
struct TailWanted {
  std::uint64_t round = 0;
  std::uint64_t request = 0;
  int global_rank = 0;  // in that round
  TailKind kind = TailKind::kOutput;
};

using RendezvousMessage =
    variants::variant<Welcome, Waiting, StartRound, Preempt, StopRound, JobEnd, Refused, Inspect,
                      HangVerdict, Record, TailWanted>;

// One frame. `seq` numbers a message that must arrive once and in order: 1, 2, … per direction and
// session; 0: not numbered. `ack` is the highest number received from the other side.
template <typename Message>
struct Envelope {
  std::uint64_t seq = 0;
  std::uint64_t ack = 0;
  Message message;
};
using AgentEnvelope = Envelope<AgentMessage>;
using RendezvousEnvelope = Envelope<RendezvousMessage>;

// ---- the messages' numbers ----

enum class Arrival {
  kNew,        // in order: act on it
  kDuplicate,  // seen before: ignore it
  kGap,        // something before it is missing: the peer broke the protocol
};

// Numbers, acknowledges and resends the messages of one side of a session. So each numbered message
// takes effect exactly once, even if connections are lost. `Out` is what this side sends
// (AgentMessage or RendezvousMessage).
template <typename Out>
class Channel {
 public:
  // Gives the message the next number, and keeps it until it is acknowledged.
  Envelope<Out> number(Out message) {
    unacknowledged_.emplace_back(++sent_, std::move(message));
    return {sent_, received_, unacknowledged_.back().second};
  }

  // Wraps a message that may be lost with its connection, without a number.
  Envelope<Out> plain(Out message) const { return {0, received_, std::move(message)}; }

  // Called for each message that arrives, with its number and the last number that it acknowledges.
  Arrival receive(std::uint64_t seq, std::uint64_t ack) {
    if (ack > sent_) return Arrival::kGap;
    while (!unacknowledged_.empty() && unacknowledged_.front().first <= ack) {
      unacknowledged_.pop_front();
    }
    if (seq == 0) return Arrival::kNew;
    if (seq <= received_) return Arrival::kDuplicate;
    if (seq != received_ + 1) return Arrival::kGap;
    received_ = seq;
    return Arrival::kNew;
  }

  // Calls send(envelope) for everything that the other side has not acknowledged, oldest first.
  template <typename Send>
  void resend(Send&& send) const {
    for (const auto& [seq, message] : unacknowledged_) {
      send(Envelope<Out>{seq, received_, message});
    }
  }

  bool all_acknowledged() const { return unacknowledged_.empty(); }
  // Returns 0 if all are acknowledged.
  std::uint64_t oldest_unacknowledged() const {
    return unacknowledged_.empty() ? 0 : unacknowledged_.front().first;
  }
  // Return the last number that the other side acknowledged, and the last one received from it.
  std::uint64_t acknowledged() const {
    return unacknowledged_.empty() ? sent_ : unacknowledged_.front().first - 1;
  }
  std::uint64_t received() const { return received_; }

 private:
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::deque<std::pair<std::uint64_t, Out>> unacknowledged_;

  BOOST_DESCRIBE_CLASS(Channel, (), (), (), (sent_, received_, unacknowledged_))  // for the journal
};

}  // namespace ddprun::membership
