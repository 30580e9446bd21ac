// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/inbox.h"

#include <cstring>
#include <utility>

#include "common/error.h"
#include "common/quiet_thread.h"
#include "common/text.h"
#include "worker_sdk/core/host/operation_io.h"

namespace ddprun::host {
namespace {

std::string misfit_text(const Call& call, const MessageFront& front, int sender) {
  return concat(call.text(), ": rank ", sender, " sent ", front.size_bytes, " bytes of ",
                ddprun::to_string(front.dtype), "; sends and receives must match in order");
}

bool fits(const TensorView& buffer, const MessageFront& front) {
  return front.size_bytes == buffer.size_bytes() && front.dtype == buffer.dtype;
}

}  // namespace

Inbox::Inbox(HostNode& node, int rank, int size, std::chrono::milliseconds timeout)
    : node_(node), rank_(rank), timeout_(timeout), lanes_(static_cast<std::size_t>(size)) {}

Inbox::~Inbox() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  node_.stop_receiving();
  changed_.notify_all();
  for (Lane& lane : lanes_) {
    if (lane.thread.joinable()) lane.thread.join();
  }
}

std::shared_ptr<Inbox::Receive> Inbox::post(const TensorView& buffer, int source, int tag,
                                            bool in_background) {
  const auto receive = std::make_shared<Receive>(Receive{buffer, source, tag});
  const int first = source == kAnyRank ? 0 : source;
  const int last = source == kAnyRank ? static_cast<int>(lanes_.size()) - 1 : source;
  if (in_background || source == kAnyRank) {
    for (int peer = first; peer <= last; ++peer) start_thread(peer);
  }
  const std::lock_guard lock(mutex_);
  for (int peer = first; peer <= last; ++peer) {
    if (give_aside(*receive, peer)) return receive;
  }
  open_.push_back(receive);
  changed_.notify_all();
  return receive;
}

void Inbox::wait(Receive& receive, const Call& call) {
  Lock lock(mutex_);
  try {
    while (!receive.is_done) {
      if (receive.source != kAnyRank && !lane_of(receive.source).has_reader) {
        read(lock, receive.source, call);
        continue;
      }
      changed_.wait_until(lock, std::min(call.deadline.at(), Clock::now() + kLook));
      if (receive.is_done) break;
      node_.group().throw_if_failed(call.text());
      if (!call.deadline.expired()) continue;
      const bool any = receive.source == kAnyRank;
      node_.group().throw_timeout(any ? "a message of any rank" : concat("rank ", receive.source),
                                  call, receive.source);
    }
  } catch (...) {
    withdraw(lock, receive);
    throw;
  }
  if (receive.misfit) {
    throw Error(ErrorCode::kProtocol, misfit_text(call, *receive.misfit, receive.sender));
  }
}

void Inbox::withdraw(Receive& receive) {
  Lock lock(mutex_);
  withdraw(lock, receive);
}

void Inbox::withdraw(Lock& lock, Receive& receive) {
  open_.remove_if([&](const auto& open) { return open.get() == &receive; });
  changed_.wait(lock, [&] { return !receive.is_being_filled; });
}

bool Inbox::is_over(const Receive& receive) {
  const std::lock_guard lock(mutex_);
  return receive.is_done || node_.group().failed() ||
         (receive.source != kAnyRank && lane_of(receive.source).broken);
}

bool Inbox::has_open_receives() {
  const std::lock_guard lock(mutex_);
  return !open_.empty();
}

void Inbox::start_thread(int peer) {
  Lane& lane = lane_of(peer);
  if (peer == rank_ || lane.thread.joinable()) return;
  lane.thread = start_quiet_thread("ddprun-recv", [this, peer] { read_in_background(peer); });
}

void Inbox::read_in_background(int peer) {
  Lock lock(mutex_);
  try {
    while (!is_closing_) {
      if (lane_of(peer).has_reader || !waiting_for(peer, {})) {
        changed_.wait(lock);
        continue;
      }
      CallHeader header;
      header.kind = CollectiveKind::kRecv;
      header.root = peer;
      constexpr auto kNever = std::chrono::milliseconds::max();
      read(lock, peer, {.header = header, .deadline = Deadline::after(kNever), .timeout = kNever});
    }
  } catch (...) {
    lane_of(peer).broken = std::current_exception();
    changed_.notify_all();
  }
}

void Inbox::read(Lock& lock, int peer, const Call& call) {
  Lane& lane = lane_of(peer);
  if (lane.broken) std::rethrow_exception(lane.broken);
  lane.has_reader = true;
  lock.unlock();
  try {
    const std::optional<MessageFront> front = node_.await_message(call, peer);
    lock.lock();
    if (front) {
      Call rest = call;
      rest.deadline = Deadline(std::min(call.deadline.at(), Clock::now() + timeout_));
      deliver(lock, peer, *front, rest);
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    lane.has_reader = false;
    changed_.notify_all();
    throw;
  }
  lane.has_reader = false;
  changed_.notify_all();
}

void Inbox::deliver(Lock& lock, int peer, const MessageFront& front, const Call& call) {
  const std::shared_ptr<Receive> receive = waiting_for(peer, front.tag);
  if (!receive) {
    if (!waiting_for(peer, {})) return;  // the receive was withdrawn
    Aside aside{.front = front, .bytes = std::vector<std::byte>(front.size_bytes)};
    lock.unlock();
    node_.take_message(call, aside.bytes.data(), peer);
    lock.lock();
    // A receive may have been posted meanwhile.
    const std::shared_ptr<Receive> late = waiting_for(peer, front.tag);
    if (late) return finish(*late, peer, front, aside.bytes.data());
    lane_of(peer).aside.push_back(std::move(aside));
    return;
  }
  if (!fits(receive->buffer, front)) return finish(*receive, peer, front, nullptr);
  open_.remove(receive);
  receive->is_being_filled = true;
  lock.unlock();
  try {
    node_.take_message(call, receive->buffer.data, peer);
  } catch (...) {
    lock.lock();
    receive->is_being_filled = false;
    throw;
  }
  lock.lock();
  receive->is_being_filled = false;
  receive->sender = peer;
  receive->is_done = true;
}

std::shared_ptr<Inbox::Receive> Inbox::waiting_for(int peer, std::optional<int> tag) {
  for (const auto& receive : open_) {
    const bool is_source = receive->source == peer || receive->source == kAnyRank;
    if (is_source && (!tag || receive->tag == *tag)) return receive;
  }
  return nullptr;
}

bool Inbox::give_aside(Receive& receive, int peer) {
  std::deque<Aside>& aside = lane_of(peer).aside;
  for (auto message = aside.begin(); message != aside.end(); ++message) {
    if (message->front.tag != receive.tag) continue;
    finish(receive, peer, message->front, message->bytes.data());
    aside.erase(message);
    return true;
  }
  return false;
}

// `bytes` are the message's, unless it doesn't fit.
void Inbox::finish(Receive& receive, int peer, const MessageFront& front, const std::byte* bytes) {
  open_.remove_if([&](const auto& open) { return open.get() == &receive; });
  if (!fits(receive.buffer, front)) {
    receive.misfit = front;
  } else if (front.size_bytes > 0) {
    std::memcpy(receive.buffer.data, bytes, front.size_bytes);
  }
  receive.sender = peer;
  receive.is_done = true;
}

}  // namespace ddprun::host
