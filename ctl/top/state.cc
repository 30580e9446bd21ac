// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/state.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <exception>
#include <limits>
#include <utility>

#include "common/error.h"
#include "common/json.h"
#include "common/log.h"

namespace ddprun::top {
namespace {

namespace json = boost::json;

// What an older or newer ddprund doesn't say is left out; what is said in another way is an error.
const json::value* found(const json::value& object, const char* name) {
  const json::value* value = object.as_object().if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string text(const json::value& object, const char* name) {
  const json::value* value = found(object, name);
  return value == nullptr ? "" : std::string(value->as_string());
}

// So that sums of some don't overflow.
std::int64_t bounded(const json::value& value) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  return std::clamp(value.to_number<std::int64_t>(), -kMost, kMost);
}

std::int64_t integer(const json::value& object, const char* name) {
  const json::value* value = found(object, name);
  return value == nullptr ? 0 : bounded(*value);
}

double seconds_of(const json::value& microseconds) {
  const auto is = microseconds.to_number<double>() * 1e-6;
  return std::isfinite(is) ? is : 0;
}

// Finite.
std::optional<double> number(const json::value& object, const char* name) {
  const json::value* value = found(object, name);
  if (value == nullptr) return std::nullopt;
  const auto is = value->to_number<double>();
  return std::isfinite(is) ? std::optional(is) : std::nullopt;
}

std::vector<std::string> texts(const json::value& object, const char* name) {
  std::vector<std::string> all;
  if (const json::value* list = found(object, name)) {
    for (const json::value& each : list->as_array()) all.emplace_back(each.as_string());
  }
  return all;
}

Monitor read_monitor(const json::value& value) {
  Monitor monitor;
  monitor.cpu = number(value, "cpu");
  monitor.memory_bytes = number(value, "memory_bytes");
  monitor.memory_used_bytes = number(value, "memory_used_bytes");
  monitor.received = number(value, "received_bytes_per_second");
  monitor.sent = number(value, "sent_bytes_per_second");
  if (const json::value* gpus = found(value, "gpus")) {
    for (const json::value& gpu : gpus->as_array()) {
      monitor.gpus.push_back(
          {number(gpu, "use"), number(gpu, "memory_bytes"), number(gpu, "memory_used_bytes")});
    }
  }
  return monitor;
}

NodeState state_of(const std::string& phase, bool is_connected, bool has_rank) {
  if (!is_connected) return NodeState::kLost;
  if (phase == "idle") return has_rank ? NodeState::kIdle : NodeState::kSpare;
  if (phase == "starting") return NodeState::kStarting;
  if (phase == "running") return NodeState::kRunning;
  if (phase == "succeeded") return NodeState::kSucceeded;
  if (phase == "stopping") return NodeState::kStopping;
  if (phase == "failed") return NodeState::kFailed;
  return NodeState::kOther;
}

Node read_node(const json::value& value) {
  Node node;
  node.host = text(value, "host");
  node.addr = text(value, "addr");
  node.phase = text(value, "phase");
  if (found(value, "node_rank") != nullptr) node.node_rank = integer(value, "node_rank");
  constexpr std::int64_t kMostWorkers = 1 << 24;
  node.num_workers = std::clamp<std::int64_t>(integer(value, "num_workers"), 0, kMostWorkers);
  node.state = state_of(node.phase, value.at("connected").as_bool(), node.node_rank.has_value());
  if (const json::value* monitor = found(value, "monitor")) node.monitor = read_monitor(*monitor);
  if (const json::value* times = found(value, "step_times")) {
    for (const json::value& row : times->as_array()) {
      node.times.push_back({bounded(row.at(0)), seconds_of(row.at(1)), seconds_of(row.at(2))});
    }
  }
  return node;
}

std::optional<Spread> spread(const json::value& object, const char* name) {
  const json::value* value = found(object, name);
  if (value == nullptr) return std::nullopt;
  return Spread{number(*value, "mean").value_or(0), number(*value, "worst").value_or(0),
                integer(*value, "worst_rank")};
}

Training read_training(const json::value& value) {
  Training training;
  training.phase = text(value, "phase");
  training.step = integer(value, "step");
  training.loss = number(value, "loss");
  training.nan_ranks = integer(value, "nan_ranks");
  training.samples_per_second = number(value, "samples_per_second");
  if (const json::value* parts = found(value, "step_parts")) {
    training.step_seconds = spread(*parts, "step_seconds");
    training.communication = spread(*parts, "communication_seconds");
    training.exposed = spread(*parts, "exposed_seconds");
    training.loader = spread(*parts, "loader_seconds");
  }
  return training;
}

Round read_round(const json::value& value) {
  Round round;
  round.round = integer(value, "round");
  round.num_nodes = integer(value, "nodes");
  round.world_size = integer(value, "world_size");
  round.first_step = integer(value, "first_step");
  round.last_step = integer(value, "last_step");
  round.cause = text(value, "cause");
  round.first_failure = text(value, "first_failure");
  if (const json::value* seconds = found(value, "seconds")) {
    for (const auto& each : seconds->as_object()) {
      round.seconds += each.value().to_number<double>();
    }
  }
  return round;
}

// Those of rank 0 first; each with its first global rank, where that is known: sums of numbers of
// workers, unless some of the nodes are not here.
void order(Job& job) {
  static constexpr auto kUnranked = std::numeric_limits<std::int64_t>::max();
  std::stable_sort(job.nodes.begin(), job.nodes.end(), [](const Node& a, const Node& b) {
    return a.node_rank.value_or(kUnranked) < b.node_rank.value_or(kUnranked);
  });
  std::int64_t next = 0;
  for (Node& node : job.nodes) {
    if (!node.node_rank || job.num_hidden > 0) continue;
    node.first_rank = next;
    next += node.num_workers;
  }
}

Job read_job(const json::value& value, std::size_t num_hidden) {
  Job job;
  job.run_id = text(value, "run_id");
  job.phase = text(value, "phase");
  job.round = integer(value, "round");
  job.min_nodes = integer(value, "min_nodes");
  job.max_nodes = integer(value, "max_nodes");
  job.failures = integer(value, "failures");
  job.max_restarts = integer(value, "max_restarts");
  job.node_losses = integer(value, "node_losses");
  job.max_node_losses = integer(value, "max_node_losses");
  job.preemptions = integer(value, "preemptions");
  job.max_preemptions = integer(value, "max_preemptions");
  job.idle_rounds = integer(value, "rounds_without_progress");
  job.max_idle_rounds = integer(value, "no_progress_restarts");
  job.preempting = text(value, "preempting");
  job.reason = text(value, "reason");
  if (found(value, "exit_code") != nullptr) job.exit_code = integer(value, "exit_code");
  job.ettr = number(value, "ettr");
  if (const json::value* held = found(value, "held")) {
    job.granted = integer(*held, "granted");
    job.voters = integer(*held, "voters");
  }
  if (const json::value* training = found(value, "training")) {
    job.training = read_training(*training);
  }
  if (const json::value* hang = found(value, "hang")) {
    job.hang = Hang{integer(*hang, "round"), text(*hang, "text"), texts(*hang, "lines")};
  }
  job.num_hidden = num_hidden;
  for (const json::value& node : value.at("nodes").as_array()) job.nodes.push_back(read_node(node));
  if (const json::value* rounds = found(value, "rounds")) {
    for (const json::value& round : rounds->as_array()) job.rounds.push_back(read_round(round));
  }
  job.stragglers = texts(value, "stragglers");
  if (const json::value* excluded = found(value, "excluded")) {
    for (const auto& each : excluded->as_object()) {
      job.excluded[std::string(each.key())] = std::string(each.value().as_string());
    }
  }
  order(job);
  return job;
}

FinishedJob read_finished(const json::value& value) {
  FinishedJob job;
  job.run_id = text(value, "run_id");
  job.reason = text(value, "reason");
  job.first_failure = text(value, "first_failure");
  job.summary = text(value, "summary");
  job.began = text(value, "began");
  job.ended = text(value, "ended");
  job.exit_code = integer(value, "exit_code");
  job.rounds = integer(value, "rounds");
  job.failures = integer(value, "failures");
  job.node_losses = integer(value, "node_losses");
  job.preemptions = integer(value, "preemptions");
  job.num_nodes = integer(value, "num_nodes");
  job.nodes = texts(value, "nodes");
  return job;
}

Daemon read_daemon(const json::value& value) {
  Daemon daemon;
  daemon.version = std::string(value.at("version").as_string());
  daemon.pid = integer(value, "pid");
  daemon.uptime_seconds = number(value, "uptime_seconds").value_or(0);
  daemon.is_embedded = value.at("embedded").as_bool();
  daemon.knows_tails = found(value, "watch_output") != nullptr;
  daemon.role = text(value, "role");
  if (const json::value* agents = found(value, "agents")) {
    daemon.num_agents = integer(*agents, "joined");
  }
  if (const json::value* journal = found(value, "journal")) {
    daemon.journal_kept = journal->at("kept").as_bool();
    daemon.journal_trouble = text(*journal, "trouble");
  }
  const json::value* peer = found(value, "peer");
  if (peer != nullptr && !peer->at("in_sync").as_bool()) daemon.peer_says = text(*peer, "says");
  return daemon;
}

// No more of it than an honest daemon says.
Tail read_tail(const json::value& value) {
  constexpr std::size_t kMostLines = 64, kMostBytes = 1'024;  // of a line
  Tail tail;
  tail.run_id = text(value, "run_id");
  tail.rank = integer(value, "rank");
  tail.lines = texts(value, "lines");
  if (tail.lines.size() > kMostLines)
    tail.lines.erase(tail.lines.begin(), tail.lines.end() - kMostLines);
  for (std::string& line : tail.lines) line.resize(std::min(line.size(), kMostBytes));
  tail.note = text(value, "note").substr(0, kMostBytes);
  return tail;
}

void read_jobs(const json::value& page, const json::value* hidden, State& state) {
  std::size_t index = 0;
  for (const json::value& job : page.at("jobs").as_array()) {
    const bool is_told = hidden != nullptr && index < hidden->as_array().size();
    state.jobs.push_back(
        read_job(job, is_told ? hidden->as_array()[index].to_number<std::size_t>() : 0));
    ++index;
  }
  if (const json::value* finished = found(page, "finished")) {
    for (const json::value& job : finished->as_array()) {
      state.finished.push_back(read_finished(job));
    }
    std::reverse(state.finished.begin(), state.finished.end());
  }
}

template <typename Read>
auto or_error(const char* what, const Read& read) {
  try {
    return read();
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kProtocol,
                concat(what, " is not what was expected: ", json_trouble(error)));
  }
}

}  // namespace

Message read_message(std::string_view frame) {
  return or_error("what it pushes", [&] {
    Message message;
    const json::value all = json::parse(json::string_view(frame.data(), frame.size()));
    const std::string type = text(all, "type");
    if (type == "state") {
      message.kind = Message::Kind::kState;
      message.state.daemon = read_daemon(all.at("status"));
      read_jobs(all.at("jobs"), found(all, "hidden_nodes"), message.state);
      message.state.num_hidden_finished =
          static_cast<std::size_t>(std::max<std::int64_t>(integer(all, "hidden_finished"), 0));
    } else if (type == "status") {
      message.kind = Message::Kind::kStatus;
      message.state.daemon = read_daemon(all.at("status"));
    } else if (type == "too_large") {
      message.kind = Message::Kind::kTooLarge;
      message.num_bytes = number(all, "bytes").value_or(0);
    } else if (type == "tail") {
      message.kind = Message::Kind::kTail;
      message.tail = read_tail(all);
    } else if (type == "end") {
      message.kind = Message::Kind::kEnd;
      message.why = text(all, "why");
    }
    return message;
  });
}

State read_pages(const std::string& status, const std::string& jobs) {
  State state;
  state.daemon = or_error("/v1/status", [&] { return read_daemon(json::parse(status)); });
  return or_error("/v1/jobs", [&] {
    read_jobs(json::parse(jobs), nullptr, state);
    return state;
  });
}

}  // namespace ddprun::top
