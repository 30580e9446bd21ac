// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/flight_recorder.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ddprun {
namespace {

std::int64_t now_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

bool is_message(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv;
}

}  // namespace

const char* to_string(OperationState state) {
  constexpr std::array kNames{"scheduled", "started", "completed", "failed"};
  const auto at = static_cast<std::size_t>(state);
  return at < kNames.size() ? kNames[at] : "unknown";
}

FlightRecorder::FlightRecorder(std::size_t capacity, OperationSlot* slots)
    : slots_(slots), ring_(capacity) {}

std::uint32_t FlightRecorder::add_communicator(std::string backend, int size) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back({{std::move(backend), size}});
  const auto number = static_cast<std::uint32_t>(communicators_.size() - 1);
  publish(number);
  return number;
}

FlightRecorder::Entry* FlightRecorder::find(Ticket ticket) {
  if (ticket == 0 || ring_.empty()) return nullptr;
  Entry& entry = ring_[(ticket - 1) % ring_.size()];
  return entry.number == ticket ? &entry : nullptr;
}

FlightRecorder::Ticket FlightRecorder::schedule(const OperationFacts& facts) {
  if (ring_.empty()) return 0;
  const std::int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  const Ticket ticket = ++last_;
  ring_[(ticket - 1) % ring_.size()] = {ticket, facts, OperationState::kScheduled, now, 0, 0};
  return ticket;
}

void FlightRecorder::start(Ticket ticket) {
  if (ticket == 0) return;
  const std::int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  Entry* entry = find(ticket);
  if (entry == nullptr) return;
  entry->state = OperationState::kStarted;
  entry->started_ns = now;
  const std::uint32_t number = entry->facts.communicator;
  if (number >= communicators_.size() || communicators_[number].open != 0) return;
  communicators_[number].open = ticket;
  publish(number);
}

void FlightRecorder::end(Ticket ticket, OperationState state, std::chrono::nanoseconds on_device) {
  if (ticket == 0) return;
  const std::int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  Entry* entry = find(ticket);
  if (entry != nullptr) {
    entry->state = state;
    entry->ended_ns = now;
    entry->on_device = on_device;
  }
  for (std::uint32_t number = 0; number < communicators_.size(); ++number) {
    Tracked& communicator = communicators_[number];
    const bool is_its = entry != nullptr && entry->facts.communicator == number;
    if (is_its && !is_message(entry->facts.kind)) communicator.done = entry->facts.sequence;
    const bool was_open = communicator.open == ticket;
    if (was_open) {
      communicator.open = 0;
      const Ticket oldest = last_ >= ring_.size() ? last_ - ring_.size() + 1 : 1;
      for (Ticket next = std::max(ticket + 1, oldest); next <= last_; ++next) {
        const Entry* later = find(next);
        const bool is_open = later != nullptr && later->state == OperationState::kStarted &&
                             later->facts.communicator == number;
        if (!is_open) continue;
        communicator.open = next;
        break;
      }
    }
    if (was_open || is_its) publish(number);
  }
}

void FlightRecorder::publish() {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t number = 0; number < communicators_.size(); ++number) publish(number);
}

// Readers may see a mixture of two operations, but not of one that hangs: its slot doesn't change.
void FlightRecorder::publish(std::uint32_t number) {
  if (slots_ == nullptr || ring_.empty() || number >= kOperationSlots) return;
  const Tracked& communicator = communicators_[number];
  OperationSlot& slot = slots_[number];
  constexpr auto kRelaxed = std::memory_order_relaxed;
  slot.size.store(static_cast<std::uint64_t>(communicator.name.size), kRelaxed);
  slot.done.store(communicator.done, kRelaxed);
  const Entry* open = find(communicator.open);
  if (open != nullptr) {
    slot.facts.store(pack_facts(open->facts), kRelaxed);
    slot.count.store(open->facts.count, kRelaxed);
    slot.begun.store(static_cast<std::uint64_t>(open->started_ns), kRelaxed);
  }
  slot.sequence.store(open != nullptr ? open->facts.sequence : 0, std::memory_order_release);
}

std::vector<FlightRecorder::Entry> FlightRecorder::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> entries;
  const std::uint64_t held = std::min<std::uint64_t>(last_, ring_.size());
  entries.reserve(held);
  for (Ticket ticket = last_ - held + 1; ticket <= last_ && held > 0; ++ticket) {
    entries.push_back(ring_[(ticket - 1) % ring_.size()]);
  }
  return entries;
}

std::vector<FlightRecorder::CommunicatorName> FlightRecorder::communicators() const {
  const std::lock_guard lock(mutex_);
  std::vector<CommunicatorName> names;
  for (const Tracked& each : communicators_) names.push_back(each.name);
  return names;
}

}  // namespace ddprun
