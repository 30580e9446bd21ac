// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/held_jobs.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "rendezvous/membership/held_claims.h"
#include "rendezvous/membership/job_rows.h"
#include "rendezvous/membership/term_register.h"

namespace ddprun::membership {
namespace {

// nullopt: the row is no job's.
std::optional<std::uint64_t> job_of_row(std::string_view key) {
  const std::size_t begin = key.find('/') + 1;
  const std::size_t end = key.find('/', begin);
  if (begin == 0 || end == key.npos) return std::nullopt;
  std::uint64_t number = 0;
  const auto [stop, error] = std::from_chars(key.data() + begin, key.data() + end, number);
  if (error != std::errc{} || stop != key.data() + end) return std::nullopt;
  return number;
}

std::map<std::uint64_t, journal::Rows> take_jobs(journal::Rows& rows) {
  std::map<std::uint64_t, journal::Rows> jobs;
  for (auto row = rows.begin(); row != rows.end();) {
    const auto next = std::next(row);
    if (const auto number = job_of_row(row->first)) jobs[*number].insert(rows.extract(row));
    row = next;
  }
  return jobs;
}

NodeStatus node_status(const Node& node) {
  NodeStatus status;
  status.host = node.join.host;
  status.addr = node.facts.peer_addr;
  status.node_rank = node.node_rank;
  status.num_workers = node.join.num_workers;
  return status;
}

}  // namespace

HeldJobs::HeldJobs(const Terms& terms, journal::Rows& rows, const RowsClock& clock, TimePoint now)
    : own_(terms.own) {
  DDPRUN_CHECK(!own_.empty());
  const auto before = jobs_before(terms);
  for (auto& [number, of_job] : take_jobs(rows)) {
    last_number_ = std::max(last_number_, number);
    std::optional<JobState> state;
    try {
      const journal::Rows its_rows = rows_by_job(of_job)[number];
      state = read_job(its_rows, clock.shift);
      auto mark = mark_of(terms, clock, its_rows, *state, rows_at(before, number));
      if (mark) {
        take(number, std::move(of_job), std::move(*mark), *state, now);
      } else {
        take_unheld(number, std::move(of_job), terms, clock, *state);
      }
    } catch (const std::exception& error) {  // of JSON, too
      if (!state) {
        first_.restored.push_back({std::move(of_job), clock.shift});  // the table says it is lost
        continue;
      }
      log(first_, LogLevel::kError, state->run_id,
          concat("job ", state->run_id, " is lost: who may go on with it can't be read: ",
                 error.what(), "; its agents are refused and end with 75"));
      for (const auto& [key, content] : of_job) first_.changes.push_back({key, std::nullopt});
    }
  }
}

HeldJobs::HeldJob& HeldJobs::add(std::uint64_t number, journal::Rows rows, HeldMark mark,
                                 const JobState& state) {
  Ballot ballot = ballot_of(mark);
  HeldJob job{.run_id = state.run_id,
              .settings = state.settings,
              .round = state.round,
              .mark = std::move(mark),
              .ballot = std::move(ballot),
              .rows = std::move(rows)};
  for (const auto& [id, node] : state.nodes) {
    const MemberName name{number, job.members.size()};
    by_session_[node.session] = name;
    by_agent_[agent_name(node.join)] = name;
    job.members.push_back(
        {.session = node.session, .name = describe(node), .status = node_status(node)});
  }
  return jobs_.emplace(number, std::move(job)).first->second;
}

void HeldJobs::take(std::uint64_t number, journal::Rows rows, HeldMark mark, const JobState& state,
                    TimePoint now) {
  HeldJob& job = add(number, std::move(rows), std::move(mark), state);
  job.time_limit = state.timeouts.rendezvous_lost + state.timeouts.stop_grace;
  job.until = now + job.time_limit;
  if (job.ballot.is_won()) return win(number, job, first_);
  put_mark(number, job, first_);
  log(first_, LogLevel::kInfo, job.run_id,
      concat("job ", job.run_id, " is held until enough of its ", job.ballot.count().voters,
             " nodes follow ", shown_term(own_), " after ", shown_term(job.mark.bases.front())));
}

// It is this rendezvous' own.
void HeldJobs::take_unheld(std::uint64_t number, journal::Rows rows, const Terms& terms,
                           const RowsClock& clock, const JobState& state) {
  HeldMark mark;
  mark.bases = terms.bases;
  const Voters voters = voters_of(state);
  mark.voters.emplace_back(voters.begin(), voters.end());
  HeldJob& job = add(number, {}, std::move(mark), state);
  job.state = State::kWon;
  first_.restored.push_back({std::move(rows), clock.shift});
}

HeldJobs::Outcome HeldJobs::begin() { return std::exchange(first_, {}); }

HeldJobs::Outcome HeldJobs::step(const Event& event, TimePoint now) {
  Outcome out;
  if (const auto* message = std::get_if<event::Message>(&event)) {
    const auto& said = message->envelope.message;
    if (const auto* vote_message = std::get_if<Vote>(&said)) {
      out.passes = false;
      vote(message->connection, *vote_message, out);
    } else if (is_parked(message->connection)) {
      // Its last words may be that it is cut off; it comes again where it can.
      out.passes = false;
      if (!std::holds_alternative<CutOff>(said)) {
        close(by_connection_.at(message->connection), out);
      }
    } else if (const auto* join_message = std::get_if<Join>(&said)) {
      join(*message, *join_message, now, out);
    }
  } else if (const auto* closed = std::get_if<event::Closed>(&event)) {
    const auto found = by_connection_.find(closed->connection);
    if (found != by_connection_.end()) unpark(found->second);
  } else if (std::holds_alternative<event::Tick>(event)) {
    tick(now, out);
  }
  return out;
}

// ---- time ----

void HeldJobs::tick(TimePoint now, Outcome& out) {
  std::vector<Ticket> overdue;
  for (const auto& [ticket, parked] : parked_) {
    if (parked.until > now) break;  // they came in this order
    overdue.push_back(ticket);
  }
  for (const Ticket ticket : overdue) close(ticket, out);
  for (auto entry = jobs_.begin(); entry != jobs_.end();) {
    auto& [number, job] = *entry;
    const bool is_due = job.until && *job.until <= now;
    if (is_due && job.state == State::kHeld) {
      erase_rows(job, out);
      give_up(number, job, out);
      entry = jobs_.erase(entry);
      continue;
    }
    if (is_due) {  // those that it has may come here for ever
      erase_rows(job, out);
      job.until.reset();
      job.rows.clear();
    }
    ++entry;
  }
}

void HeldJobs::give_up(std::uint64_t number, HeldJob& job, Outcome& out) {
  const auto [granted, voters] = job.ballot.count();
  log(out, LogLevel::kError, job.run_id,
      concat(
          "job ", job.run_id, " is given up: ", granted, " of its ", voters, " nodes came within ",
          std::chrono::duration_cast<std::chrono::seconds>(job.time_limit).count(), " s to follow ",
          shown_term(own_), "; those that come now are refused and end with 75"));
  std::erase_if(by_session_, [&](const auto& entry) { return entry.second.job == number; });
  std::erase_if(by_agent_, [&](const auto& entry) { return entry.second.job == number; });
  for (const Ticket ticket : parked_of(number)) out.joins.push_back(unpark(ticket));
}

void HeldJobs::erase_rows(const HeldJob& job, Outcome& out) {
  for (const auto& [key, content] : job.rows) out.changes.push_back({key, std::nullopt});
}

void HeldJobs::put_mark(std::uint64_t number, HeldJob& job, Outcome& out) {
  std::string row = held_row(job.mark);
  job.rows[held_key(number)] = row;
  out.changes.push_back({held_key(number), std::move(row)});
}

void HeldJobs::erase_mark(std::uint64_t number, HeldJob& job, Outcome& out) {
  if (job.rows.erase(held_key(number)) > 0) {
    out.changes.push_back({held_key(number), std::nullopt});
  }
}

std::optional<Clock::time_point> HeldJobs::next_deadline() const {
  std::optional<TimePoint> next;
  if (!parked_.empty()) next = parked_.begin()->second.until;
  for (const auto& [number, job] : jobs_) keep_earlier(next, job.until);
  return next;
}

// ---- status ----

std::size_t HeldJobs::num_held() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      jobs_, [](const auto& entry) { return entry.second.state == State::kHeld; }));
}

bool HeldJobs::has_won_any() const {
  return std::ranges::any_of(jobs_, [](const auto& entry) {
    return entry.second.state == State::kWon && entry.second.ballot.count().voters > 0;
  });
}

std::size_t HeldJobs::num_unsettled() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      jobs_, [](const auto& entry) { return entry.second.until.has_value(); }));
}

std::vector<JobStatus> HeldJobs::status() const {
  std::vector<JobStatus> all;
  for (const auto& [number, job] : jobs_) {
    if (job.state != State::kHeld) continue;
    JobStatus& status = all.emplace_back();
    status.run_id = job.run_id;
    status.phase = "held";
    status.round = job.round;
    status.settings = job.settings;
    const auto [granted, voters] = job.ballot.count();
    status.held = HeldStatus{granted, voters};
    for (const Member& member : job.members) {
      NodeStatus& node = status.nodes.emplace_back(member.status);
      node.phase = member.granted ? "came" : member.denied ? "elsewhere" : "awaited";
    }
    for (const auto& [ticket, parked] : parked_) {
      if (parked.job == number && parked.member) status.nodes[*parked.member].connected = true;
    }
  }
  return all;
}

std::string HeldJobs::agent_name(const Join& join) {
  return concat(join.run_id, '\0', join.instance);
}

void HeldJobs::log(Outcome& out, LogLevel level, const std::string&, std::string text) {
  out.actions.emplace_back(action::Log{level, std::move(text)});
}

}  // namespace ddprun::membership
