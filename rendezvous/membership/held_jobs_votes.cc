// SPDX-License-Identifier: Apache-2.0
// The half of HeldJobs about agents: who waits, who is asked, what their votes mean, and what a
// term that was given up changes.
#include <algorithm>
#include <utility>

#include "rendezvous/membership/held_claims.h"
#include "rendezvous/membership/held_jobs.h"
#include "rendezvous/membership/term_register.h"

namespace ddprun::membership {

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
    const bool is_closed = job.state == State::kStale && !hears_peer_;
    if (!job.until && !is_closed) continue;
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
  const bool is_asked = member && !job.members[*member].granted && !job.mark.bases.empty();
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
  envelope.message = Claim{own_, jobs_.at(parked.job).mark.bases[parked.asked]};
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
  const std::vector<std::string>& bases = jobs_.at(parked.job).mark.bases;
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
    log(out, LogLevel::kError, job.run_id,
        concat(who, ": another rendezvous goes on with the job, its agents are sent there"));
    const std::uint64_t number = by_session_.at(member.session).job;
    for (const Ticket ticket : parked_of(number)) close(ticket, out);
  } else if (!std::exchange(job.said_denied, true)) {
    log(out, LogLevel::kWarning, job.run_id, who);
  }
}

void HeldJobs::win(std::uint64_t number, HeldJob& job, Outcome& out) {
  job.state = State::kWon;
  job.until.reset();
  const auto [granted, voters] = job.ballot.count();
  if (voters > 0) {
    log(out, LogLevel::kInfo, job.run_id,
        concat("job ", job.run_id, " is won: ", granted, " of its ", voters, " nodes follow ",
               shown_term(own_)));
  }
  erase_mark(number, job, out);
  out.restored.push_back({std::exchange(job.rows, {}), job.mark.clock_shift});
  for (const Ticket ticket : parked_of(number)) {
    const auto& member = parked_.at(ticket).member;
    if (!member || job.members[*member].granted) out.joins.push_back(unpark(ticket));
  }
}

// ---- terms that are given up ----

HeldJobs::Outcome HeldJobs::add_bases(const std::vector<std::string>& terms) {
  Outcome out;
  for (auto& [number, job] : jobs_) {
    std::vector<std::string>& bases = job.mark.bases;
    const std::size_t num_before = bases.size();
    for (const std::string& term : terms) {
      if (term != own_ && std::ranges::count(bases, term) == 0) bases.push_back(term);
    }
    if (bases.size() == num_before) continue;
    // Whoever denied may follow one of them by now: it is asked anew when it comes.
    for (Member& member : job.members) member.denied = false;
    job.ballot.forget_denials();
    if (job.state == State::kStale && job.until) {
      job.state = State::kHeld;
      log(out, LogLevel::kInfo, job.run_id,
          concat("job ", job.run_id,
                 " is held again: another rendezvous has given up the term that it had it in"));
    }
    if (job.state == State::kHeld) put_mark(number, job, out);
  }
  return out;
}

}  // namespace ddprun::membership
