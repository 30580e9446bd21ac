// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/surplus.h"

#include <cstddef>
#include <string>
#include <utility>

#include "rendezvous/membership/verdicts.h"

namespace ddprun::membership {
namespace {

bool has_a_place(const Node& node) {
  return node.connection && !node.gone && !node.excluded && !node.warned;
}

// "ddprun, pid 4711 on gpu01, which runs train.py"
std::string holder_text(const Node& holder, const Join& join) {
  std::string text = concat("ddprun, pid ", holder.join.pid, " on ", holder.join.host,
                            ", which runs ", holder.join.program);
  if (holder.join.user_id != join.user_id) text += concat(" as user ", holder.join.user_id);
  return text;
}

}  // namespace

std::optional<Refused> refuse_surplus(const JobState& job, const Join& join,
                                      const ConnectionFacts& facts) {
  const JobSettings& settings = job.settings;
  const bool fixed = is_static(settings);
  const bool no_spares = fixed || (settings.max_nodes == 1 && settings.spares == 0);
  const auto places =
      static_cast<std::size_t>(settings.max_nodes + (no_spares ? 0 : settings.spares));
  if (job.nodes.size() < places) return std::nullopt;  // each join asks, of thousands, too
  const Node* holder = nullptr;
  std::size_t num_here = 0;
  bool one_of_them = false;
  for (const auto& [id, node] : job.nodes) {
    if (!has_a_place(node)) continue;
    if (holder == nullptr) holder = &node;
    ++num_here;
    one_of_them |= node.join.program == join.program && node.join.user_id == join.user_id;
  }
  if (num_here < places || (one_of_them && !no_spares)) return std::nullopt;
  if (fixed) return port_in_use(job, join, facts);
  return refused_usage(concat("job ", job.run_id, " already has ", num_here, " of ", places,
                              " nodes: it is in use by ", holder_text(*holder, join),
                              "; for a new job give another --rdzv-id"));
}

Refused port_in_use(const JobState& job, const Join& join, const ConnectionFacts& facts) {
  return refused_usage(concat("port ", facts.local_port, " is in use by ",
                              holder_text(job.nodes.begin()->second, join), " (job ", job.run_id,
                              "); give this job another --master-port"));
}

Waiting spare_note(const JobState& job, int num_members, int num_spares) {
  Waiting waiting;
  waiting.spare = true;
  const std::string max = std::to_string(job.settings.max_nodes);
  if (num_members < job.settings.max_nodes) {
    waiting.note =
        concat("job ", job.run_id, " runs on ", num_members, num_members == 1 ? " node" : " nodes",
               "; this one comes in with the next round");
  } else if (num_spares <= job.settings.spares) {
    waiting.note = concat("job ", job.run_id, " has its ", max, " nodes; ready as spare (",
                          num_spares, " of ", job.settings.spares, ")");
  } else {
    waiting.note = concat("job ", job.run_id, " already has ", max, " of ", max,
                          "; waiting as spare; for a new job give --rdzv-id");
  }
  return waiting;
}

}  // namespace ddprun::membership
