// SPDX-License-Identifier: Apache-2.0
#include "tests/support/shared_store.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <stdexcept>

#include "common/error.h"

namespace ddprun::test {

struct SharedStore::Table {
  static constexpr std::size_t kNumKeys = 512;
  struct Value {
    std::size_t size;
    char bytes[4096];
  };

  pthread_mutex_t mutex;
  // A futex, because a condition variable may hang once one of its waiters was killed.
  std::atomic<std::uint32_t> num_changes;
  // Guarded by mutex.
  long num_requests;
  bool is_broken;
  char keys[kNumKeys][64];  // separate from the values, so that a search reads little memory
  bool is_used[kNumKeys];
  Value values[kNumKeys];

  std::optional<std::size_t> find(std::string_view key) const {
    for (std::size_t i = 0; i < kNumKeys; ++i) {
      if (is_used[i] && key == keys[i]) return i;
    }
    return std::nullopt;
  }

  std::optional<std::string> look_up(std::string_view key) const {
    const auto at = find(key);
    if (!at) return std::nullopt;
    return std::string(values[*at].bytes, values[*at].size);
  }

  void put(std::string_view key, std::string_view value) {
    if (key.size() >= sizeof keys[0] || value.size() > sizeof Value::bytes) {
      throw std::length_error("SharedStore: key or value too long");
    }
    std::size_t at = find(key).value_or(0);
    while (is_used[at] && key != keys[at]) {
      if (++at == kNumKeys) throw std::length_error("SharedStore: full");
    }
    std::memcpy(keys[at], key.data(), key.size());
    keys[at][key.size()] = '\0';
    std::memcpy(values[at].bytes, value.data(), value.size());
    values[at].size = value.size();
    is_used[at] = true;  // the last step, because the caller may be killed at any time
    tell_waiting();
  }

  void tell_waiting() {
    num_changes.fetch_add(1);
    ::syscall(SYS_futex, &num_changes, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
  }

  bool remove(std::string_view key) {
    const auto at = find(key);
    if (at) is_used[*at] = false;
    return at.has_value();
  }

  std::int64_t number(std::string_view key) const { return std::stoll(look_up(key).value_or("0")); }

  std::int64_t add(std::string_view key, std::int64_t delta) {
    const std::int64_t sum = number(key) + delta;
    put(key, std::to_string(sum));
    return sum;
  }

  // Takes a queue's first element. A queue is the keys <queue>#0, <queue>#1, …, with two counters.
  std::optional<std::string> take_head(const std::string& queue) {
    const std::string head = queue + "#" + std::to_string(number(queue + "#popped"));
    auto value = look_up(head);
    if (value) add(queue + "#popped", 1);
    remove(head);
    return value;
  }
};

// Holds the table's lock. The lock stays usable after the death of a process that held it.
class SharedStore::Request {
 public:
  explicit Request(Table& table) : table_(table) {
    recover(pthread_mutex_lock(&table_.mutex));
    ++table_.num_requests;
    if (!table_.is_broken) return;
    pthread_mutex_unlock(&table_.mutex);
    throw_broken();
  }
  ~Request() { pthread_mutex_unlock(&table_.mutex); }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // Waits for a change. Throws Error(kTimeout) "no <key>" at the deadline.
  void wait_for_change(const std::string& key, Deadline deadline) {
    const auto left = std::chrono::nanoseconds(deadline.remaining());
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec at_most{.tv_sec = static_cast<time_t>(seconds.count()),
                           .tv_nsec = static_cast<long>((left - seconds).count())};
    const std::uint32_t seen = table_.num_changes.load();
    pthread_mutex_unlock(&table_.mutex);
    ::syscall(SYS_futex, &table_.num_changes, FUTEX_WAIT, seen, &at_most, nullptr, 0);
    recover(pthread_mutex_lock(&table_.mutex));
    if (table_.is_broken) throw_broken();
    const bool same = table_.num_changes.load() == seen;
    if (same && deadline.expired()) throw Error(ErrorCode::kTimeout, "no " + key);
  }

 private:
  [[noreturn]] static void throw_broken() {
    throw Error(ErrorCode::kConnectionLost, "the test broke the connection");
  }

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
}

long SharedStore::num_requests() const {
  const Request itself(*table_);
  return --table_->num_requests;
}

void SharedStore::break_connections() {
  const Request last(*table_);
  table_->is_broken = true;
  table_->tell_waiting();
}

void SharedStore::set(std::string_view key, std::string_view value) {
  const Request request(*table_);
  table_->put(key, value);
}

std::string SharedStore::get(std::string_view key) { return multi_get({std::string(key)}).front(); }

std::int64_t SharedStore::add(std::string_view key, std::int64_t delta) {
  const Request request(*table_);
  return table_->add(key, delta);
}

std::string SharedStore::compare_set(std::string_view key, std::string_view expected,
                                     std::string_view desired) {
  const Request request(*table_);
  const auto now = table_->look_up(key);
  if (!now && !expected.empty()) return std::string(expected);
  if (now && *now != expected) return *now;
  table_->put(key, desired);
  return std::string(desired);
}

bool SharedStore::check(const std::vector<std::string>& keys) {
  const Request request(*table_);
  for (const std::string& key : keys) {
    if (!table_->find(key)) return false;
  }
  return true;
}

void SharedStore::wait(const std::vector<std::string>& keys) { multi_get(keys); }

bool SharedStore::delete_key(std::string_view key) {
  const Request request(*table_);
  return table_->remove(key);
}

std::int64_t SharedStore::num_keys() { return static_cast<std::int64_t>(list_keys().size()); }

std::vector<std::string> SharedStore::list_keys() {
  const Request request(*table_);
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < Table::kNumKeys; ++i) {
    if (table_->is_used[i]) keys.emplace_back(table_->keys[i]);
  }
  return keys;
}

void SharedStore::append(std::string_view key, std::string_view value) {
  const Request request(*table_);
  table_->put(key, table_->look_up(key).value_or("") + std::string(value));
}

std::vector<std::string> SharedStore::multi_get(const std::vector<std::string>& keys) {
  const Deadline deadline = Deadline::after(timeout_);
  Request request(*table_);
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    while (!table_->find(key)) request.wait_for_change(key, deadline);
  }
  for (const std::string& key : keys) values.push_back(table_->look_up(key).value_or(""));
  return values;
}

void SharedStore::multi_set(const std::vector<std::pair<std::string, std::string>>& entries) {
  const Request request(*table_);
  for (const auto& [key, value] : entries) table_->put(key, value);
}

void SharedStore::queue_push(std::string_view key, std::string_view value) {
  const Request request(*table_);
  const std::string queue(key);
  table_->put(queue + "#" + std::to_string(table_->add(queue + "#pushed", 1) - 1), value);
}

std::string SharedStore::queue_pop(std::string_view key) {
  const Deadline deadline = Deadline::after(timeout_);
  const std::string queue(key);
  Request request(*table_);
  for (;;) {
    if (auto value = table_->take_head(queue)) return *value;
    request.wait_for_change(queue, deadline);
  }
}

std::optional<std::string> SharedStore::try_queue_pop(std::string_view key) {
  const Request request(*table_);
  return table_->take_head(std::string(key));
}

std::int64_t SharedStore::queue_len(std::string_view key) {
  const Request request(*table_);
  const std::string queue(key);
  return table_->number(queue + "#pushed") - table_->number(queue + "#popped");
}

void SharedStore::barrier(std::string_view key, std::int64_t world_size) {
  const std::string name(key);
  if (add(name + "/num_members", 1) == world_size) set(name + "/last_member", "1");
  wait({name + "/last_member"});
}

}  // namespace ddprun::test
