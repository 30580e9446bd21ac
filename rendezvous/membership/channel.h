// SPDX-License-Identifier: Apache-2.0
// Numbering, acknowledgement and resending of one direction pair of a session: each numbered
// message takes effect exactly once, whatever connections come and go. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "rendezvous/membership/messages.h"

namespace ddprun::membership {

enum class Arrival {
  kNew,        // in order: act on it
  kDuplicate,  // seen before: ignore it
  kGap,        // something before it is missing: the peer broke the protocol
};

// `Out` is what this side says (AgentMessage or RendezvousMessage).
template <typename Out>
class Channel {
 public:
  // The next numbered message; kept until acknowledged.
  Envelope<Out> number(Out message) {
    unacknowledged_.emplace_back(++sent_, std::move(message));
    return {sent_, received_, unacknowledged_.back().second};
  }

  // A message that may be lost with its connection.
  Envelope<Out> plain(Out message) const { return {0, received_, std::move(message)}; }

  // What arrived from the other side: its number, and what it acknowledges.
  Arrival receive(std::uint64_t seq, std::uint64_t ack) {
    if (ack > sent_) return Arrival::kGap;
    while (!unacknowledged_.empty() && unacknowledged_.front().first <= ack) {
      unacknowledged_.pop_front();
    }
    if (seq == 0) return Arrival::kNew;
    if (seq <= received_) return Arrival::kDuplicate;
    if (seq != received_ + 1) return Arrival::kGap;
    received_ = seq;
    return Arrival::kNew;
  }

  // Calls send(envelope) for everything that the other side has not acknowledged, oldest first.
  template <typename Send>
  void resend(Send&& send) const {
    for (const auto& [seq, message] : unacknowledged_) {
      send(Envelope<Out>{seq, received_, message});
    }
  }

  bool all_acknowledged() const { return unacknowledged_.empty(); }
  // 0: all are acknowledged.
  std::uint64_t oldest_unacknowledged() const {
    return unacknowledged_.empty() ? 0 : unacknowledged_.front().first;
  }
  std::size_t num_unacknowledged() const { return unacknowledged_.size(); }
  // The last number that the other side acknowledged, and the last one that came from it.
  std::uint64_t acknowledged() const {
    return unacknowledged_.empty() ? sent_ : unacknowledged_.front().first - 1;
  }
  std::uint64_t received() const { return received_; }

  // For the journal.
  using JournalledByItself = void;
  template <typename Self, typename Fields>
  static void each_field(Self& channel, Fields& fields) {
    fields("sent", channel.sent_);
    fields("received", channel.received_);
    fields("unacknowledged", channel.unacknowledged_);
  }

 private:
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::deque<std::pair<std::uint64_t, Out>> unacknowledged_;
};

}  // namespace ddprun::membership
