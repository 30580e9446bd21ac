// SPDX-License-Identifier: Apache-2.0
#include "tests/support/shared_store.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <stdexcept>

#include "common/clock.h"
#include "common/error.h"

namespace ddprun::testing {

struct SharedStore::Table {
  struct Entry {
    char key[64];
    char value[256];
    std::size_t value_size;
    bool used;
  };
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  Entry entries[512];

  Entry* find(std::string_view key) {
    for (Entry& entry : entries) {
      if (entry.used && key == entry.key) return &entry;
    }
    return nullptr;
  }

  void put(std::string_view key, std::string_view value) {
    if (key.size() >= sizeof Entry::key || value.size() > sizeof Entry::value) {
      throw std::length_error("SharedStore: key or value too long");
    }
    Entry* entry = find(key);
    for (Entry* next = entries; !entry; ++next) {
      if (next == entries + 512) throw std::length_error("SharedStore: full");
      if (!next->used) entry = next;
    }
    entry->used = true;
    std::memcpy(entry->key, key.data(), key.size());
    entry->key[key.size()] = '\0';
    std::memcpy(entry->value, value.data(), value.size());
    entry->value_size = value.size();
    pthread_cond_broadcast(&changed);
  }
};

// Survives the death of a process that held it.
class SharedStore::Lock {
 public:
  explicit Lock(Table& table) : table_(table) { recover(pthread_mutex_lock(&table_.mutex)); }
  ~Lock() { pthread_mutex_unlock(&table_.mutex); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // False when the deadline passed.
  bool wait(Deadline deadline) {
    const auto at = deadline.at().time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at);
    const std::chrono::nanoseconds rest = at - seconds;
    const timespec until{.tv_sec = static_cast<time_t>(seconds.count()),
                         .tv_nsec = static_cast<long>(rest.count())};
    const int result = pthread_cond_timedwait(&table_.changed, &table_.mutex, &until);
    recover(result);
    return result != ETIMEDOUT;
  }

 private:
  void recover(int result) {
    if (result == EOWNERDEAD) pthread_mutex_consistent(&table_.mutex);
  }
  Table& table_;
};

SharedStore::SharedStore() {
  void* memory =
      ::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw_system_error("mmap", errno);
  table_ = std::shared_ptr<Table>(static_cast<Table*>(memory),
                                  [](Table* table) { ::munmap(table, sizeof(Table)); });
  pthread_mutexattr_t mutex_kind;
  pthread_mutexattr_init(&mutex_kind);
  pthread_mutexattr_setpshared(&mutex_kind, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&mutex_kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&table_->mutex, &mutex_kind);
  pthread_condattr_t condition_kind;
  pthread_condattr_init(&condition_kind);
  pthread_condattr_setpshared(&condition_kind, PTHREAD_PROCESS_SHARED);
  pthread_condattr_setclock(&condition_kind, CLOCK_MONOTONIC);
  pthread_cond_init(&table_->changed, &condition_kind);
}

void SharedStore::set(std::string_view key, std::string_view value) {
  const Lock lock(*table_);
  table_->put(key, value);
}

std::string SharedStore::get(std::string_view key) {
  const std::string name(key);
  wait({name});
  return multi_get({name}).front();
}

std::int64_t SharedStore::add(std::string_view key, std::int64_t delta) {
  const Lock lock(*table_);
  const Table::Entry* entry = table_->find(key);
  const std::int64_t before = entry ? std::stoll(std::string(entry->value, entry->value_size)) : 0;
  table_->put(key, std::to_string(before + delta));
  return before + delta;
}

std::string SharedStore::compare_set(std::string_view key, std::string_view expected,
                                     std::string_view desired) {
  const Lock lock(*table_);
  const Table::Entry* entry = table_->find(key);
  if (!entry && !expected.empty()) return std::string(expected);
  const std::string now = entry ? std::string(entry->value, entry->value_size) : "";
  if (now != expected) return now;
  table_->put(key, desired);
  return std::string(desired);
}

bool SharedStore::check(const std::vector<std::string>& keys) {
  const Lock lock(*table_);
  for (const std::string& key : keys) {
    if (!table_->find(key)) return false;
  }
  return true;
}

void SharedStore::wait(const std::vector<std::string>& keys) {
  const Deadline deadline = Deadline::after(timeout_);
  Lock lock(*table_);
  for (const std::string& key : keys) {
    while (!table_->find(key)) {
      if (!lock.wait(deadline)) throw Error(ErrorCode::kTimeout, "no key " + key);
    }
  }
}

bool SharedStore::delete_key(std::string_view key) {
  const Lock lock(*table_);
  Table::Entry* entry = table_->find(key);
  if (entry) entry->used = false;
  return entry != nullptr;
}

std::int64_t SharedStore::num_keys() { return static_cast<std::int64_t>(list_keys().size()); }

std::vector<std::string> SharedStore::list_keys() {
  const Lock lock(*table_);
  std::vector<std::string> keys;
  for (const Table::Entry& entry : table_->entries) {
    if (entry.used) keys.push_back(entry.key);
  }
  return keys;
}

void SharedStore::append(std::string_view key, std::string_view value) {
  const Lock lock(*table_);
  const Table::Entry* entry = table_->find(key);
  const std::string before = entry ? std::string(entry->value, entry->value_size) : "";
  table_->put(key, before + std::string(value));
}

std::vector<std::string> SharedStore::multi_get(const std::vector<std::string>& keys) {
  wait(keys);
  const Lock lock(*table_);
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    const Table::Entry* entry = table_->find(key);
    values.emplace_back(entry ? std::string(entry->value, entry->value_size) : "");
  }
  return values;
}

void SharedStore::multi_set(const std::vector<std::pair<std::string, std::string>>& entries) {
  const Lock lock(*table_);
  for (const auto& [key, value] : entries) table_->put(key, value);
}

// A queue is the keys <key>#0, <key>#1, … between two counters.
void SharedStore::queue_push(std::string_view key, std::string_view value) {
  const std::string name(key);
  set(name + "#" + std::to_string(add(name + "#pushed", 1) - 1), value);
}

std::string SharedStore::queue_pop(std::string_view key) {
  const std::string name(key);
  return get(name + "#" + std::to_string(add(name + "#popped", 1) - 1));
}

std::optional<std::string> SharedStore::try_queue_pop(std::string_view key) {
  if (queue_len(key) <= 0) return std::nullopt;
  return queue_pop(key);
}

std::int64_t SharedStore::queue_len(std::string_view key) {
  const std::string name(key);
  return add(name + "#pushed", 0) - add(name + "#popped", 0);
}

void SharedStore::barrier(std::string_view key, std::int64_t world_size) {
  const std::string name(key);
  if (add(name + "#arrived", 1) == world_size) set(name + "#all", "1");
  get(name + "#all");
}

}  // namespace ddprun::testing
