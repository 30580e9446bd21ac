// SPDX-License-Identifier: Apache-2.0
// The messages between an agent and the rendezvous. Plain structs; docs/internals/rendezvous.md has
// the grammar, the JSON form and the table of who says what when. Pure.
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

inline constexpr int kProtocolVersion = 3;        // the newest that this ddprun speaks
inline constexpr int kOldestProtocolVersion = 1;  // and the oldest
// The version of a pair (ddprund --standby), which is gone: its agents voted for their leader. A
// Welcome or a Claim of one is read as a Welcome of this version, so that agents refuse it as any
// other.
inline constexpr int kPairVersion = 0;
inline constexpr VersionRange kProtocolVersions{kOldestProtocolVersion, kProtocolVersion};
inline constexpr int kTailVersion = 2;   // from this one on agents know TailWanted
inline constexpr int kStackVersion = 3;  // and from this one on TailKind::kStack
// A node that is cut off kills its workers this long after it noticed. A node that was lost by
// silence is taken to be without workers a margin after that.
inline constexpr std::chrono::milliseconds kFenceGrace{1'000};
inline constexpr std::chrono::milliseconds kFenceMargin{1'000};
// The place of the round's store: at node rank 0's agent, or in the rendezvous, reached through
// each node's agent (docs/store-proxy.md).
enum class StoreMode { kDirect, kProxy };

inline constexpr char kProxyAddr[] = "127.0.0.1";   // a node's store proxy, for its workers alone
inline constexpr char kStaticBackend[] = "static";  // JobSettings::rdzv_backend of fixed ranks

// The reaction to a rank that stopped making progress.
enum class HangAction {
  kDefault,  // restart where the rank writes its progress page, else report
  kRestart,
  kReport,
  kOff,  // nobody is watched
};

// The fate of the workers that live on when one of them has died (docs/inplace.md).
enum class Recovery {
  kRestart,  // they are ended, all of the node's are started again
  kInPlace,  // they go on where they are, in a new round, if nothing speaks against it
};

// These must be the same on every node of a job; a node that differs is refused.
struct JobSettings {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;          // rounds that a failed worker may cost
  int max_node_losses = 16;      // rounds that a lost node may cost, a budget of its own
  int max_preemptions = 16;      // rounds that a preempted node may cost, a budget of its own
  int no_progress_restarts = 0;  // rounds in a row without a finished step that end it; 0: no end
  int exclude_after = 0;         // a node that was the first to fail so often is out; 0: never
  int spares = 0;                // nodes beyond max_nodes that are meant to wait
  bool restart_on_join = false;  // a late node re-forms the round at once
  HangAction hang_action = HangAction::kDefault;
  std::string rdzv_backend = "c10d";
  StoreMode store = StoreMode::kDirect;
  Recovery recovery = Recovery::kRestart;

  friend bool operator==(const JobSettings&, const JobSettings&) = default;
};

// How long the job's waits may last. The first node's values count for the whole job; shutdown is
// the largest of all nodes'.
struct JobTimeouts {
  std::chrono::milliseconds join{600'000};      // until enough nodes are there for a round
  std::chrono::milliseconds last_call{30'000};  // MIN nodes are there: how long MAX is waited for
  std::chrono::milliseconds keep_alive{5'000};  // silence for this long = lost
  std::chrono::milliseconds start{300'000};     // StartRound → WorkersRunning
  std::chrono::milliseconds shutdown{30'000};   // SIGTERM → SIGKILL at the agents
  std::chrono::milliseconds exit_barrier{3'600'000};    // first node succeeded → all have
  std::chrono::milliseconds max_restart_delay{30'000};  // between the rounds of a crash loop
  // Fewer than MIN nodes are left: until others have come; 0: the job ends at once.
  std::chrono::milliseconds replacement{0};
  std::chrono::milliseconds rendezvous_lost{60'000};  // this node's workers run on without one

  friend bool operator==(const JobTimeouts&, const JobTimeouts&) = default;
};

// For WorkerFailure::error_fields; an agent leaves longer ones out.
inline constexpr std::size_t kMaxErrorFieldsBytes = 8192;

// The end of one worker, as the report shows it.
struct WorkerFailure {
  int global_rank = -1;
  int local_rank = -1;
  int node_rank = -1;
  std::string host;  // host name, for people only
  std::int64_t pid = 0;
  int exit_code = 0;                    // meaningful when signal_number == 0
  int signal_number = 0;                // 0: it exited
  std::string note;                     // e.g. "could not exec: No such file or directory"
  std::vector<std::string> last_lines;  // of its output, at most 20, oldest first
  // It lived, but made no progress: last_lines say what it was in. With global_rank −1: no rank is
  // to blame for it, note says what is known.
  bool hung = false;
  // When, in µs of the rendezvous' monotonic clock, and how far off that may be; 0: not known.
  std::int64_t died_at_us = 0;
  std::int64_t clock_error_us = 0;
  std::int64_t ended_at = 0;  // seconds since 1970, by its host's clock: for people; 0: not known
  // From its error file (agent/failure_details.h): its traceback, at most 24 lines, and the file's
  // path if that stays.
  std::vector<std::string> traceback = {};
  std::string error_file = {};
  // The rest of that file, as the text of a JSON object; empty: nothing. Never trusted to be one.
  std::string error_fields = {};
  // Facts about memory that ran out (agent/failure_details.h), "ran out: …"; empty: none.
  std::string out_of_memory = {};
  // The communicators' operation that it was in; empty: not known. "rank 3 never came to all_reduce
  // #127 (25.0 MiB float32, sum) of communicator 0; ranks 0–2 waited in it for 30.0 s".
  std::string operation = {};
  std::string flight_recorder = {};         // the file with its last operations, where that stays
  std::vector<std::string> log_files = {};  // those of its stdout and stderr; at most 2
  bool lasting = false;  // no restart mends it: its program is gone, or can't be executed
  // As its own cgroup has it (docs/isolation.md); 0: not known, none.
  std::uint64_t memory_peak_bytes = 0;
  std::uint64_t memory_limit_bytes = 0;
  // "warm", or why it began without its imports: "cold: …" (docs/warm.md); empty: nobody asked.
  std::string start = {};
  // What the driver said of the node's GPUs while it ran (agent/gpu/gpu_error_log.h); empty:
  // nothing.
  std::string gpu_errors = {};
};

// ---- agent → rendezvous ----

// First message of a connection, never numbered. An empty session asks for a new membership;
// otherwise the agent comes back after a lost connection, within the grace. The envelope's `ack`
// says what it has seen; the rendezvous resends what came later.
struct Join {
  int version = kProtocolVersion;  // the newest that the agent speaks, and the oldest
  int oldest_version = kOldestProtocolVersion;
  std::string run_id;
  std::string instance;  // drawn once per agent process: a repeated Join isn't a new node
  std::string session;
  JobSettings settings;
  JobTimeouts timeouts;
  std::optional<int> node_rank;  // --node-rank: binding; given twice = refused
  int num_workers = 1;           // --nproc-per-node
  std::string host;              // host name, for people only
  std::int64_t pid = 0;
  std::string advertised_addr;   // --local-addr; empty: the address the connection came from
  std::uint16_t store_port = 0;  // a listener already bound for the next round's store
  std::string topology;          // "pod1.rack7", see formation.h; empty: not known
  std::string program;           // differing programs: a warning
  std::string role;              // --role: nodes of one role are counted by themselves, too
  std::uint32_t user_id = 0;     // of this ddprun, as it says itself: jobs are told apart by it
  // The last of this node's numbers that the rendezvous has confirmed. A rendezvous whose own
  // number is lower has lost what it knew.
  std::uint64_t confirmed = 0;
  // Why its node can't run its workers (docs/preflight.md): it is kept out, and the others are
  // told. Empty: it is fit, as far as it knows.
  std::string unfit = {};
};

// The newest version that both speak; nullopt: none. `join` may have no more than its versions.
std::optional<int> common_version(const Join& join);

// Nothing but the envelope's `ack`, never numbered: the answer to JobEnd and Refused, after which
// the rendezvous may forget the agent.
struct Ack {};

// All workers of this node run. `round` names the round in this and the following messages; a
// message of another round changes nothing.
struct WorkersRunning {
  std::uint64_t round = 0;
  // Workers may begin with their imports done (docs/warm.md). The imports kept them waiting so
  // long, so many begin warm, and this is why one of the others doesn't. Empty: there is none.
  std::int64_t warming_us = 0;
  int num_warm = 0;
  std::string cold = {};
};

// A worker failed by itself, not because it was told to stop. Only the first of this node in this
// round is told: later ones are its victims. The agent keeps the others running until it is told to
// stop. May come when another node's failure has ended the round: the earlier one is the cause.
struct WorkerFailed {
  std::uint64_t round = 0;
  WorkerFailure failure;
};

// All workers of this node exited with 0.
struct WorkersSucceeded {
  std::uint64_t round = 0;
};

// All workers of this node have finished their first step of the round. Once, and only where they
// report their progress (docs/agent-socket.md).
struct FirstStep {
  std::uint64_t round = 0;
  std::uint64_t step = 0;  // its number in the job's own count over restarts; 0: it has none
  // The slowest worker took so long to make communicators; 0 also where they don't tell.
  std::int64_t connecting_us = 0;
};

// Every process of the round is gone, or is kept. `store_port`: the listener bound for the next
// round.
struct WorkersStopped {
  std::uint64_t round = 0;
  std::uint16_t store_port = 0;
  std::uint64_t last_step = 0;  // that any of its workers finished, by the job's count; 0: none
  // When the last process was gone, in µs of the rendezvous' monotonic clock; 0: not known.
  std::int64_t gone_at_us = 0;
  // The answer to StopRound with `keep`: so many workers live on, and wait for the next round; 0:
  // none does.
  int kept = 0;
};

inline constexpr int kAgentItself = -1;  // in place of a rank

// A worker asks for what only it can know (docs/agent-socket.md), or an agent that finds its node
// unfit (docs/preflight.md). The first one of a round counts.
struct WorkerRequest {
  enum class Kind {
    kExcludeNode,  // end the round, go on without this node
    kStopJob,      // end the job with exit_code
  };
  std::uint64_t round = 0;
  Kind kind = Kind::kExcludeNode;
  int global_rank = 0;  // who asks; with kExcludeNode maybe kAgentItself
  std::string reason;
  int exit_code = 1;  // kStopJob: 1 … 255
};

// All workers of this node have ended, each with 0 or with 75 after it was asked to leave, at least
// one with 75.
struct WorkersLeft {
  std::uint64_t round = 0;
};

// This node is about to be taken away, or the job's time is over.
struct Preempted {
  enum class Kind { kNode, kTimeLimit };
  Kind kind = Kind::kNode;
  std::string reason;                        // "got SIGUSR1"
  std::chrono::milliseconds notice{60'000};  // until the workers must have gone
  int signal_number = 0;                     // as in Preempt
};

// The agent ends by its own will (a signal); exit_code is what it will exit with. An elastic job
// with enough other nodes goes on as after the loss of a node, any other ends with it.
struct Leave {
  std::string reason;
  int exit_code = 0;
  bool alone = false;     // only this node, whatever the job is
  bool everyone = false;  // the job is to end: a second signal
};

// An operation of a worker's communicators expired, or the ranks called different ones: what each
// rank did before is worth keeping. Once per node and round.
struct RecordsWanted {
  std::uint64_t round = 0;
};

// The next five are never numbered: nobody wants to know later.

// The last words of a connection: nothing was heard of the rendezvous for the keep-alive time. The
// node kills its workers within kFenceGrace.
struct CutOff {};

// A rank made no progress for its limit; said again at twice, 4 ×, … of it.
struct Stalled {
  std::uint64_t round = 0;
  RankReport report;  // without frames
};

// The answer to Inspect. If there are many ranks, the stalled ones come first.
struct Inspection {
  std::uint64_t round = 0;
  std::uint64_t inquiry = 0;      // Inspect's
  std::vector<RankReport> ranks;  // at most kMaxReportedRanks
};

// How long this node's steps take: when that changed, at most once in 10 s. How far its ranks are:
// at most once in 5 s. How its node is, likewise, whatever round it is in. It is a field: an older
// rendezvous ends a connection for a kind of message that it doesn't know, but not for a field.
struct StepTimes {
  std::uint64_t round = 0;
  std::vector<RankStepTime> ranks;  // at most kMaxReportedRanks; empty: as said before
  std::optional<TrainingStatus> training = {};
  std::optional<NodeReport> monitor = {};
};

inline constexpr std::size_t kMaxTailLines = 64;
inline constexpr std::size_t kMaxTailBytes = 16 << 10;  // of all lines together

// The question about a rank: the last lines that it wrote, or where its main thread is.
enum class TailKind { kOutput, kStack };

// Lines of TailKind::kStack begin so. `state`: what the thread does. `process`: its pid and
// start_ticks(), which no other process has ("process 4242 881234"). Then come its frames,
// innermost first, Python's before the native ones.
inline constexpr char kStateLine[] = "state ", kProcessLine[] = "process ",
                      kPythonLine[] = "python ", kNativeLine[] = "native ";

// The answer to TailWanted. If the lines exceed the bounds, the last ones are sent. Never numbered.
struct Tail {
  std::uint64_t request = 0;       // TailWanted's
  std::vector<std::string> lines;  // that the rank wrote last, oldest first; or its stack
  std::string note;                // what is missing in them, and why; empty: nothing is
};

using AgentMessage =
    variants::variant<Join, Ack, WorkersRunning, WorkerFailed, WorkersSucceeded, FirstStep,
                      WorkersStopped, WorkerRequest, WorkersLeft, Preempted, Leave, RecordsWanted,
                      CutOff, Stalled, Inspection, StepTimes, Tail>;

// Whether it may come without a number, and be lost with its connection.
inline bool may_be_unnumbered(const AgentMessage& message) {
  return variants::holds_alternative<Ack>(message) ||
         variants::holds_alternative<CutOff>(message) ||
         variants::holds_alternative<Stalled>(message) ||
         variants::holds_alternative<Inspection>(message) ||
         variants::holds_alternative<StepTimes>(message) ||
         variants::holds_alternative<Tail>(message);
}

// ---- rendezvous → agent; each is O(1) bytes in the number of nodes ----

// Answer to Join, never numbered; the envelope's `ack` says which messages of the agent arrived,
// and the agent resends the later ones.
struct Welcome {
  int version = kProtocolVersion;  // what is spoken from now on
  std::string session = {};
  std::string your_addr = {};                  // where the rendezvous sees this agent
  std::chrono::milliseconds keep_alive{5000};  // silence for this long = lost, on both sides
  bool embedded = false;  // the rendezvous lives in a node's ddprun: once gone, it won't come back
  std::int64_t clock_us = 0;  // what its monotonic clock shows; 0: it doesn't say
};

// Tells a person who waits which nodes are missing; never numbered, may be lost.
struct Waiting {
  int have_nodes = 0;
  int need_nodes = 0;
  std::string note;    // e.g. "… waiting as spare …"
  bool spare = false;  // this node: the live round has no place for it
};

// A round begins: spawn the workers.
struct StartRound {
  std::uint64_t round = 0;  // 1, 2, …
  int restart_count = 0;    // round − 1
  int node_rank = 0;
  int num_nodes = 1;
  int first_global_rank = 0;
  int world_size = 1;
  int first_role_rank = 0;  // among the workers of the nodes with this node's role
  int role_world_size = 1;
  std::string node_addr;         // this node, as its peers reach it
  std::string master_node_addr;  // node rank 0, as this node reaches it
  // For workers' MASTER_ADDR and MASTER_PORT: node rank 0's store, or this node's own proxy. Static
  // mode without proxies: empty and 0; it is the endpoint that the agent itself was given.
  std::string master_addr;
  std::uint16_t master_port = 0;
  bool serve_store = false;  // this node serves the round's store, or its proxy, on its listener
  bool in_place = false;     // nothing is spawned: the workers that were kept go on
};

// A stop is near: ask the workers to leave at a step boundary that they agree on. The rendezvous
// ends the round when all have left, or when the notice is over.
struct Preempt {
  std::uint64_t round = 0;
  std::string reason;
  std::chrono::milliseconds notice{0};
  int signal_number = 0;  // to pass on to the workers that handle it; 0: SIGUSR1
};

// The round is over: stop the workers, then say WorkersStopped. With `keep`: those that ask for it
// within that time are kept, if that is so of all that live; else they are stopped. May come again,
// without: those that were kept are stopped.
struct StopRound {
  std::uint64_t round = 0;
  std::string reason;
  std::chrono::milliseconds keep{0};
  bool last = false;  // as far as it is decided, the job ends with the round
};

// Some rank of the job stopped making progress: say what each rank of this node is in.
struct Inspect {
  std::uint64_t round = 0;
  std::uint64_t inquiry = 0;  // 1, 2, …: an answer to an earlier one says nothing of now
};

// Some node said RecordsWanted: have each rank of this node write its flight recorder. Once per
// round.
struct Record {
  std::uint64_t round = 0;
};

// The result of comparing all ranks, for people; the reaction comes as StopRound or JobEnd.
struct HangVerdict {
  std::uint64_t round = 0;
  std::string text;
  std::vector<std::string> lines;  // evidence: the outlier's stack; at most kMaxVerdictLines
};
inline constexpr std::size_t kMaxVerdictLines = 40;

// The job is over: stop what runs, report, exit with exit_code (the same value on every node).
struct JobEnd {
  int exit_code = 0;
  std::string reason;  // empty when all succeeded
  std::optional<WorkerFailure> first_failure;
  std::uint64_t rounds = 0;
  std::string summary = {};  // of several rounds: where the job's time went (ledger.h); else empty
  std::vector<std::string> victims =
      {};  // who failed after first_failure, one line each, at most 9
  // Nodes that were kept out or left out, each with why, one line each, at most kMaxShownNodes.
  std::vector<std::string> excluded = {};
  // A JSON object that accounts for the job's time (ledger.h), for node rank 0 of the last round;
  // for the others empty. At most kMaxLedgerBytes. Never trusted to be one.
  std::string ledger = {};
};
inline constexpr std::size_t kMaxShownNodes = 16;
inline constexpr std::size_t kMaxLedgerBytes = 64 << 10;

// Not taken in: print the message, exit with exit_code. `again`: this rendezvous is about to end,
// and the next one on its endpoint may take the agent in; connect anew, as a new member.
struct Refused {
  std::string message;
  int exit_code = 2;
  bool again = false;
};

// Somebody looks at a rank of this node: say what it wrote last, or where it is. Never numbered:
// nobody wants to know later. Only to an agent that speaks kTailVersion: an older one would end the
// connection. An agent older than kStackVersion would take any kind for kOutput.
struct TailWanted {
  std::uint64_t round = 0;
  std::uint64_t request = 0;
  int global_rank = 0;  // of that round
  TailKind kind = TailKind::kOutput;
};

using RendezvousMessage =
    variants::variant<Welcome, Waiting, StartRound, Preempt, StopRound, JobEnd, Refused, Inspect,
                      HangVerdict, Record, TailWanted>;

// One frame. `seq` numbers what must arrive once and in order: 1, 2, … per direction and session, 0
// = not numbered. `ack` is the highest number received from the other side.
template <typename Message>
struct Envelope {
  std::uint64_t seq = 0;
  std::uint64_t ack = 0;
  Message message;
};
using AgentEnvelope = Envelope<AgentMessage>;
using RendezvousEnvelope = Envelope<RendezvousMessage>;

// ---- their numbers ----

enum class Arrival {
  kNew,        // in order: act on it
  kDuplicate,  // seen before: ignore it
  kGap,        // something before it is missing: the peer broke the protocol
};

// Numbering, acknowledgement and resending of one direction pair of a session: each numbered
// message takes effect exactly once, whatever connections come and go. `Out` is what this side says
// (AgentMessage or RendezvousMessage).
template <typename Out>
class Channel {
 public:
  // The next numbered message; kept until acknowledged.
  Envelope<Out> number(Out message) {
    unacknowledged_.emplace_back(++sent_, std::move(message));
    return {sent_, received_, unacknowledged_.back().second};
  }

  // A message that may be lost with its connection.
  Envelope<Out> plain(Out message) const { return {0, received_, std::move(message)}; }

  // For each message that arrives: its number, and the last number that it acknowledges.
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
  // 0: all are acknowledged.
  std::uint64_t oldest_unacknowledged() const {
    return unacknowledged_.empty() ? 0 : unacknowledged_.front().first;
  }
  // The last number that the other side acknowledged, and the last one that came from it.
  std::uint64_t acknowledged() const {
    return unacknowledged_.empty() ? sent_ : unacknowledged_.front().first - 1;
  }
  std::uint64_t received() const { return received_; }

 private:
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::deque<std::pair<std::uint64_t, Out>> unacknowledged_;

  BOOST_DESCRIBE_CLASS(Channel, (), (), (), (sent_, received_, unacknowledged_))  // the journal's
};

}  // namespace ddprun::membership
