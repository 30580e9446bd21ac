// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/rank_map.h"

#include <algorithm>
#include <charconv>

namespace ddprun::submit {
namespace {

// Unset: only the node knows.
std::optional<int> workers_of_node(const JobFile& job) {
  if (job.workers_per_node.empty()) return 1;
  const std::string& text = job.workers_per_node;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

}  // namespace

NodeCount nodes_wanted(const JobFile& job) {
  return {std::max(job.min_nodes, 1) + job.spares, std::max(job.max_nodes, 1) + job.spares};
}

std::vector<RankRow> rank_map(const JobFile& job, const std::string& node) {
  const std::optional<int> workers = workers_of_node(job);
  const int most = nodes_wanted(job).most;
  std::vector<RankRow> rows;
  for (int i = 0; i < most; ++i) {
    RankRow row{.node = node, .node_rank = i, .first_global_rank = {}, .num_workers = workers};
    if (const std::size_t at = node.find('#'); at != std::string::npos) {
      row.node.replace(at, 1, std::to_string(i));
    }
    if (i >= most - job.spares) {
      row.num_workers = 0;
    } else if (workers) {
      row.first_global_rank = i * *workers;
    } else if (i == 0) {
      row.first_global_rank = 0;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> rank_notes(const JobFile& job) {
  std::vector<std::string> notes;
  if (job.min_nodes != job.max_nodes) {
    notes.push_back("ranks are those of a round of " + std::to_string(job.max_nodes) +
                    " nodes; it may have fewer, down to " + std::to_string(job.min_nodes));
  }
  if (job.spares > 0) {
    notes.push_back("the last " + std::to_string(job.spares) +
                    " are spares; who comes first has a place");
  }
  return notes;
}

}  // namespace ddprun::submit
