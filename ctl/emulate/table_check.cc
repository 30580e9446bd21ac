// SPDX-License-Identifier: Apache-2.0
#include "ctl/emulate/table_check.h"

#include <variant>
#include <vector>

#include "common/log.h"

namespace ddprun::ctl {

namespace action = membership::action;
using membership::JobStatus;
using Problem = std::optional<std::string>;

Problem TableCheck::stepped(const membership::JobTable& table, const membership::Actions& actions) {
  for (const membership::Action& each : actions) {
    if (const auto* started = std::get_if<action::RoundStarted>(&each)) {
      if (auto wrong = round_started(table, actions, started->round)) return wrong;
    } else if (const auto* send = std::get_if<action::Send>(&each)) {
      const auto* end = std::get_if<membership::JobEnd>(&send->envelope.message);
      if (end == nullptr) continue;
      if (end_ && *end_ != end->exit_code) {
        return concat("two ends: exit code ", *end_, " and exit code ", end->exit_code);
      }
      end_ = end->exit_code;
    }
  }
  return std::nullopt;
}

Problem TableCheck::round_started(const membership::JobTable& table,
                                  const membership::Actions& actions, std::uint64_t round) {
  const auto wrong = [&](const auto&... what) {
    return Problem(concat("round ", round, ": ", what...));
  };
  if (round <= round_) return wrong("it starts after round ", round_);
  round_ = round;
  std::vector<int> num_told;
  int num_nodes = 0, world_size = 0, num_workers = 0;
  for (const membership::Action& each : actions) {
    const auto* send = std::get_if<action::Send>(&each);
    if (send == nullptr) continue;
    const auto* start = std::get_if<membership::StartRound>(&send->envelope.message);
    if (start == nullptr || start->round != round) continue;
    if (num_nodes == 0) {
      num_nodes = start->num_nodes;
      world_size = start->world_size;
      if (num_nodes < settings_.min_nodes || num_nodes > settings_.max_nodes) {
        return wrong("it has ", num_nodes, " nodes; asked for were ", settings_.min_nodes, " to ",
                     settings_.max_nodes);
      }
      num_told.assign(static_cast<std::size_t>(num_nodes), 0);
      num_workers = world_size / num_nodes;  // the same on each
    }
    if (start->num_nodes != num_nodes || start->world_size != world_size) {
      return wrong("its nodes are told different sizes");
    }
    if (start->node_rank < 0 || start->node_rank >= num_nodes) {
      return wrong("node rank ", start->node_rank, " of ", num_nodes);
    }
    if (start->first_global_rank != start->node_rank * num_workers) {
      return wrong("node rank ", start->node_rank, " begins with rank ", start->first_global_rank);
    }
    if (++num_told[static_cast<std::size_t>(start->node_rank)] > 1) {
      return wrong("node rank ", start->node_rank, " is given twice");
    }
  }
  for (std::size_t rank = 0; rank < num_told.size(); ++rank) {
    if (num_told[rank] == 0) return wrong("node rank ", rank, " is given to nobody");
  }
  for (const JobStatus& job : table.status()) {
    if (auto beyond = within_budget(job)) return wrong(*beyond);
  }
  return std::nullopt;
}

Problem TableCheck::within_budget(const JobStatus& job) const {
  if (job.phase != "running") return std::nullopt;
  if (job.failures > settings_.max_restarts) {
    return concat("it starts after ", job.failures, " failures; allowed are ",
                  settings_.max_restarts, " restarts");
  }
  if (job.node_losses > settings_.max_node_losses) {
    return concat("it starts after ", job.node_losses, " node losses; allowed are ",
                  settings_.max_node_losses);
  }
  return std::nullopt;
}

Problem TableCheck::waits(const membership::JobTable& table,
                          std::optional<Clock::time_point> deadline) {
  if (table.idle() || deadline) return std::nullopt;
  return "the rendezvous waits without a deadline";
}

std::string TableCheck::fingerprint(const membership::JobTable& table) {
  std::string text;
  for (const JobStatus& job : table.status()) {
    text += concat(job.phase, ' ', job.round, ' ', job.failures, ' ', job.node_losses, ' ',
                   job.preemptions, ' ', job.preempting, ' ', job.idle_rounds, ' ',
                   job.excluded.size(), ' ', job.stragglers.size(), ' ', job.hang ? 1 : 0, ' ',
                   job.verdict ? job.verdict->exit_code : -1);
    for (const auto& node : job.nodes) {
      text += concat(' ', node.phase, node.node_rank.value_or(-1), node.connected ? '+' : '-');
    }
  }
  return text;
}

Problem TableCheck::ignored(const std::string& before, const membership::JobTable& table,
                            const membership::Actions& actions) {
  for (const membership::Action& each : actions) {
    // What a rank printed is for who asks, if anybody does: the job is not concerned.
    if (!std::holds_alternative<action::Log>(each) &&
        !std::holds_alternative<action::TailSaid>(each)) {
      return "the rendezvous acted on it";
    }
  }
  if (fingerprint(table) != before) return "it changed the job";
  return std::nullopt;
}

}  // namespace ddprun::ctl
