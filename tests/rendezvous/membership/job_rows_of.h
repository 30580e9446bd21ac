// SPDX-License-Identifier: Apache-2.0
// Makes the rows of a job in the form of a journal.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/journal/row.h"
#include "rendezvous/membership/state.h"

namespace ddprun::membership::testing {

// `members` are in round `round`, which is live. `spares` are there, too. Round 0: there was no
// round yet.
inline JobState job_state(std::uint64_t round, const std::vector<std::string>& members,
                          const std::vector<std::string>& spares = {}) {
  JobState job;
  job.run_id = "job";
  job.round = round;
  job.phase = round == 0 ? JobPhase::kForming : JobPhase::kRunning;
  job.settings.min_nodes = 1;
  job.settings.max_nodes = static_cast<int>(members.size() + spares.size());
  const auto add = [&](const std::string& name) -> Node& {
    Node& node = job.nodes.add(job.next_node_id++);
    node.join.run_id = job.run_id;
    node.join.instance = "instance of " + name;
    node.join.host = name;
    node.session = name;
    return node;
  };
  for (const std::string& name : members) {
    Node& node = add(name);
    if (round == 0) continue;
    node.node_rank = static_cast<int>(node.id) - 1;
    node.phase = NodePhase::kRunning;
  }
  for (const std::string& name : spares) add(name);
  return job;
}

inline journal::Rows rows_of(JobState job, std::uint64_t number = 1) {
  journal::Batch batch;
  JobRows().collect(job, job_row_prefix(number), batch);
  journal::Rows rows;
  journal::apply_batch(batch, rows);
  return rows;
}

}  // namespace ddprun::membership::testing
