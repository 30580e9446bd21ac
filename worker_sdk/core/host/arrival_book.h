// SPDX-License-Identifier: Apache-2.0
// TCP connections that other ranks opened to this one, until somebody asks for them. Thread-safe.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "worker_sdk/core/host/greeter.h"

namespace ddprun::host {

class ArrivalBook {
 public:
  // A second one of the same name replaces the first.
  void add(Arrival arrival) {
    const std::lock_guard lock(mutex_);
    const Key key{arrival.hello.from, arrival.hello.purpose, arrival.hello.index};
    arrived_[key] = std::move(arrival.fd);
    changed_.notify_all();
  }

  // The connection, or nothing after `at_most`.
  std::optional<UniqueFd> take(int from, Purpose purpose, int index, Clock::duration at_most) {
    std::unique_lock lock(mutex_);
    const Key key{from, purpose, static_cast<std::uint16_t>(index)};
    const auto there = [&] { return arrived_.contains(key); };
    if (!changed_.wait_until(lock, Clock::now() + at_most, there)) return std::nullopt;
    UniqueFd fd = std::move(arrived_[key]);
    arrived_.erase(key);
    return fd;
  }

 private:
  using Key = std::tuple<int, Purpose, std::uint16_t>;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, UniqueFd> arrived_;  // guarded by mutex_
};

}  // namespace ddprun::host
