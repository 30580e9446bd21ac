// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/membership/world/table_check.h"

#include <algorithm>
#include <utility>

#include "common/text.h"
#include "rendezvous/messages/codec.h"

namespace ddprun::membership::testing {
namespace {

// The JobEnds and StartRounds of a step.
template <typename Message, typename Then>
void each_sent(const Actions& actions, const Then& then) {
  for (const Action& each : actions) {
    const auto* send = variants::get_if<action::Send>(&each);
    const auto* message = send ? variants::get_if<Message>(&send->envelope.message) : nullptr;
    if (message != nullptr) then(send->connection, *message);
  }
}

std::ptrdiff_t num_jobs(const std::vector<JobStatus>& jobs, const std::string& run_id) {
  return std::count_if(jobs.begin(), jobs.end(),
                       [&](const JobStatus& job) { return job.run_id == run_id; });
}

bool any_lives(const std::vector<JobStatus>& jobs, const std::string& run_id) {
  return std::any_of(jobs.begin(), jobs.end(), [&](const JobStatus& job) {
    return job.run_id == run_id && job.phase != "ended";
  });
}

}  // namespace

void TableCheck::violated(std::string what) {
  if (!problem_) problem_ = std::move(what);
}

void TableCheck::heard(const event::Message& message) {
  const auto known = peers_.find(message.connection);
  if (known != peers_.end() && variants::holds_alternative<Leave>(message.envelope.message)) {
    known->second.leaves = true;
  }
  const auto* join = variants::get_if<Join>(&message.envelope.message);
  if (join == nullptr) return;
  const std::string& addr =
      join->advertised_addr.empty() ? message.facts.peer_addr : join->advertised_addr;
  peers_[message.connection] = {join->run_id, join->role, concat(join->host, " (", addr, ")"),
                                join->version < kTailVersion, false};
  const auto [found, is_new] = asked_.try_emplace(join->run_id);
  Asked& asked = found->second;
  asked.min_nodes = is_new ? join->settings.min_nodes : asked.min_nodes;
  asked.max_nodes = is_new ? join->settings.max_nodes : asked.max_nodes;
  asked.max_restarts = std::max(asked.max_restarts, join->settings.max_restarts);
  asked.max_node_losses = std::max(asked.max_node_losses, join->settings.max_node_losses);
  if (is_new) asked.num_workers = join->num_workers;
  if (asked.num_workers != join->num_workers) asked.num_workers = 0;
}

std::optional<std::uint64_t> TableCheck::live_round_of(ConnectionId connection) const {
  const auto found = peers_.find(connection);
  if (found == peers_.end()) return std::nullopt;
  return live_round(found->second.run_id);
}

std::uint64_t TableCheck::live_round(const std::string& run_id) const {
  const auto found = live_rounds_.find(run_id);
  return found == live_rounds_.end() ? 0 : found->second;
}

std::optional<std::string> TableCheck::stepped(const JobTable& table, const Event& event,
                                               const Actions& actions, Clock::time_point now) {
  problem_.reset();
  if (!began_) began_ = now;
  check_tails(event, actions);
  bool looks = looks_always_;
  each_sent<JobEnd>(actions, [&](ConnectionId, const JobEnd&) { looks = true; });
  for (const Action& each : actions)
    looks |= variants::holds_alternative<action::RoundStarted>(each);
  const std::vector<JobStatus> jobs = looks ? table.status() : std::vector<JobStatus>();
  if (looks) take_back_exclusions(jobs);
  for (const Action& each : actions) {
    const auto* started = variants::get_if<action::RoundStarted>(&each);
    if (started != nullptr) check_round(started->run_id, started->round, actions);
  }
  if (!looks) return problem_;
  check_ends(jobs, actions);
  check_jobs(jobs, now);
  return problem_;
}

// ---- a round that starts ----

void TableCheck::check_round(const std::string& run_id, std::uint64_t round,
                             const Actions& actions) {
  live_rounds_[run_id] = round;
  if (round == 1) excluded_[run_id].clear();  // this is another job with the same id
  auto [last, is_first] = last_rounds_.try_emplace(run_id, round);
  if (!is_first && round <= last->second) {
    violated(concat("round ", round, ": it starts after round ", last->second));
  }
  last->second = round;
  std::vector<Told> told;
  bool all_are_known = true;
  each_sent<StartRound>(actions, [&](ConnectionId connection, const StartRound& start) {
    const auto found = peers_.find(connection);
    const Peer* peer = found == peers_.end() ? nullptr : &found->second;
    if (peer != nullptr && peer->run_id != run_id) return;
    if (start.round != round) return;
    told.push_back({start, peer});
    all_are_known = all_are_known && peer != nullptr;
    if (peer != nullptr && excluded_[run_id].count(peer->node) != 0) {
      violated(concat("round ", round, " starts on ", peer->node, ", which is excluded"));
    }
  });
  std::sort(told.begin(), told.end(),
            [](const Told& a, const Told& b) { return a.start.node_rank < b.start.node_rank; });
  check_ranks(run_id, round, told);
  if (!problem_ && all_are_known) check_roles(std::move(told));
}

void TableCheck::check_ranks(const std::string& run_id, std::uint64_t round,
                             const std::vector<Told>& told) {
  const auto wrong = [&](const auto&... what) { violated(concat("round ", round, ": ", what...)); };
  if (told.empty()) return wrong("nobody is told to start");
  const StartRound& first = told.front().start;
  const Asked& asked = asked_[run_id];
  if (first.num_nodes < asked.min_nodes || first.num_nodes > asked.max_nodes) {
    return wrong("it has ", first.num_nodes, " nodes; asked for were ", asked.min_nodes, " to ",
                 asked.max_nodes);
  }
  int next_rank = 0, last_global_rank = -1;
  for (const auto& [start, peer] : told) {
    if (start.num_nodes != first.num_nodes || start.world_size != first.world_size) {
      return wrong("its nodes are told different sizes");
    }
    if (start.restart_count + 1 != static_cast<int>(round)) {
      return wrong("restart count ", start.restart_count);
    }
    if (start.master_node_addr != first.master_node_addr ||
        start.master_port != first.master_port) {
      return wrong("two masters: ", first.master_node_addr, " and ", start.master_node_addr);
    }
    if (start.node_rank < 0 || start.node_rank >= start.num_nodes) {
      return wrong("node rank ", start.node_rank, " of ", start.num_nodes);
    }
    if (start.node_rank < next_rank) return wrong("node rank ", start.node_rank, " is given twice");
    if (start.node_rank > next_rank) return wrong("node rank ", next_rank, " is given to nobody");
    ++next_rank;
    const bool fits = asked.num_workers > 0
                          ? start.first_global_rank == start.node_rank * asked.num_workers
                          : start.first_global_rank > last_global_rank;
    if (!fits || (start.node_rank == 0 && start.first_global_rank != 0)) {
      return wrong("node rank ", start.node_rank, " begins with rank ", start.first_global_rank);
    }
    last_global_rank = start.first_global_rank;
  }
  if (next_rank < first.num_nodes) return wrong("node rank ", next_rank, " is given to nobody");
  const bool is_whole = asked.num_workers > 0
                            ? first.world_size == first.num_nodes * asked.num_workers
                            : first.world_size > last_global_rank;
  if (!is_whole) wrong("it has ", first.world_size, " workers");
}

void TableCheck::check_roles(std::vector<Told> told) {
  std::map<std::string, int> next_rank, sizes;
  for (std::size_t i = 0; i < told.size(); ++i) {
    const auto& [start, peer] = told[i];
    const int end = i + 1 < told.size() ? told[i + 1].start.first_global_rank : start.world_size;
    if (start.first_role_rank != next_rank[peer->role]) violated("a rank in a role is wrong");
    next_rank[peer->role] += end - start.first_global_rank;
    sizes.emplace(peer->role, start.role_world_size);
  }
  for (const auto& [role, size] : sizes) {
    if (size != next_rank[role]) violated("the size of a role is wrong");
  }
}

// ---- ends ----

void TableCheck::check_ends(const std::vector<JobStatus>& jobs, const Actions& actions) {
  const auto verdict_of = [&](const std::string& run_id) -> const JobEnd* {
    const auto job = std::find_if(jobs.begin(), jobs.end(),
                                  [&](const JobStatus& each) { return each.run_id == run_id; });
    const bool is_alone = num_jobs(jobs, run_id) == 1 && shared_ids_.count(run_id) == 0;
    const bool is_known = job != jobs.end() && job->verdict && is_alone;
    return is_known ? &*job->verdict : nullptr;
  };
  each_sent<JobEnd>(actions, [&](ConnectionId connection, const JobEnd& end) {
    const auto peer = peers_.find(connection);
    if (peer == peers_.end() || peer->second.leaves) return;
    const JobEnd* verdict = verdict_of(peer->second.run_id);
    if (verdict == nullptr || verdict->exit_code == end.exit_code) return;
    violated(concat("two ends: exit code ", verdict->exit_code, " (", verdict->reason,
                    ") and exit code ", end.exit_code, " (", end.reason, ")"));
  });
  for (const JobStatus& job : jobs) {
    const JobEnd* verdict = verdict_of(job.run_id);
    if (verdict == nullptr) continue;
    const auto first = ends_.try_emplace(job.run_id, verdict->exit_code).first;
    if (first->second != verdict->exit_code) violated("the verdict on a job has changed");
  }
  std::erase_if(ends_, [&](const auto& end) { return verdict_of(end.first) == nullptr; });
  shared_ids_.clear();
  for (const JobStatus& job : jobs) {
    if (num_jobs(jobs, job.run_id) > 1) shared_ids_.insert(job.run_id);
  }
  std::erase_if(last_rounds_, [&](const auto& last) { return !any_lives(jobs, last.first); });
}

// ---- the output of ranks ----

void TableCheck::check_tails(const Event& event, const Actions& actions) {
  const auto* message = variants::get_if<event::Message>(&event);
  const auto* told = message ? variants::get_if<Tail>(&message->envelope.message) : nullptr;
  int num_said = 0;
  for (const Action& action : actions) {
    const auto* said = variants::get_if<action::TailSaid>(&action);
    if (said == nullptr) continue;
    ++num_said;
    if (told == nullptr || said->connection != message->connection ||
        said->tail.request != told->request) {
      return violated("output is told that nobody said, or as another one's");
    }
    std::size_t num_bytes = 0;
    for (const std::string& line : said->tail.lines) num_bytes += line.size();
    if (said->tail.lines.size() > kMaxTailLines || num_bytes > kMaxTailBytes) {
      return violated("more output is told than there may be");
    }
  }
  if (num_said > 1) violated("output is told twice");
}

std::optional<std::string> TableCheck::asked_for_tail(const std::string& run_id,
                                                      std::uint64_t request, const TailRoute& route,
                                                      const Actions& actions) const {
  if (!route.connection) {
    if (!route.why_not.empty() && actions.empty()) return std::nullopt;
    return "nobody is asked, without a reason";
  }
  const auto* send =
      actions.size() == 1 ? variants::get_if<action::Send>(&actions.front()) : nullptr;
  const auto* wanted = send ? variants::get_if<TailWanted>(&send->envelope.message) : nullptr;
  if (wanted == nullptr || send->connection != *route.connection || send->envelope.seq != 0) {
    return "a question is no message of its own";
  }
  const auto found = peers_.find(*route.connection);
  if (found == peers_.end() || found->second.run_id != run_id || found->second.is_old) {
    return "one is asked who isn't there, or can't answer";
  }
  if (wanted->request != request || wanted->round != live_round(run_id)) {
    return "a question is about another round";
  }
  return std::nullopt;
}

// ---- jobs ----

// A failure that turns out not to be the first one excludes nobody. That is known before the round
// is stopped, or never.
void TableCheck::take_back_exclusions(const std::vector<JobStatus>& jobs) {
  for (const JobStatus& job : jobs) {
    if (stopping_.count(job.run_id) == 0) continue;
    std::erase_if(excluded_[job.run_id],
                  [&](const std::string& key) { return job.excluded.count(key) == 0; });
  }
}

void TableCheck::check_jobs(const std::vector<JobStatus>& jobs, Clock::time_point now) {
  std::erase_if(excluded_, [&](const auto& entry) {
    // The exclusion is forgotten: a later job of this id knows nothing of it.
    return std::none_of(jobs.begin(), jobs.end(),
                        [&](const JobStatus& job) { return job.run_id == entry.first; });
  });
  stopping_.clear();
  for (const JobStatus& job : jobs) {
    if (job.phase == "stopping") stopping_.insert(job.run_id);
    check_budgets(job);
    check_costs(job, now);
    for (const auto& [key, why] : job.excluded) {
      if (!job.verdict) excluded_[job.run_id].insert(key);
    }
    if (job.verdict) excluded_.erase(job.run_id);  // a later job of this id knows nothing of it
  }
}

void TableCheck::check_budgets(const JobStatus& job) {
  if (job.failures > job.settings.max_restarts + 1) violated("the restart budget was exceeded");
  if (job.phase != "running") {
    if (!job.preempting.empty()) violated("a preemption is pending without a live round");
    return;
  }
  const auto wrong = [&](const auto&... what) {
    violated(concat("round ", job.round, ": it runs after ", what...));
  };
  const auto asked = asked_.find(job.run_id);
  const JobSettings& settings = job.settings;
  int max_restarts = settings.max_restarts, max_losses = settings.max_node_losses;
  if (asked != asked_.end()) {
    max_restarts = std::min(max_restarts, asked->second.max_restarts);
    max_losses = std::min(max_losses, asked->second.max_node_losses);
  }
  if (job.failures > max_restarts) {
    wrong(job.failures, " failures; allowed are ", max_restarts, " restarts");
  }
  if (job.node_losses > max_losses) {
    wrong(job.node_losses, " node losses; allowed are ", max_losses);
  }
  if (job.preemptions > settings.max_preemptions) {
    wrong(job.preemptions, " preemptions; allowed are ", settings.max_preemptions);
  }
  const int idle_limit = settings.no_progress_restarts;
  if (idle_limit > 0 && job.idle_rounds >= idle_limit) {
    wrong(job.idle_rounds, " rounds without progress; allowed are fewer than ", idle_limit);
  }
}

// One round costs at most one node loss. No second of it is in two phases.
void TableCheck::check_costs(const JobStatus& job, Clock::time_point now) {
  if (job.node_losses > static_cast<int>(job.round)) {
    violated(concat("rounds: ", job.round, ", but node losses: ", job.node_losses));
  }
  double sum = 0;
  for (const RoundRecord& record : job.rounds) {
    const PhaseSeconds& s = record.seconds;
    for (const double phase : {s.rendezvous, s.warming, s.spawn, s.communicators, s.first_step,
                               s.running, s.redone, s.detect, s.stop, s.delay}) {
      if (phase < -1e-6) violated("a phase of a round lasted for less than no time");
    }
    sum += s.running + s.lost();
  }
  const double elapsed = std::chrono::duration<double>(now - *began_).count();
  if (sum > elapsed + 1e-6) violated(concat("phases of ", sum, " s in ", elapsed, " s"));
}

// ---- facts that must not change ----

std::optional<std::string> TableCheck::waits(const JobTable& table,
                                             std::optional<Clock::time_point> deadline) {
  if (table.idle() || deadline) return std::nullopt;
  return "the rendezvous waits without a deadline";
}

std::string TableCheck::fingerprint(const JobTable& table) {
  std::string text;
  for (const JobStatus& job : table.status()) {
    text += concat(job.run_id, ' ', job.phase, ' ', job.round, ' ', job.failures, ' ',
                   job.node_losses, ' ', job.preemptions, ' ', job.preempting, ' ', job.idle_rounds,
                   ' ', job.excluded.size(), ' ', job.hang ? job.hang->text : "", ' ',
                   job.verdict ? job.verdict->exit_code : -1, ' ');
    for (const std::string& straggler : job.stragglers) text += straggler;
    for (const NodeStatus& node : job.nodes) {
      text += concat(node.host, node.phase, node.node_rank.value_or(-1), node.connected ? '+' : '-',
                     ' ');
    }
    for (const RoundRecord& round : job.rounds) text += concat(round.seconds.first_step, ' ');
  }
  return text;
}

std::optional<std::string> TableCheck::ignored(const std::string& before, const JobTable& table,
                                               const Actions& actions, bool may_close) {
  // The agent may confirm the end.
  if (before.find(" ended ") != std::string::npos) return std::nullopt;
  for (const Action& each : actions) {
    if (may_close && variants::holds_alternative<action::Close>(each)) return std::nullopt;
  }
  for (const Action& each : actions) {
    // A rank's output only concerns those who ask for it, if anybody does, not the job.
    if (!variants::holds_alternative<action::Log>(each) &&
        !variants::holds_alternative<action::TailSaid>(each)) {
      return "the rendezvous acted on it";
    }
  }
  if (fingerprint(table) != before) return "it changed the job";
  return std::nullopt;
}

std::string TableCheck::kept_text(const JobTable& table, std::chrono::milliseconds keep_finished,
                                  Clock::time_point now) {
  std::string text;
  for (const JobStatus& job : table.status()) {
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
  for (const FinishedJob& job : table.finished().all()) {
    if (job.ended + keep_finished <= now) continue;  // it is due, and no Tick has come yet
    text +=
        concat(job.run_id, ' ', job.exit_code, ' ', job.reason, ' ', job.rounds, ' ', job.failures,
               ' ', job.num_nodes, ' ', job.ended.time_since_epoch().count(), '\n');
  }
  return text;
}

}  // namespace ddprun::membership::testing
