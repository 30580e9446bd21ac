// SPDX-License-Identifier: Apache-2.0
// What must hold in a RandomWorld, whatever its agents do.
#include <algorithm>

#include "tests/rendezvous/membership/random_world.h"

namespace ddprun::membership::testing {

void RandomWorld::violated(const std::string& what) {
  if (!violation_) violation_ = concat("event ", event_number_, ": ", what);
}

// What a restart must not change.
std::string RandomWorld::kept_text() const {
  std::string text;
  for (const JobStatus& job : table_->status()) {
    text += concat(job.run_id, ' ', job.phase, ' ', job.round, ' ', job.failures, ' ',
                   job.node_losses, ' ', job.preemptions, ' ', job.preempting, ' ', job.idle_rounds,
                   ' ', job.verdict ? job.verdict->reason : "", ' ');
    for (const auto& [key, why] : job.excluded) text += concat(key, why, ' ');
    for (const NodeStatus& node : job.nodes) {
      text += concat(node.host, node.phase, node.node_rank.value_or(-1), ' ');
    }
    for (const RoundRecord& round : job.rounds) {
      text += concat(round.cause, round.seconds.running + round.seconds.lost(), ' ');
    }
    text += concat(job.settings.min_nodes, ' ', job.settings.max_nodes, '\n');
  }
  for (const FinishedJob& job : table_->finished().all()) {
    if (job.ended + options_.keep_finished <= now_) continue;  // due, and no Tick came yet
    text +=
        concat(job.run_id, ' ', job.exit_code, ' ', job.reason, ' ', job.rounds, ' ', job.failures,
               ' ', job.num_nodes, ' ', job.ended.time_since_epoch().count(), '\n');
  }
  return text;
}

std::string RandomWorld::status_text() const {
  std::string text;
  for (const JobStatus& job : table_->status()) {
    text += concat(job.run_id, ' ', job.phase, ' ', job.round, ' ', job.failures, ' ',
                   job.node_losses, ' ', job.preemptions, ' ', job.preempting, ' ', job.idle_rounds,
                   ' ', job.excluded.size(), ' ', job.hang ? job.hang->text : "", ' ');
    for (const std::string& straggler : job.stragglers) text += straggler;
    for (const NodeStatus& node : job.nodes) text += concat(node.host, node.phase, ' ');
    for (const RoundRecord& round : job.rounds) text += concat(round.seconds.first_step, ' ');
  }
  return text;
}

// What turns out not to have been the first failure excludes nobody; that is known before the round
// is stopped, or never.
void RandomWorld::take_back_exclusions() {
  if (stopping_.empty()) return;
  for (const JobStatus& job : table_->status()) {
    if (stopping_.count(job.run_id) == 0) continue;
    std::erase_if(excluded_[job.run_id],
                  [&](const std::string& key) { return job.excluded.count(key) == 0; });
  }
}

void RandomWorld::check_kept() {
  const auto of_finished = std::ranges::count_if(
      journal_, [](const auto& row) { return row.first.starts_with("finished/"); });
  if (of_finished != static_cast<std::ptrdiff_t>(table_->finished().size())) {
    violated(concat("the journal has ", of_finished, " jobs that are over, the rendezvous ",
                    table_->finished().size()));
  }
  if (table_->idle() && journal_.size() > table_->finished().size()) {
    violated("the journal keeps row " + journal_.begin()->first + " of a job that is gone");
  }
}

void RandomWorld::check_ignored(const std::string& type, const std::string& before,
                                const Actions& actions) {
  // Its number may be wrong (then it ends the connection), or it may confirm the job's end.
  const bool closes = std::any_of(actions.begin(), actions.end(), [](const Action& each) {
    return std::holds_alternative<action::Close>(each);
  });
  if (closes || before.find("ended") != std::string::npos) return;
  const bool says_nothing = std::all_of(actions.begin(), actions.end(), [](const Action& each) {
    return std::holds_alternative<action::Log>(each) ||
           std::holds_alternative<action::TailSaid>(each);
  });
  if (!says_nothing) violated("something was said because of a stale " + type);
  if (status_text() != before) violated("a stale " + type + " changed the job");
}

// What is pushed in order, while the workers live, speaks of them.
void RandomWorld::check_live_round(const Agent& agent, std::uint64_t round, const char* what) {
  if (agent.is_liar || agent.live_round == 0 || agent.live_round == round) return;
  violated(concat(what, " names round ", round, " on ", agent.name, " where round ",
                  agent.live_round, " lives"));
}

// One round costs one node loss at most; no second of it is in two phases.
void RandomWorld::check_costs(const JobStatus& job) {
  if (job.node_losses > static_cast<int>(job.round)) {
    violated(concat("rounds: ", job.round, ", but node losses: ", job.node_losses));
  }
  double sum = 0;
  for (const RoundRecord& record : job.rounds) {
    const PhaseSeconds& s = record.seconds;
    for (const double phase :
         {s.rendezvous, s.spawn, s.first_step, s.running, s.redone, s.detect, s.stop}) {
      if (phase < -1e-6) violated("a phase of a round lasted for less than no time");
    }
    sum += s.running + s.lost();
  }
  const double elapsed = std::chrono::duration<double>(now_ - began_).count();
  if (sum > elapsed + 1e-6) violated(concat("phases of ", sum, " s in ", elapsed, " s"));
}

void RandomWorld::check_roles(std::vector<std::pair<StartRound, std::string>> starts) {
  std::sort(starts.begin(), starts.end(),
            [](const auto& a, const auto& b) { return a.first.node_rank < b.first.node_rank; });
  std::map<std::string, int> next_rank, sizes;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const auto& [start, role] = starts[i];
    const int end =
        i + 1 < starts.size() ? starts[i + 1].first.first_global_rank : start.world_size;
    if (start.first_role_rank != next_rank[role]) violated("a rank in a role is wrong");
    next_rank[role] += end - start.first_global_rank;
    sizes.emplace(role, start.role_world_size);
  }
  for (const auto& [role, size] : sizes) {
    if (size != next_rank[role]) violated("the size of a role is wrong");
  }
}

void RandomWorld::check_ranks(const std::vector<StartRound>& starts) {
  std::set<int> node_ranks, first_ranks;
  for (const StartRound& start : starts) {
    node_ranks.insert(start.node_rank);
    first_ranks.insert(start.first_global_rank);
    if (start.round != starts.front().round || start.world_size != starts.front().world_size) {
      violated("nodes were told different rounds");
    }
    if (start.restart_count + 1 != static_cast<int>(start.round)) {
      violated("restart count is not round - 1");
    }
    if (start.num_nodes != static_cast<int>(starts.size())) violated("a rank is missing");
  }
  if (node_ranks.size() != starts.size() || first_ranks.size() != starts.size() ||
      *node_ranks.begin() != 0 || *node_ranks.rbegin() + 1 != static_cast<int>(starts.size()) ||
      *first_ranks.begin() != 0) {
    violated("ranks are not each given exactly once");
  }
  const int nodes = static_cast<int>(starts.size());
  if (nodes < settings_.min_nodes || nodes > settings_.max_nodes) {
    violated("a round has too few or too many nodes");
  }
}

void RandomWorld::check_jobs() {
  if (!table_->idle() && !table_->next_deadline()) violated("a job waits without a deadline");
  std::erase_if(excluded_, [jobs = table_->status()](const auto& entry) {
    return std::none_of(jobs.begin(), jobs.end(), [&](const JobStatus& job) {
      return job.run_id == entry.first;  // forgotten: a later job of this id knows nothing of it
    });
  });
  stopping_.clear();
  for (const JobStatus& job : table_->status()) {
    if (job.phase == "stopping") stopping_.insert(job.run_id);
    if (job.failures > job.settings.max_restarts + 1) violated("the restart budget was exceeded");
    if (job.phase == "running" && job.failures > job.settings.max_restarts) {
      violated("a round runs beyond the restart budget");
    }
    if (job.phase == "running" && job.preemptions > job.settings.max_preemptions) {
      violated("a round runs beyond the budget of preemptions");
    }
    if (job.phase != "running" && !job.preempting.empty()) {
      violated("a preemption is pending without a live round");
    }
    const int idle_limit = job.settings.no_progress_restarts;
    if (job.phase == "running" && idle_limit > 0 && job.idle_rounds >= idle_limit) {
      violated("a round runs though the ones before brought no progress");
    }
    check_costs(job);
    for (const auto& [key, why] : job.excluded) {
      if (!job.verdict) excluded_[job.run_id].insert(key);
    }
    if (job.verdict) excluded_.erase(job.run_id);  // a later job of this id knows nothing of it
    if (job.phase == "running" && job.node_losses > job.settings.max_node_losses) {
      violated("a round runs beyond the budget of node losses");
    }
    if (job.phase == "ended") continue;
    for (const NodeStatus& node : job.nodes) {
      const auto agent = std::find_if(agents_.begin(), agents_.end(),
                                      [&](const Agent& each) { return each.name == node.host; });
      if (!agent->is_liar && agent->leaves_by && agent->live_round == job.round &&
          job.phase == "running" && now_ > *agent->leaves_by) {
        violated(concat("round ", job.round, " runs on after a preemption's notice"));
      }
      if (!agent->is_liar && agent->live_round != 0 && agent->live_round != job.round) {
        violated(
            concat("two live rounds: ", agent->live_round, " on ", node.host, " and ", job.round));
      }
    }
  }
}

}  // namespace ddprun::membership::testing
