// SPDX-License-Identifier: Apache-2.0
// A store in this process, for tests whose ranks are threads. What matters of c10d is kept: waits
// have deadlines, COMPARE_SET's rule, a barrier is one-shot.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rendezvous/store/store.h"

namespace ddprun::test {

// Each rank uses a clone of its own; all clones share one key space.
class MemoryStore : public store::Store {
 public:
  MemoryStore() : shared_(std::make_shared<Shared>()) {}

  std::unique_ptr<store::Store> clone() override {
    return std::unique_ptr<store::Store>(new MemoryStore(shared_, timeout_));
  }

  // Requests served so far, over all clones.
  long num_requests() const;
  // From now on every call throws kConnectionLost.
  void break_connections();

  std::chrono::milliseconds timeout() const override { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override;
  bool delete_key(std::string_view key) override;
  std::int64_t num_keys() override;
  std::vector<std::string> list_keys() override;
  void append(std::string_view key, std::string_view value) override;
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override;
  void multi_set(const std::vector<std::pair<std::string, std::string>>& entries) override;
  void queue_push(std::string_view key, std::string_view value) override;
  std::string queue_pop(std::string_view key) override;
  std::optional<std::string> try_queue_pop(std::string_view key) override;
  std::int64_t queue_len(std::string_view key) override;
  void barrier(std::string_view key, std::int64_t world_size) override;

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, std::string, std::less<>> values;
    std::map<std::string, std::vector<std::string>, std::less<>> queues;
    long num_requests = 0;
    bool broken = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  MemoryStore(std::shared_ptr<Shared> shared, std::chrono::milliseconds timeout)
      : shared_(std::move(shared)), timeout_(timeout) {}

  Lock begin();
  void wait_locked(Lock& lock, const std::vector<std::string>& keys);

  std::shared_ptr<Shared> shared_;  // second owners: the clones
  std::chrono::milliseconds timeout_{300'000};
};

}  // namespace ddprun::test
