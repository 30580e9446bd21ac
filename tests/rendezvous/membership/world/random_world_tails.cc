// SPDX-License-Identifier: Apache-2.0
// Pages look at the output of a RandomWorld's ranks, at any moment. Agents answer late, twice,
// never, or without a question.
#include <algorithm>
#include <utility>

#include "rendezvous/messages/codec.h"
#include "tests/rendezvous/membership/world/random_world.h"

namespace ddprun::membership::testing {

void RandomWorld::look_at_ranks() {
  if (violation_) return;
  if (chance(10)) ask_for_tail();
  if (chance(10) && !agents_.empty()) {
    Agent& agent = agents_[random(agents_.size())];
    if (agent.connection) tell_tail(agent);
  }
}

void RandomWorld::ask_for_tail() {
  const std::string run_id = chance(90) ? "job" : chance(50) ? "other" : "nobody's";
  const std::uint64_t request = ++num_requests_;
  Actions actions;
  // This isn't drawn: worlds stay as they were.
  const TailKind kind = request % 2 == 0 ? TailKind::kStack : TailKind::kOutput;
  const TailRoute route =
      rendezvous_.ask_for_tail(run_id, static_cast<int>(random(12)), request, kind, actions);
  const auto found = by_connection_.find(route.connection.value_or(0));
  if (found == by_connection_.end()) return;
  for (const Action& each : actions) {
    const auto* send = variants::get_if<action::Send>(&each);
    const auto* wanted = send ? variants::get_if<TailWanted>(&send->envelope.message) : nullptr;
    if (wanted == nullptr) continue;
    check_live_round(*found->second, wanted->round, "tail_wanted");
    receive(*found->second, send->envelope);
    found->second->requests.push_back(request);
  }
}

void RandomWorld::tell_tail(Agent& agent) {
  Tail tail{random(num_requests_ + 2), {"a line"}, ""};  // the number of any question
  if (!agent.requests.empty() && chance(70)) {
    tail.request = agent.requests[random(agent.requests.size())];
  }
  const bool is_long = chance(5);
  if (is_long) tail.lines.assign(2 * kMaxTailLines, std::string(2'000, 'x'));
  for (std::uint64_t times = 1 + random(2); times > 0 && agent.connection; --times) {
    AgentEnvelope envelope =
        chance(95) ? agent.channel.plain(tail) : agent.channel.number(Tail(tail));
    // The part that stays on the wire.
    if (is_long) envelope = decode_agent_message(encode(envelope));
    step(event::Message{*agent.connection, std::move(envelope), {}});
  }
}

}  // namespace ddprun::membership::testing
