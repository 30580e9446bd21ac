// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/membership/world/late_messages.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

namespace ddprun::membership::testing {

AgentMessage late_agent_message(std::uint64_t draw, std::uint64_t round) {
  RankReport stalled;
  stalled.global_rank = stalled.local_rank = 1;
  stalled.phase = "train";
  stalled.quiet = stalled.limit = std::chrono::milliseconds(5'000);
  switch (draw % 10) {
    case 0:
      return WorkersRunning{round};
    case 1:
      return WorkerFailed{round, {}};
    case 2:
      return WorkersSucceeded{round};
    case 3:
      return FirstStep{round, 1};
    case 4:
      return WorkersStopped{round, 1, 0};
    case 5:
      return WorkerRequest{round, WorkerRequest::Kind::kStopJob, 0, "a late request", 9};
    case 6:
      return WorkersLeft{round};
    case 7:
      return Stalled{round, stalled};
    case 8:
      return Inspection{round, 1, {stalled}};
    default:
      return StepTimes{round, {{0, std::chrono::seconds(1), std::chrono::seconds(1)}}};
  }
}

RendezvousMessage late_rendezvous_message(std::uint64_t draw, std::uint64_t round) {
  StartRound start;
  start.round = round;
  switch (draw % 5) {
    case 0:
      return start;
    case 1:
      return StopRound{round, "a late message"};
    case 2:
      return Preempt{round, "a late message", std::chrono::milliseconds(1'000)};
    case 3:
      return Inspect{round, 1};
    default:
      return HangVerdict{round, "a late message", {}};
  }
}

Tail late_tail(std::uint64_t draw) {
  return {draw % 4, std::vector<std::string>(kMaxTailLines + 1, "a late line"), ""};
}

TailWanted late_tail_wanted(std::uint64_t draw, std::uint64_t round) {
  return {round, draw % 4, static_cast<int>(draw % 100)};
}

std::vector<AgentEnvelope> WireNumbers::out(AgentEnvelope& envelope) {
  heard_ = std::max(heard_, envelope.ack);
  if (envelope.seq == 0) return {};
  own_sent_ = std::max(own_sent_, envelope.seq);
  for (const Added& each : added_) {
    if (each.wire <= envelope.seq) ++envelope.seq;
  }
  return due_before(envelope.seq);
}

void WireNumbers::in(RendezvousEnvelope& envelope) {
  acknowledged_ = std::max(acknowledged_, envelope.ack);
  const auto num_added = std::count_if(
      added_.begin(), added_.end(), [&](const Added& each) { return each.wire <= envelope.ack; });
  envelope.ack -= static_cast<std::uint64_t>(num_added);
}

void WireNumbers::welcomed() {
  next_again_ = 0;
  while (next_again_ < added_.size() && added_[next_again_].wire <= acknowledged_) ++next_again_;
}

std::vector<AgentEnvelope> WireNumbers::rest() { return due_before(UINT64_MAX); }

std::vector<AgentEnvelope> WireNumbers::due_before(std::uint64_t wire) {
  std::vector<AgentEnvelope> due;
  for (; next_again_ < added_.size() && added_[next_again_].wire < wire; ++next_again_) {
    due.push_back({added_[next_again_].wire, heard_, added_[next_again_].message});
  }
  return due;
}

AgentEnvelope WireNumbers::put_in(AgentMessage message) {
  if (may_be_unnumbered(message)) return {0, heard_, std::move(message)};
  added_.push_back({own_sent_ + added_.size() + 1, message});
  next_again_ = added_.size();
  return {added_.back().wire, heard_, std::move(message)};
}

}  // namespace ddprun::membership::testing
