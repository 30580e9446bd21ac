// SPDX-License-Identifier: Apache-2.0
// A store without a server, for tests whose ranks are threads or children made by fork. It is a
// small table in memory that is shared across fork(). It keeps these rules of c10d: waits have
// deadlines, COMPARE_SET's rule, a barrier is one-shot. Limits: 512 keys, 64 bytes a key, 4 KiB a
// value.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "rendezvous/store/store.h"

namespace ddprun::test {

// Each thread uses its own clone. All clones, and their copies in children, share one table.
class SharedStore : public store::Store {
 public:
  SharedStore();

  // Returns the number of requests so far, of all clones together.
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

  // Returns a store with the same table and a time-out of its own.
  std::unique_ptr<store::Store> clone() override { return std::make_unique<SharedStore>(*this); }

 private:
  struct Table;
  class Request;

  std::shared_ptr<Table> table_;  // shared with the clones
  std::chrono::milliseconds timeout_{300'000};
};

}  // namespace ddprun::test
