// SPDX-License-Identifier: Apache-2.0
#include "tests/support/memory_store.h"

#include "common/error.h"

namespace ddprun::test {

MemoryStore::Lock MemoryStore::begin() {
  Lock lock(shared_->mutex);
  ++shared_->num_requests;
  if (shared_->broken) throw Error(ErrorCode::kConnectionLost, "the test broke the connection");
  return lock;
}

long MemoryStore::num_requests() const {
  Lock lock(shared_->mutex);
  return shared_->num_requests;
}

void MemoryStore::break_connections() {
  Lock lock(shared_->mutex);
  shared_->broken = true;
  shared_->changed.notify_all();
}

void MemoryStore::set(std::string_view key, std::string_view value) {
  Lock lock = begin();
  shared_->values[std::string(key)] = std::string(value);
  shared_->changed.notify_all();
}

std::string MemoryStore::get(std::string_view key) {
  Lock lock = begin();
  wait_locked(lock, {std::string(key)});
  return shared_->values.find(key)->second;
}

std::int64_t MemoryStore::add(std::string_view key, std::int64_t delta) {
  Lock lock = begin();
  std::string& value = shared_->values[std::string(key)];
  const std::int64_t sum = (value.empty() ? 0 : std::stoll(value)) + delta;
  value = std::to_string(sum);
  shared_->changed.notify_all();
  return sum;
}

std::string MemoryStore::compare_set(std::string_view key, std::string_view expected,
                                     std::string_view desired) {
  Lock lock = begin();
  const auto found = shared_->values.find(key);
  if (found == shared_->values.end()) {
    if (!expected.empty()) return std::string(expected);
    shared_->values[std::string(key)] = std::string(desired);
    shared_->changed.notify_all();
    return std::string(desired);
  }
  if (found->second == expected) found->second = std::string(desired);
  return found->second;
}

bool MemoryStore::check(const std::vector<std::string>& keys) {
  Lock lock = begin();
  for (const auto& key : keys) {
    if (shared_->values.count(key) == 0) return false;
  }
  return true;
}

void MemoryStore::wait(const std::vector<std::string>& keys) {
  Lock lock = begin();
  wait_locked(lock, keys);
}

void MemoryStore::wait_locked(Lock& lock, const std::vector<std::string>& keys) {
  const auto have_all = [&] {
    for (const auto& key : keys) {
      if (shared_->values.count(key) == 0) return shared_->broken;
    }
    return true;
  };
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  if (!shared_->changed.wait_until(lock, deadline, have_all)) {
    throw Error(ErrorCode::kTimeout, "no key " + keys.front());
  }
  if (shared_->broken) throw Error(ErrorCode::kConnectionLost, "the test broke the connection");
}

bool MemoryStore::delete_key(std::string_view key) {
  Lock lock = begin();
  return shared_->values.erase(std::string(key)) > 0;
}

std::int64_t MemoryStore::num_keys() {
  Lock lock = begin();
  return static_cast<std::int64_t>(shared_->values.size());
}

std::vector<std::string> MemoryStore::list_keys() {
  Lock lock = begin();
  std::vector<std::string> keys;
  for (const auto& [key, value] : shared_->values) keys.push_back(key);
  return keys;
}

void MemoryStore::append(std::string_view key, std::string_view value) {
  Lock lock = begin();
  shared_->values[std::string(key)] += value;
  shared_->changed.notify_all();
}

std::vector<std::string> MemoryStore::multi_get(const std::vector<std::string>& keys) {
  Lock lock = begin();
  wait_locked(lock, keys);
  std::vector<std::string> values;
  for (const auto& key : keys) values.push_back(shared_->values[key]);
  return values;
}

void MemoryStore::multi_set(const std::vector<std::pair<std::string, std::string>>& entries) {
  Lock lock = begin();
  for (const auto& [key, value] : entries) shared_->values[key] = value;
  shared_->changed.notify_all();
}

void MemoryStore::queue_push(std::string_view key, std::string_view value) {
  Lock lock = begin();
  shared_->queues[std::string(key)].emplace_back(value);
  shared_->changed.notify_all();
}

std::string MemoryStore::queue_pop(std::string_view key) {
  Lock lock = begin();
  auto& queue = shared_->queues[std::string(key)];
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  if (!shared_->changed.wait_until(lock, deadline, [&] { return !queue.empty(); })) {
    throw Error(ErrorCode::kTimeout, "empty queue " + std::string(key));
  }
  std::string value = queue.front();
  queue.erase(queue.begin());
  return value;
}

std::optional<std::string> MemoryStore::try_queue_pop(std::string_view key) {
  Lock lock = begin();
  auto& queue = shared_->queues[std::string(key)];
  if (queue.empty()) return std::nullopt;
  std::string value = queue.front();
  queue.erase(queue.begin());
  return value;
}

std::int64_t MemoryStore::queue_len(std::string_view key) {
  Lock lock = begin();
  return static_cast<std::int64_t>(shared_->queues[std::string(key)].size());
}

void MemoryStore::barrier(std::string_view key, std::int64_t world_size) {
  const std::string name(key);
  if (add(name + "/num_members", 1) == world_size) set(name + "/last_member", "1");
  wait({name + "/last_member"});
}

}  // namespace ddprun::test
