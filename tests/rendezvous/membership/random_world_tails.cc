// SPDX-License-Identifier: Apache-2.0
// Who looks at what ranks of a RandomWorld print, at any moment; and agents that answer late,
// twice, never, or what they were not asked.
#include <algorithm>
#include <utility>

#include "rendezvous/membership/codec.h"
#include "tests/rendezvous/membership/random_world.h"

namespace ddprun::membership::testing {

void RandomWorld::look_at_ranks() {
  if (violation_) return;
  if (chance(10)) ask_for_tail();
  if (chance(10) && !agents_.empty()) {
    Agent& agent = agents_[random(agents_.size())];
    if (agent.connection) tell_tail(agent);
  }
}

// A question changes nothing, and goes to one who can answer it, without a number; or it is said
// why it doesn't.
void RandomWorld::ask_for_tail() {
  const std::string run_id = chance(90) ? "job" : chance(50) ? "other" : "nobody's";
  const std::uint64_t request = ++num_requests_;
  const std::string before = status_text();
  Actions actions;
  const TailRoute route =
      table_->ask_for_tail(run_id, static_cast<int>(random(12)), request, actions);
  if (options_.percent_of_restarts > 0 && !table_->take_changes().empty()) {
    violated("a question for a rank's output is kept");
  }
  if (status_text() != before) violated("a question changed the job");
  if (!route.connection) {
    if (route.why_not.empty() || !actions.empty()) violated("nobody is asked, without a reason");
    return;
  }
  const auto* send = actions.size() == 1 ? std::get_if<action::Send>(&actions.front()) : nullptr;
  const auto* wanted = send ? std::get_if<TailWanted>(&send->envelope.message) : nullptr;
  const auto found = by_connection_.find(*route.connection);
  if (wanted == nullptr || send->connection != *route.connection || send->envelope.seq != 0) {
    return violated("a question is no message of its own");
  }
  if (found == by_connection_.end() || found->second->run_id != run_id || found->second->is_old) {
    return violated("one is asked who isn't there, or can't answer");
  }
  if (wanted->request != request || wanted->round != round_of_job_[run_id]) {
    violated("a question is about another round");
  }
  check_live_round(*found->second, wanted->round, "tail_wanted");
  receive(*found->second, send->envelope);
  found->second->requests.push_back(request);
}

void RandomWorld::tell_tail(Agent& agent) {
  Tail tail{random(num_requests_ + 2), {"a line"}, ""};  // anybody's
  if (!agent.requests.empty() && chance(70)) {
    tail.request = agent.requests[random(agent.requests.size())];
  }
  const bool is_long = chance(5);
  if (is_long) tail.lines.assign(2 * kMaxTailLines, std::string(2'000, 'x'));
  for (std::uint64_t times = 1 + random(2); times > 0 && agent.connection; --times) {
    AgentEnvelope envelope =
        chance(95) ? agent.channel.plain(tail) : agent.channel.number(Tail(tail));
    if (is_long) envelope = decode_agent_message(encode(envelope));  // what is left on the wire
    step(event::Message{*agent.connection, std::move(envelope), {}});
  }
}

void RandomWorld::check_tail(const event::Message& message, const Actions& actions) {
  const auto* told = std::get_if<Tail>(&message.envelope.message);
  int num_said = 0;
  for (const Action& action : actions) {
    const auto* said = std::get_if<action::TailSaid>(&action);
    if (said == nullptr) continue;
    ++num_said;
    if (told == nullptr || said->connection != message.connection ||
        said->tail.request != told->request) {
      return violated("output is told that nobody said, or as another one's");
    }
    std::size_t num_bytes = 0;
    for (const std::string& line : said->tail.lines) num_bytes += line.size();
    if (said->tail.lines.size() > kMaxTailLines || num_bytes > kMaxTailBytes) {
      violated("more output is told than there may be");
    }
  }
  if (num_said > 1) violated("output is told twice");
  num_tails_ += static_cast<std::uint64_t>(num_said);
}

}  // namespace ddprun::membership::testing
