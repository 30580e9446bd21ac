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

// Of an agent process, whatever session it has.
std::string agent_name(const Join& join) { return concat(join.run_id, '\0', join.instance); }

NodeStatus node_status(const Node& node) {
  NodeStatus status;
  status.host = node.join.host;
  status.addr = node.facts.peer_addr;
  status.node_rank = node.node_rank;
  status.num_workers = node.join.num_workers;
  return status;
}

}  // namespace

HeldJobs::HeldJobs(const Terms& terms, journal::Rows& rows, Clock::duration clock_shift,
                   TimePoint now)
    : own_(terms.own) {
  DDPRUN_CHECK(!own_.empty() && !terms.bases.empty());
  const auto before = jobs_before(terms);
  for (auto& [number, of_job] : take_jobs(rows)) {
    last_number_ = std::max(last_number_, number);
    std::optional<JobState> state;
    try {
      const journal::Rows its_rows = rows_by_job(of_job)[number];
      state = read_job(its_rows, clock_shift);
      const HeldMark mark = mark_of(terms, its_rows, *state, rows_at(before, number));
      take(number, std::move(of_job), mark, *state, now);
    } catch (const std::exception& error) {  // of JSON, too
      if (!state) {
        first_.restored.merge(of_job);  // the table says that it is lost
        continue;
      }
      log(first_, LogLevel::kError,
          concat("job ", state->run_id, " is lost: who may go on with it can't be read: ",
                 error.what(), "; its agents are refused and end with 75"));
      for (const auto& [key, content] : of_job) first_.changes.push_back({key, std::nullopt});
    }
  }
}

void HeldJobs::take(std::uint64_t number, journal::Rows rows, const HeldMark& mark,
                    const JobState& state, TimePoint now) {
  HeldJob job{.run_id = state.run_id,
              .settings = state.settings,
              .round = state.round,
              .bases = mark.bases,
              .ballot = ballot_of(mark),
              .rows = std::move(rows)};
  job.time_limit = state.timeouts.rendezvous_lost + state.timeouts.stop_grace;
  job.until = now + job.time_limit;
  for (const auto& [id, node] : state.nodes) {
    const MemberName name{number, job.members.size()};
    by_session_[node.session] = name;
    by_agent_[agent_name(node.join)] = name;
    job.members.push_back(
        {.session = node.session, .name = describe(node), .status = node_status(node)});
  }
  HeldJob& held = jobs_.emplace(number, std::move(job)).first->second;
  if (held.ballot.is_won()) return win(number, held, first_);
  std::string row = held_row(mark);
  held.rows[held_key(number)] = row;
  first_.changes.push_back({held_key(number), std::move(row)});
  log(first_, LogLevel::kInfo,
      concat("job ", held.run_id, " is held until enough of its ", held.ballot.count().voters,
             " nodes follow ", shown_term(own_), " after ", shown_term(held.bases.front())));
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

HeldJobs::Outcome HeldJobs::add_bases(const std::vector<std::string>& terms) {
  for (auto& [number, job] : jobs_) {
    for (const std::string& term : terms) {
      if (std::ranges::count(job.bases, term) == 0) job.bases.push_back(term);
    }
  }
  return {};
}

bool HeldJobs::has_won_any() const {
  return std::ranges::any_of(jobs_, [](const auto& entry) {
    return entry.second.state == State::kWon && entry.second.ballot.count().voters > 0;
  });
}

// ---- Joins ----

std::optional<HeldJobs::MemberName> HeldJobs::member_of(const Join& join) const {
  const auto& names = join.session.empty() ? by_agent_ : by_session_;
  const auto found = names.find(join.session.empty() ? agent_name(join) : join.session);
  return found == names.end() ? std::nullopt : std::optional(found->second);
}

// A new agent waits with a job of its name, or with one that has its port.
std::optional<std::uint64_t> HeldJobs::job_for_new(const Join& join) const {
  std::optional<std::uint64_t> with_port;
  for (const auto& [number, job] : jobs_) {
    if (!job.until) continue;
    if (job.run_id == join.run_id) return number;
    const bool has_port = job.state == State::kHeld && is_static(job.settings);
    if (has_port && is_static(join.settings)) with_port = number;
  }
  return with_port;
}

void HeldJobs::join(const event::Message& message, const Join& join, TimePoint now, Outcome& out) {
  if (!common_version(join)) return;  // the table says so
  std::optional<std::size_t> member;
  std::optional<std::uint64_t> number;
  if (const auto name = member_of(join)) {
    number = name->job;
    member = name->index;
  } else if (join.session.empty()) {
    number = job_for_new(join);
  }
  if (!number) return;
  const HeldJob& job = jobs_.at(*number);
  const bool is_asked = member && !job.members[*member].granted;
  if (job.state == State::kWon && !is_asked) return;
  out.passes = false;
  if (job.state == State::kStale || (is_asked && job.members[*member].denied)) {
    out.actions.emplace_back(action::Close{message.connection});
    return;
  }
  const Parked& parked = park(message, join, *number, member, now, out);
  if (is_asked) ask(parked, out);
}

void HeldJobs::ask(const Parked& parked, Outcome& out) const {
  RendezvousEnvelope envelope;
  envelope.message = Claim{own_, jobs_.at(parked.job).bases[parked.asked]};
  out.actions.emplace_back(action::Send{parked.join.connection, std::move(envelope)});
}

const HeldJobs::Parked& HeldJobs::park(const event::Message& message, const Join& join,
                                       std::uint64_t job, std::optional<std::size_t> member,
                                       TimePoint now, Outcome& out) {
  const std::string agent = agent_name(join);
  const auto earlier = parked_agents_.find(agent);
  if (earlier != parked_agents_.end()) close(earlier->second, out);
  const Ticket ticket = next_ticket_++;
  parked_agents_[agent] = ticket;
  by_connection_[message.connection] = ticket;
  return parked_.emplace(ticket, Parked{message, agent, job, member, now + kParkLimit})
      .first->second;
}

event::Message HeldJobs::unpark(Ticket ticket) {
  const auto node = parked_.extract(ticket);
  Parked& parked = node.mapped();
  parked_agents_.erase(parked.agent);
  by_connection_.erase(parked.join.connection);
  return std::move(parked.join);
}

void HeldJobs::close(Ticket ticket, Outcome& out) {
  out.actions.emplace_back(action::Close{unpark(ticket).connection});
}

std::vector<HeldJobs::Ticket> HeldJobs::parked_of(std::uint64_t job) const {
  std::vector<Ticket> tickets;
  for (const auto& [ticket, parked] : parked_) {
    if (parked.job == job) tickets.push_back(ticket);
  }
  return tickets;
}

// ---- votes ----

// A node that was away for a whole term still follows the one before that, and may leave it for
// this one.
bool HeldJobs::may_follow_yet(Parked& parked, const Vote& vote) const {
  const std::vector<std::string>& bases = jobs_.at(parked.job).bases;
  const auto older = bases.begin() + static_cast<std::ptrdiff_t>(parked.asked) + 1;
  const auto found = std::find(older, bases.end(), vote.follows);
  if (found == bases.end()) return false;
  parked.asked = static_cast<std::size_t>(found - bases.begin());
  return true;
}

void HeldJobs::vote(ConnectionId connection, const Vote& vote, Outcome& out) {
  const auto found = by_connection_.find(connection);
  if (found == by_connection_.end() || vote.term != own_) return;
  const Ticket ticket = found->second;
  Parked& parked = parked_.at(ticket);
  if (!parked.member) return;  // it was not asked
  HeldJob& job = jobs_.at(parked.job);
  Member& member = job.members[*parked.member];
  if (!vote.granted) {
    if (may_follow_yet(parked, vote)) return ask(parked, out);
    close(ticket, out);
    return denied(job, member, vote, out);
  }
  member.granted = true;
  job.ballot.grant(member.session);
  if (job.state == State::kWon) {
    out.joins.push_back(unpark(ticket));
  } else if (job.state == State::kHeld && job.ballot.is_won()) {
    win(parked.job, job, out);
  }
}

void HeldJobs::denied(HeldJob& job, Member& member, const Vote& vote, Outcome& out) {
  member.denied = true;
  job.ballot.deny(member.session);
  const std::string who =
      concat("job ", job.run_id, ": ", member.name, " follows ", shown_term(vote.follows),
             ", not this rendezvous' ", shown_term(own_));
  if (job.state == State::kHeld && job.ballot.is_lost()) {
    job.state = State::kStale;
    log(out, LogLevel::kError,
        concat(who, ": another rendezvous goes on with the job, its agents are sent there"));
    const std::uint64_t number = by_session_.at(member.session).job;
    for (const Ticket ticket : parked_of(number)) close(ticket, out);
  } else if (!std::exchange(job.said_denied, true)) {
    log(out, LogLevel::kWarning, who);
  }
}

void HeldJobs::win(std::uint64_t number, HeldJob& job, Outcome& out) {
  job.state = State::kWon;
  job.until.reset();
  const auto [granted, voters] = job.ballot.count();
  if (voters > 0) {
    log(out, LogLevel::kInfo,
        concat("job ", job.run_id, " is won: ", granted, " of its ", voters, " nodes follow ",
               shown_term(own_)));
  }
  erase_mark(number, job, out);
  out.restored.merge(job.rows);
  job.rows.clear();
  for (const Ticket ticket : parked_of(number)) {
    const auto& member = parked_.at(ticket).member;
    if (!member || job.members[*member].granted) out.joins.push_back(unpark(ticket));
  }
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
    if (is_due) erase_rows(job, out);
    if (is_due && job.state == State::kHeld) {
      give_up(number, job, out);
      entry = jobs_.erase(entry);
      continue;
    }
    if (is_due) job.until.reset();  // those that it has may come here for ever
    ++entry;
  }
}

void HeldJobs::give_up(std::uint64_t number, HeldJob& job, Outcome& out) {
  const auto [granted, voters] = job.ballot.count();
  log(out, LogLevel::kError,
      concat(
          "job ", job.run_id, " is given up: ", granted, " of its ", voters, " nodes came within ",
          std::chrono::duration_cast<std::chrono::seconds>(job.time_limit).count(), " s to follow ",
          shown_term(own_), "; those that come now are refused and end with 75"));
  std::erase_if(by_session_, [&](const auto& entry) { return entry.second.job == number; });
  std::erase_if(by_agent_, [&](const auto& entry) { return entry.second.job == number; });
  for (const Ticket ticket : parked_of(number)) out.joins.push_back(unpark(ticket));
}

void HeldJobs::erase_rows(HeldJob& job, Outcome& out) {
  for (const auto& [key, content] : job.rows) out.changes.push_back({key, std::nullopt});
  job.rows.clear();
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

void HeldJobs::log(Outcome& out, LogLevel level, std::string text) {
  out.actions.emplace_back(action::Log{level, std::move(text)});
}

}  // namespace ddprun::membership
