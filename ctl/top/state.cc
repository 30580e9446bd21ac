// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/state.h"

#include <algorithm>
#include <array>
#include <boost/json/parse.hpp>
#include <charconv>
#include <cmath>
#include <limits>

#include "common/error.h"
#include "common/log.h"
#include "ctl/number_texts.h"
#include "ctl/top/styled_text.h"

namespace ddprun::top {
namespace {

constexpr std::array<ConditionText, kNumConditions> kConditions = {
    {{"succeeded", "✓", "finished", kGood},
     {"", "○", "spare", kDim},
     {"idle", "○", "waiting for a round", kDim},
     {"running", "▪", "running", kInfo},
     {"starting", "▸", "starting", kWarn},
     {"stopping", "■", "being stopped", kWarn},
     {"", "?", "in another state", kWarn},
     {"", "▲", "straggling", kWarn},
     {"failed", "✕", "failed", kBad},
     {"", "!", "without a connection", kBad}}};

void clean(json::value& value) {
  if (value.is_string()) {
    value = harmless(value.get_string());
  } else if (value.is_array()) {
    for (json::value& each : value.get_array()) clean(each);
  } else if (value.is_object()) {
    for (auto& each : value.get_object()) {
      if (each.key() != "run_id") clean(each.value());
    }
  }
}

std::int64_t bounded(const json::value& value) {
  constexpr double kMost = 1LL << 40;
  const double number = value.is_number() ? value.to_number<double>() : 0;
  return std::isfinite(number) ? std::llround(std::clamp(number, -kMost, kMost)) : 0;
}

std::optional<double> finite(const json::value& value) {
  const double number = value.is_number() ? value.to_number<double>() : NAN;
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

Condition condition_of(const std::string& phase, bool is_connected, bool has_rank) {
  if (!is_connected) return Condition::kLost;
  if (phase == "idle") return has_rank ? Condition::kIdle : Condition::kSpare;
  for (std::size_t i = 0; i < kNumConditions; ++i) {
    if (!phase.empty() && phase == kConditions[i].phase) return static_cast<Condition>(i);
  }
  return Condition::kOther;
}

Node read_node(const json::value& said) {
  constexpr std::int64_t kMostWorkers = 1 << 24;
  Node node;
  node.host = text(said, "host");
  node.phase = text(said, "phase");
  if (number(said, "node_rank")) node.node_rank = whole(said, "node_rank");
  node.num_workers = std::clamp<std::int64_t>(whole(said, "num_workers"), 0, kMostWorkers);
  node.condition = condition_of(node.phase, member(said, "connected") == json::value(true),
                                node.node_rank.has_value());
  const json::value& monitor = member(said, "monitor");
  node.cpu = number(monitor, "cpu");
  const auto used = number(monitor, "memory_used_bytes"), all = number(monitor, "memory_bytes");
  if (used && all.value_or(0) > 0) node.memory = *used / *all;
  node.received = number(monitor, "received_bytes_per_second");
  node.sent = number(monitor, "sent_bytes_per_second");
  for (const json::value& gpu : list(monitor, "gpus")) node.gpus.push_back(number(gpu, "use"));
  for (const json::value& row : list(said, "step_times")) {
    const json::array* values = row.if_array();
    if (values == nullptr || values->size() < 3) continue;
    node.times.push_back({bounded(values->at(0)), 1e-6 * finite(values->at(1)).value_or(0),
                          1e-6 * finite(values->at(2)).value_or(0)});
  }
  return node;
}

Job read_job(const json::value& said, bool is_over, std::size_t num_hidden) {
  Job job{text(said, "run_id"), is_over, said, {}, num_hidden, {}};
  if (is_over) return job;
  for (const json::value& node : list(job.said, "nodes")) job.nodes.push_back(read_node(node));
  std::stable_sort(job.nodes.begin(), job.nodes.end(), [](const Node& a, const Node& b) {
    constexpr auto kUnranked = std::numeric_limits<std::int64_t>::max();
    return a.node_rank.value_or(kUnranked) < b.node_rank.value_or(kUnranked);
  });
  // First ranks are sums of numbers of workers, unless some of the nodes are not here.
  std::int64_t next = 0;
  for (Node& node : job.nodes) {
    if (!node.node_rank || num_hidden > 0) continue;
    node.first_rank = next;
    next += node.num_workers;
  }
  for (const std::string& straggler : texts(job.said, "stragglers")) {
    job.slow.insert(rank_named(straggler));
  }
  const std::string phase = text(job.said, "phase");
  if (const json::array& rounds = list(job.said, "rounds");
      !rounds.empty() && (phase == "stopping" || phase == "ended")) {
    job.failed = rank_named(text(rounds.back(), "first_failure"));
  }
  return job;
}

std::string forming_text(const Job& job) {
  const auto here = std::count_if(job.nodes.begin(), job.nodes.end(), [](const Node& node) {
    return node.condition != Condition::kLost;
  });
  const std::int64_t least = whole(job.said, "min_nodes"),
                     more = whole(job.said, "max_nodes") - here;
  if (here < least) {
    return concat("waits for ", least - here,
                  least - here == 1 ? " more node: " : " more nodes: ", here, " of ", least,
                  " are here");
  }
  return more > 0 ? concat("enough nodes are here, up to ", more, " more are waited for a moment")
                  : "its next round is about to begin";
}

}  // namespace

const json::value& member(const json::value& object, std::string_view name) {
  static const json::value kNone;
  const json::value* value = object.is_object() ? object.get_object().if_contains(name) : nullptr;
  return value == nullptr ? kNone : *value;
}

std::string text(const json::value& object, std::string_view name) {
  const json::string* value = member(object, name).if_string();
  return value == nullptr ? "" : std::string(*value);
}

std::vector<std::string> texts(const json::value& object, std::string_view name) {
  std::vector<std::string> all;
  for (const json::value& each : list(object, name)) {
    if (each.is_string()) all.emplace_back(each.get_string());
  }
  return all;
}

const json::array& list(const json::value& object, std::string_view name) {
  static const json::array kNone;
  const json::array* value = member(object, name).if_array();
  return value == nullptr ? kNone : *value;
}

std::int64_t whole(const json::value& object, std::string_view name) {
  return bounded(member(object, name));
}

std::optional<double> number(const json::value& object, std::string_view name) {
  return finite(member(object, name));
}

const ConditionText& text_of(Condition condition) {
  return kConditions.at(static_cast<std::size_t>(condition));
}

std::string Node::name() const {
  return node_rank ? concat("node ", *node_rank, " (", host, ")") : host;
}

bool Node::has(std::int64_t rank) const {
  return first_rank && rank >= *first_rank && rank < *first_rank + num_workers;
}

std::string Job::key() const {
  return is_over ? concat(run_id, '\n', text(said, "ended")) : run_id;
}

json::value read_json(std::string_view text) {
  boost::system::error_code error;
  json::value all = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) throw Error(ErrorCode::kProtocol, "it says what is no JSON: " + error.message());
  clean(all);
  return all;
}

State read_state(const json::value& frame) {
  State state{member(frame, "status"), {}, 0, 0};
  const json::value& page = member(frame, "jobs");
  if (!member(state.daemon, "version").is_string() || !member(page, "jobs").is_array()) {
    throw Error(ErrorCode::kProtocol, "it says neither its version nor its jobs");
  }
  const json::array& hidden = list(frame, "hidden_nodes");
  for (const json::value& job : list(page, "jobs")) {
    const std::int64_t num = state.num_live < hidden.size() ? bounded(hidden[state.num_live]) : 0;
    state.jobs.push_back(read_job(job, false, static_cast<std::size_t>(std::abs(num))));
    ++state.num_live;
  }
  const json::array& over = list(page, "finished");
  for (auto job = over.rbegin(); job != over.rend(); ++job) {
    state.jobs.push_back(read_job(*job, true, 0));
  }
  state.num_hidden_over = static_cast<std::size_t>(std::abs(whole(frame, "hidden_finished")));
  return state;
}

std::int64_t rank_named(std::string_view text) {
  constexpr std::string_view kBegin = "rank ";
  if (!text.starts_with(kBegin)) return -1;
  text.remove_prefix(kBegin.size());
  std::int64_t rank = -1;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), rank);
  const bool is_word = read.ec == std::errc() && read.ptr != text.data() + text.size();
  return is_word && *read.ptr == ' ' && rank >= 0 ? rank : -1;
}

std::int64_t rank_of_interest(const Job& job) {
  const std::int64_t round = whole(job.said, "round");
  std::vector<std::string> said = {text(job.said, "reason")};
  if (const json::array& rounds = list(job.said, "rounds");
      !rounds.empty() && whole(rounds.back(), "round") == round) {
    said.push_back(text(rounds.back(), "first_failure"));
    said.push_back(text(rounds.back(), "cause"));
  }
  if (const json::value& hang = member(job.said, "hang"); whole(hang, "round") == round) {
    said.push_back(text(hang, "text"));
    for (const std::string& line : texts(hang, "lines")) said.push_back(line);
  }
  for (const std::string& straggler : texts(job.said, "stragglers")) said.push_back(straggler);
  for (const std::string& each : said) {
    if (const std::int64_t rank = rank_named(each); rank >= 0) return rank;
  }
  return 0;
}

std::string names_text(const std::vector<std::string>& names, std::size_t most) {
  std::string said;
  const std::size_t shown = names.size() <= most + 1 ? names.size() : most;
  for (std::size_t i = 0; i < shown; ++i) said += (i == 0 ? "" : ", ") + names[i];
  return shown < names.size() ? concat(said, " and ", names.size() - shown, " more") : said;
}

std::string waits_text(const Job& job) {
  std::string said;
  const auto add = [&said](const std::string& more) { said += (said.empty() ? "" : "; ") + more; };
  const auto names_of = [&job](Condition condition) {
    std::vector<std::string> names;
    for (const Node& node : job.nodes) {
      if (node.condition == condition) names.push_back(node.name());
    }
    return names;
  };
  const std::string phase = text(job.said, "phase"), preempting = text(job.said, "preempting");
  if (phase == "forming") {
    add(forming_text(job));
  } else if (phase == "running") {
    const auto starting = names_of(Condition::kStarting), running = names_of(Condition::kRunning);
    const auto done = static_cast<std::int64_t>(names_of(Condition::kSucceeded).size());
    if (!starting.empty()) add("waits for workers to start on " + names_text(starting));
    if (done > 0 && !running.empty()) {
      add(concat(ctl::count_text(done, "node"), " finished; waits for ", names_text(running)));
    }
    if (!preempting.empty()) add("is about to end its round: " + preempting);
  } else if (phase == "stopping") {
    const auto stopping = names_of(Condition::kStopping);
    add(stopping.empty() ? "is being stopped"
                         : "waits for workers to stop on " + names_text(stopping));
  } else if (phase == "ended") {
    add("has ended; waits for its nodes to confirm it");
  }
  if (const auto lost = names_of(Condition::kLost); !lost.empty()) {
    add("no connection to " + names_text(lost));
  }
  return said;
}

}  // namespace ddprun::top
