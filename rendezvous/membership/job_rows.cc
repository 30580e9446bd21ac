// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/state.h"

#include <boost/describe/class.hpp>
#include <utility>

#include "common/parsed_number.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "rendezvous/membership/row_fields.h"
#include "rendezvous/messages/codec.h"

namespace ddprun::membership {
namespace {

constexpr std::string_view kJobs = "jobs/";
constexpr std::string_view kJob = "job", kState = "state", kBlame = "blame", kRounds = "rounds",
                           kFailures = "failures", kRecord = "record", kNodes = "nodes/";

}  // namespace

// RowWriter and RowReader find these functions by their argument types. Enumerators are written as
// numbers, so new ones go to the end of each enum.
static NodePhase last_of(NodePhase) { return NodePhase::kStopping; }
static JobPhase last_of(JobPhase) { return JobPhase::kEnded; }

// ---- messages, in the protocol's form ----

static std::string row_text(const RendezvousMessage& message) {
  return encode(RendezvousEnvelope{0, 0, message});
}
static void read_row_text(std::string_view text, RendezvousMessage& message) {
  message = read_kept_message(text);
}
static std::string row_text(const JobEnd& end) { return row_text(RendezvousMessage(end)); }
static void read_row_text(std::string_view text, JobEnd& end) {
  end = variants::get<JobEnd>(read_kept_message(text));
}
static std::string row_text(const Join& join) { return encode(AgentEnvelope{0, 0, join}); }
static void read_row_text(std::string_view text, Join& join) { join = read_kept_join(text); }
static std::string row_text(const WorkerFailure& failure) {
  return encode(AgentEnvelope{0, 0, WorkerFailed{0, failure}});
}
static void read_row_text(std::string_view text, WorkerFailure& failure) {
  failure = read_kept_failure(text);
}

// ---- the fields of each part ----

BOOST_DESCRIBE_STRUCT(ConnectionFacts, (), (peer_addr, local_addr, local_port, peer_is_loopback))
BOOST_DESCRIBE_STRUCT(JobDeadlines, (),
                      (join, last_call, backoff, fenced, start, barrier, preempt, stop, linger,
                       join_restart))
BOOST_DESCRIBE_STRUCT(HangStatus, (), (round, text, lines, acted))
BOOST_DESCRIBE_STRUCT(RoundRecord, (),
                      (round, num_nodes, num_spares, world_size, in_place, came, went, stragglers,
                       first_failure, victims, num_warm, cold, cause, first_step, last_step,
                       steps_redone, seconds))
BOOST_DESCRIBE_STRUCT(RoundFailures::Entry, (), (node, node_key, failure, at, error))
BOOST_DESCRIBE_STRUCT(Node, (),
                      (id, join, facts, key, session, channel, phase, node_rank, fenced_until,
                       stepped, emptied, warned, departed, preempted, excluded, left, kept,
                       in_place, gone))

template <MaybeConst<PhaseSeconds> Self, typename Fields>
void each_field(Self& seconds, Fields& fields) {
  for (const auto& [name, phase] : kPhases) fields(name, seconds.*phase);
}

// The row "blame" has the fields that grow with failures. Earlier versions had them in "state".
template <typename Fields>
void each_blame(auto& job, Fields& fields) {
  fields("first_failures", job.first_failures);
  fields("excluded", job.excluded);
}

// The row "state" has the fields that may change with any message. So none of them grows with
// nodes.
BOOST_DESCRIBE_STRUCT(JobState, (),
                      (owner, phase, deadlines, next_node_id, verdict, verdict_after_stop, began,
                       round, round_started, round_nodes, num_stepped, first_step, connecting,
                       round_end, preempting, time_is_over, was_preempted, keeping,
                       preemption_verdict, last_hang, failures, node_losses, preemptions,
                       idle_rounds, quick_failures, vain_join_restarts, nodes_before_join_restart,
                       inquiries))

namespace {

std::string node_key_of(NodeId id) { return concat(kNodes, id); }

// Writes settings and time-outs in the form of a Join.
std::string job_row(const JobState& job) {
  Join join;
  join.run_id = job.run_id;
  join.instance = "job";
  join.settings = job.settings;
  join.timeouts = job.timeouts;
  return row_text(join);
}

const std::string& row_at(const journal::Rows& rows, std::string_view key) {
  const auto found = rows.find(std::string(key));
  if (found == rows.end()) throw_error(ErrorCode::kProtocol, "its row \"", key, "\" is missing");
  return found->second;
}

}  // namespace

void JobRows::collect(JobState& job, const std::string& prefix, journal::Batch& batch) {
  const auto put = [&](std::string_view key, std::string content) {
    batch.push_back({concat(prefix, key), std::move(content)});
  };
  const auto put_changed = [&](std::string_view key, std::string content, std::string& written) {
    if (content == written) return;
    written = content;
    put(key, std::move(content));
  };
  for (const NodeId id : job.nodes.take_changed()) {
    const auto found = job.nodes.find(id);
    if (found == job.nodes.end()) {
      written_.erase(id);
      batch.push_back({prefix + node_key_of(id), std::nullopt});
      continue;
    }
    // A report of steps or a sign of life changes no field of the row.
    std::string text = row_of(found->second);
    const Digest digest = digest_of(text);
    Digest& written = written_[id];
    if (written == digest) continue;
    written = digest;
    put(node_key_of(id), std::move(text));
  }
  if (is_new_) put(kJob, job_row(job));
  if (is_new_ || job.ledger.version() != ledger_version_) {
    ledger_version_ = job.ledger.version();
    RowWriter writer;
    writer("rank_labels", job.rank_labels);
    writer("ledger", job.ledger);
    put(kRounds, writer.text());
  }
  if (is_new_ || job.round_failures.version() != failures_version_) {
    failures_version_ = job.round_failures.version();
    put(kFailures, row_of(job.round_failures));
  }
  if (job.record && !std::exchange(has_record_, true)) put(kRecord, row_of(*job.record));
  RowWriter blame;
  each_blame(std::as_const(job), blame);
  put_changed(kBlame, blame.text(), blame_);
  RowWriter writer;
  each_field(std::as_const(job), writer);
  writer("num_nodes", job.nodes.size());
  writer("blame_apart", true);
  put_changed(kState, writer.text(), state_);
  is_new_ = false;
}

void JobRows::erase(JobState& job, const std::string& prefix, journal::Batch& batch) {
  for (const std::string_view key : {kJob, kState, kBlame, kRounds, kFailures, kRecord}) {
    batch.push_back({concat(prefix, key), std::nullopt});
  }
  std::set<NodeId> ids = job.nodes.take_changed();
  for (const auto& [id, node] : job.nodes) ids.insert(id);
  for (const NodeId id : ids) batch.push_back({prefix + node_key_of(id), std::nullopt});
}

std::string job_row_prefix(std::uint64_t number) { return concat(kJobs, number, '/'); }

std::map<std::uint64_t, journal::Rows> rows_by_job(const journal::Rows& rows) {
  std::map<std::uint64_t, journal::Rows> jobs;
  for (auto row = rows.lower_bound(std::string(kJobs)); row != rows.end(); ++row) {
    if (!row->first.starts_with(kJobs)) break;
    const std::string_view rest = std::string_view(row->first).substr(kJobs.size());
    const std::size_t slash = rest.find('/');
    if (slash == rest.npos) continue;
    const auto number = parsed_number<std::uint64_t>(rest.substr(0, slash));
    if (number) jobs[*number].emplace(rest.substr(slash + 1), row->second);
  }
  return jobs;
}

JobState read_job(const journal::Rows& rows, Clock::duration clock_shift) {
  JobState job;
  Join join;
  read_row_text(row_at(rows, kJob), join);
  job.run_id = join.run_id;
  job.settings = join.settings;
  job.timeouts = join.timeouts;
  RowReader state(row_at(rows, kState), clock_shift);
  each_field(job, state);
  each_blame(job, state);
  bool blame_apart = false;
  state("blame_apart", blame_apart);
  if (blame_apart) {
    RowReader blame(row_at(rows, kBlame), clock_shift);
    each_blame(job, blame);
  }
  std::size_t num_nodes = 0;
  state("num_nodes", num_nodes);
  RowReader rounds(row_at(rows, kRounds), clock_shift);
  rounds("rank_labels", job.rank_labels);
  rounds("ledger", job.ledger);
  job.ledger.restored();
  job.round_failures = read_row<RoundFailures>(row_at(rows, kFailures), clock_shift);
  if (const auto record = rows.find(std::string(kRecord)); record != rows.end()) {
    job.record = read_row<FinishedJob>(record->second, clock_shift);
  }
  for (const auto& [key, content] : rows) {
    if (!key.starts_with(kNodes)) continue;
    auto node = read_row<Node>(content, clock_shift);
    if (key != node_key_of(node.id)) {
      throw_error(ErrorCode::kProtocol, "row \"", key, "\" is of another node");
    }
    job.nodes.add(node.id) = std::move(node);
  }
  // A --node-rank belongs to the last node that came with it.
  for (const auto& [id, node] : job.nodes) {
    if (node.join.node_rank) job.rank_wishes[*node.join.node_rank] = id;
  }
  if (job.nodes.size() != num_nodes) {
    throw_error(ErrorCode::kProtocol, "it had ", num_nodes, " nodes, of which ", job.nodes.size(),
                " are there");
  }
  return job;
}

}  // namespace ddprun::membership
