// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/state.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "common/error.h"
#include "common/json.h"
#include "ctl/number_texts.h"

namespace ddprun::top {
namespace {

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

// `may_be_spare`: the job has a round in which the node has no place.
Condition condition_of(const std::string& phase, bool is_connected, bool may_be_spare) {
  if (!is_connected) return kLost;
  if (phase == "idle" && may_be_spare) return kSpare;
  const auto known = std::ranges::find(kConditions, phase, &ConditionText::phase);
  const bool is_known = !phase.empty() && known != kConditions.end();
  return is_known ? static_cast<Condition>(known - kConditions.begin()) : kOther;
}

Node read_node(const json::value& said, bool is_before_rounds) {
  constexpr std::int64_t kMostWorkers = 1 << 24;
  Node node;
  node.host = text(said, "host");
  node.phase = text(said, "phase");
  if (number(said, "node_rank")) node.node_rank = whole(said, "node_rank");
  node.num_workers = std::clamp<std::int64_t>(whole(said, "num_workers"), 0, kMostWorkers);
  node.condition = condition_of(node.phase, at(said, "connected") == json::value(true),
                                !is_before_rounds && !node.node_rank);
  node.cpu = number(said, "monitor", "cpu");
  const auto used = number(said, "monitor", "memory_used_bytes");
  const double all = number(said, "monitor", "memory_bytes").value_or(0);
  if (used && all > 0) node.memory = *used / all;
  node.received = number(said, "monitor", "received_bytes_per_second");
  node.sent = number(said, "monitor", "sent_bytes_per_second");
  for (const json::value& gpu : list(said, "monitor", "gpus")) {
    node.gpus.push_back(number(gpu, "use"));
  }
  for (const json::value& row : list(said, "step_times")) {
    const json::array& values = list(row);
    if (values.size() < 3) continue;
    node.times.push_back({whole(values[0]), 1e-6 * number(values[1]).value_or(0),
                          1e-6 * number(values[2]).value_or(0)});
  }
  return node;
}

Job read_job(const json::value& said, bool is_over, std::size_t num_hidden) {
  Job job{text(said, "run_id"), is_over, said, num_hidden};
  if (is_over) return job;
  const bool is_before_rounds = whole(said, "round") == 0;
  for (const json::value& node : list(said, "nodes")) {
    job.nodes.push_back(read_node(node, is_before_rounds));
  }
  std::ranges::stable_sort(job.nodes, {}, [](const Node& node) {
    return node.node_rank.value_or(std::numeric_limits<std::int64_t>::max());
  });
  Values cpus, gpus;
  std::vector<double> step_times;
  std::optional<double> traffic;
  std::int64_t next = 0;
  for (Node& node : job.nodes) {
    // First ranks are sums of numbers of workers, but not if nodes are hidden.
    if (node.node_rank && num_hidden == 0) {
      node.first_rank = std::exchange(next, next + node.num_workers);
    }
    cpus.push_back(node.cpu);
    gpus.insert(gpus.end(), node.gpus.begin(), node.gpus.end());
    for (const RankTime& time : node.times) step_times.push_back(time.seconds);
    if (node.cpu || node.received || node.sent || !node.gpus.empty()) {
      traffic = traffic.value_or(0) + node.received.value_or(0) + node.sent.value_or(0);
    }
  }
  for (const std::string& straggler : texts(said, "stragglers")) {
    job.slow.insert(rank_named(straggler));
  }
  const std::string phase = text(said, "phase");
  if (const json::array& rounds = list(said, "rounds");
      !rounds.empty() && (phase == "stopping" || phase == "ended")) {
    job.failed = rank_named(text(rounds.back(), "first_failure"));
  }
  // The programs' own mean comes first, else the agents' measurements.
  const auto step = number(said, "training", "step_parts", "step_seconds", "mean");
  job.figures = {number(said, "training", "loss"),
                 number(said, "training", "samples_per_second"),
                 step ? step : median_of(std::move(step_times)),
                 mean_of(gpus),
                 mean_of(cpus),
                 traffic};
  return job;
}

std::string forming_text(const Job& job) {
  const std::int64_t here = num_here(job), least = whole(job.said, "min_nodes");
  const std::int64_t lacking = least - here, more = whole(job.said, "max_nodes") - here;
  if (lacking > 0) {
    return concat("waits for ", lacking, lacking == 1 ? " more node: " : " more nodes: ", here,
                  " of ", least, " are here");
  }
  return more > 0 ? concat("enough nodes are here, up to ", more, " more are waited for a moment")
                  : "its next round is about to begin";
}

}  // namespace

std::optional<double> mean_of(const Values& values) {
  double sum = 0, num = 0;
  for (const auto& value : values) {
    if (value) sum += *value, ++num;
  }
  return num > 0 ? std::optional(sum / num) : std::nullopt;
}

std::optional<double> median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? std::nullopt : std::optional(values[values.size() / 2]);
}

std::string Job::key() const {
  return is_over ? concat(run_id, '\n', text(said, "ended")) : run_id;
}

json::value read_json(std::string_view text) {
  boost::system::error_code error;
  json::value all = parsed_json(text, error);
  if (error) throw Error(ErrorCode::kProtocol, "it says what is no JSON: " + json_problem(error));
  clean(all);
  return all;
}

State read_state(const json::value& frame) {
  State state;
  state.daemon = at(frame, "status");
  if (!at(state.daemon, "version").is_string() || !at(frame, "jobs", "jobs").is_array()) {
    throw Error(ErrorCode::kProtocol, "it says neither its version nor its jobs");
  }
  const json::array& hidden = list(frame, "hidden_nodes");
  for (const json::value& job : list(frame, "jobs", "jobs")) {
    const std::int64_t num = state.num_live < hidden.size() ? whole(hidden[state.num_live]) : 0;
    state.jobs.push_back(read_job(job, false, std::abs(num)));
    ++state.num_live;
  }
  const json::array& over = list(frame, "jobs", "finished");
  for (auto job = over.rbegin(); job != over.rend(); ++job) {
    state.jobs.push_back(read_job(*job, true, 0));
  }
  state.num_hidden_live = std::abs(whole(frame, "hidden_jobs"));
  state.num_hidden_over = std::abs(whole(frame, "hidden_finished"));
  return state;
}

void add_value(Series& series, double value) {
  if (series.size() >= kMostValues) {
    std::size_t index = 0;
    std::erase_if(series, [&index](double) { return index++ < kMostValues / 2 && index % 2 == 0; });
  }
  series.push_back(value);
}

void remember(History& history, const State& state) {
  History live;
  for (const Job& job : state.jobs) {
    if (job.is_over) continue;
    JobHistory& past = live[job.run_id] = std::move(history[job.run_id]);
    for (std::size_t i = 0; i < kNumFigures; ++i) {
      if (job.figures[i]) add_value(past[i], *job.figures[i]);
    }
  }
  history = std::move(live);
}

std::int64_t rank_named(std::string_view text) {
  constexpr std::string_view kBegin = "rank ";
  if (!text.starts_with(kBegin)) return -1;
  text.remove_prefix(kBegin.size());
  std::int64_t rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  const bool is_word = error == std::errc() && end != text.data() + text.size() && *end == ' ';
  return is_word ? std::max<std::int64_t>(rank, -1) : -1;
}

std::int64_t rank_of_interest(const Job& job) {
  const std::int64_t round = whole(job.said, "round");
  Lines said = {text(job.said, "reason")};
  if (const json::array& rounds = list(job.said, "rounds");
      !rounds.empty() && whole(rounds.back(), "round") == round) {
    append(said, Lines{text(rounds.back(), "first_failure"), text(rounds.back(), "cause")});
  }
  if (whole(job.said, "hang", "round") == round) {
    said.push_back(text(job.said, "hang", "text"));
    append(said, texts(job.said, "hang", "lines"));
  }
  append(said, texts(job.said, "stragglers"));
  for (const std::string& each : said) {
    if (const std::int64_t rank = rank_named(each); rank >= 0) return rank;
  }
  return 0;
}

std::string names_text(const Lines& names, std::size_t most) {
  return first_listed(names, names.size() == most + 1 ? names.size() : most);
}

std::int64_t num_here(const Job& job) {
  const bool is_forming = text(job.said, "phase") == "forming";
  return std::ranges::count_if(job.nodes,
                               [is_forming](const Node& node) {
                                 return is_forming ? node.condition != kLost
                                                   : node.node_rank.has_value();
                               }) +
         static_cast<std::int64_t>(job.num_hidden);
}

std::string waits_text(const Job& job) {
  Lines said;
  const auto add = [&said](const std::string& more) { said.push_back(more); };
  const auto names_of = [&job](Condition condition) {
    Lines names;
    for (const Node& node : job.nodes) {
      if (node.condition == condition) names.push_back(node.name());
    }
    return names_text(names);
  };
  const std::string phase = text(job.said, "phase"), preempting = text(job.said, "preempting");
  const std::string starting = names_of(kStarting), running = names_of(kRunning);
  const std::string stopping = names_of(kStopping), lost = names_of(kLost);
  const auto num_done = std::ranges::count(job.nodes, kSucceeded, &Node::condition);
  if (phase == "forming") add(forming_text(job));
  if (phase == "running") {
    if (!starting.empty()) add("waits for workers to start on " + starting);
    if (num_done > 0 && !running.empty()) {
      add(ctl::count_text(num_done, "node") + " finished; waits for " + running);
    }
    if (!preempting.empty()) add("is about to end its round: " + preempting);
  }
  if (phase == "stopping" && stopping.empty()) add("is being stopped");
  if (phase == "stopping" && !stopping.empty()) add("waits for workers to stop on " + stopping);
  if (phase == "ended") add("has ended; waits for its nodes to confirm it");
  if (!lost.empty()) add("no connection to " + lost);
  return listed(said, "; ");
}

}  // namespace ddprun::top
