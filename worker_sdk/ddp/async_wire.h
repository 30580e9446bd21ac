// SPDX-License-Identifier: Apache-2.0
// What travels between a worker and an owner of asynchronous parameters, and over what. For
// async_parameters.cc alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "worker_sdk/core/communicator.h"

namespace ddprun::async_wire {

// In front of each message's values.
struct Header {
  std::uint32_t has_left = 0;  // of an update: the worker does no more steps
  std::uint32_t padding = 0;
  std::uint64_t lead = 0;  // of an answer: the worker's
  std::uint64_t unused[6] = {};
};
static_assert(sizeof(Header) == 64);

// A header and the values of one part, in one piece of memory.
class Message {
 public:
  explicit Message(std::size_t num_values)
      : num_values_(num_values), bytes_(sizeof(Header) + num_values * sizeof(float)) {}

  Header& header() { return *reinterpret_cast<Header*>(bytes_.data()); }
  std::span<float> values() {
    return {reinterpret_cast<float*>(bytes_.data() + sizeof(Header)), num_values_};
  }
  TensorView view() {
    return {.data = bytes_.data(), .count = bytes_.size(), .dtype = DType::kUInt8};
  }

 private:
  std::size_t num_values_;
  std::vector<char> bytes_;  // from operator new: aligned for both
};

// A communicator that several threads start operations on: one at a time does.
class SharedWire {
 public:
  explicit SharedWire(std::unique_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  WorkPtr send(Message& message, int peer, std::chrono::milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    sent_bytes_ += message.view().size_bytes();
    return communicator_->send(message.view(), peer, {.async = true, .timeout = timeout});
  }
  WorkPtr recv(Message& message, int peer, std::chrono::milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    return communicator_->recv(message.view(), peer, {.async = true, .timeout = timeout});
  }
  void abort(std::string_view reason) { communicator_->abort(reason); }
  std::uint64_t sent_bytes() const {
    const std::lock_guard lock(mutex_);
    return sent_bytes_;
  }

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<Communicator> communicator_;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace ddprun::async_wire
