// SPDX-License-Identifier: Apache-2.0
// Who a job waits for, which rank is of interest, and names (state.h). Pure.
#include "common/log.h"
#include "ctl/top/state.h"

namespace ddprun::top {
namespace {

std::vector<std::string> names_of(const Job& job, NodeState state) {
  std::vector<std::string> names;
  for (const Node& node : job.nodes) {
    if (node.state == state) names.push_back(node_name(node));
  }
  return names;
}

std::string forming_text(const Job& job) {
  std::int64_t here = 0;
  for (const Node& node : job.nodes) here += node.state != NodeState::kLost;
  const std::int64_t missing = job.min_nodes - here;
  if (missing > 0) {
    return concat("waits for ", missing, missing == 1 ? " more node: " : " more nodes: ", here,
                  " of ", job.min_nodes, " are here");
  }
  if (here < job.max_nodes) {
    return concat("enough nodes are here, up to ", job.max_nodes - here,
                  " more are waited for a moment");
  }
  return "its next round is about to begin";
}

std::string running_text(const Job& job) {
  std::string said;
  const auto add = [&said](const std::string& more) { said += (said.empty() ? "" : "; ") + more; };
  const auto starting = names_of(job, NodeState::kStarting);
  const auto done = names_of(job, NodeState::kSucceeded);
  const auto running = names_of(job, NodeState::kRunning);
  if (!starting.empty()) add("waits for workers to start on " + names_text(starting));
  if (!done.empty() && !running.empty()) {
    add(concat(done.size(), done.size() == 1 ? " node" : " nodes", " finished; waits for ",
               names_text(running)));
  }
  if (!job.preempting.empty()) add("is about to end its round: " + job.preempting);
  return said;
}

}  // namespace

std::string node_name(const Node& node) {
  return node.node_rank ? concat("node ", *node.node_rank, " (", node.host, ")") : node.host;
}

std::int64_t rank_named(std::string_view text) {
  constexpr std::string_view kBegin = "rank ";
  if (!text.starts_with(kBegin)) return -1;
  text.remove_prefix(kBegin.size());
  std::int64_t rank = 0;
  std::size_t length = 0;
  for (; length < text.size() && text[length] >= '0' && text[length] <= '9'; ++length) {
    rank = rank * 10 + (text[length] - '0');
    if (length > 12) return -1;
  }
  return length > 0 && length < text.size() && text[length] == ' ' ? rank : -1;
}

std::int64_t rank_of_interest(const Job& job) {
  std::vector<std::string> texts = {job.reason};
  if (!job.rounds.empty() && job.rounds.back().round == job.round) {
    texts.push_back(job.rounds.back().first_failure);
    texts.push_back(job.rounds.back().cause);
  }
  if (job.hang && job.hang->round == job.round) {
    texts.push_back(job.hang->text);
    texts.insert(texts.end(), job.hang->lines.begin(), job.hang->lines.end());
  }
  texts.insert(texts.end(), job.stragglers.begin(), job.stragglers.end());
  for (const std::string& text : texts) {
    if (const std::int64_t rank = rank_named(text); rank >= 0) return rank;
  }
  return 0;
}

std::string names_text(const std::vector<std::string>& names, std::size_t most) {
  std::string said;
  const std::size_t shown = names.size() <= most + 1 ? names.size() : most;
  for (std::size_t i = 0; i < shown; ++i) said += (i == 0 ? "" : ", ") + names[i];
  if (shown < names.size()) said += concat(" and ", names.size() - shown, " more");
  return said;
}

std::string waits_text(const Job& job) {
  std::string said;
  if (job.phase == "forming") {
    said = forming_text(job);
  } else if (job.phase == "running") {
    said = running_text(job);
  } else if (job.phase == "stopping") {
    const auto stopping = names_of(job, NodeState::kStopping);
    said = stopping.empty() ? "is being stopped"
                            : "waits for workers to stop on " + names_text(stopping);
  } else if (job.phase == "ended") {
    said = "has ended; waits for its nodes to confirm it";
  }
  const auto lost = names_of(job, NodeState::kLost);
  if (!lost.empty()) said += (said.empty() ? "" : "; ") + ("no connection to " + names_text(lost));
  return said;
}

}  // namespace ddprun::top
