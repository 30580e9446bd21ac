// SPDX-License-Identifier: Apache-2.0
// The key-value store for a worker. It offers what PyTorch's c10d::Store does, with a deadline on
// every call. Implementations: TcpStore (a connection), PrefixStore (a view of another store).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::store {

// Keys and values are byte strings. One call at a time per object; use clone() for a second thread.
//
// Every call throws Error(kTimeout) when `timeout()` has passed. If a wait expired, the error names
// the missing keys, and the object stays usable. If the server did not answer, the object is
// unusable. Error(kConnectionLost) means that the server ended, or refused the request because of a
// limit, which its log names. Error(kProtocol) means that its answer is invalid. After both the
// object is unusable, too.
//
// set, append, multi_set and queue_push have no reply: a later call reports their refusal.
class Store {
 public:
  virtual ~Store() = default;

  // Returns the same store over a connection of its own, for another thread. The timeout is copied.
  // Throws Error(kUnavailable) when the server can't be reached.
  virtual std::unique_ptr<Store> clone() = 0;

  // The deadline of each call below, from its start. Default: 300 s, as in PyTorch.
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  virtual void set(std::string_view key, std::string_view value) = 0;

  // Waits until the key exists, then returns its value.
  virtual std::string get(std::string_view key) = 0;

  // Adds to the decimal number at the key (absent = 0) and returns the sum.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;

  // Stores `desired` if the current value is `expected` (absent matches an empty `expected`).
  // Returns the key's value afterwards. If the key is absent and `expected` is not empty, it
  // returns `expected` (c10d's rule).
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;

  // Returns whether all of the keys exist now.
  virtual bool check(const std::vector<std::string>& keys) = 0;
  // Returns when all of the keys exist at one moment.
  virtual void wait(const std::vector<std::string>& keys) = 0;

  // Returns whether the key existed.
  virtual bool delete_key(std::string_view key) = 0;
  // Counts every key of the server, queues not included.
  virtual std::int64_t num_keys() = 0;
  // Returns the keys in no particular order, without queues.
  virtual std::vector<std::string> list_keys() = 0;

  // Adds to the end of the key's value; an absent key is created.
  virtual void append(std::string_view key, std::string_view value) = 0;
  // Waits until all of the keys exist, then returns their values in the order of `keys`.
  virtual std::vector<std::string> multi_get(const std::vector<std::string>& keys) = 0;
  // Sets all keys at once: no other client sees a part of them set.
  virtual void multi_set(const std::vector<std::pair<std::string, std::string>>& entries) = 0;

  // Queues have a name space of their own. check() and wait() see the queues that are not empty;
  // get() and delete_key() see none.
  virtual void queue_push(std::string_view key, std::string_view value) = 0;
  // Waits for an element and removes it.
  virtual std::string queue_pop(std::string_view key) = 0;
  // Returns nullopt if the queue is empty.
  virtual std::optional<std::string> try_queue_pop(std::string_view key) = 0;
  virtual std::int64_t queue_len(std::string_view key) = 0;

  // Returns when `world_size` callers have arrived at `key`. A key serves one barrier only.
  virtual void barrier(std::string_view key, std::int64_t world_size) = 0;
};

}  // namespace ddprun::store
