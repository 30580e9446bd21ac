// SPDX-License-Identifier: Apache-2.0
// A store in one process for thousands of ranks: the real state machine behind a mutex. It counts
// the bytes that a real client would send and receive.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rendezvous/store/request.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/store_state.h"

namespace ddprun::test {

// The part that all connections share. It lives as long as the last of them. Any thread may call
// it.
class CountedServer {
 public:
  struct Counts {
    long num_requests = 0;
    long received_bytes = 0;
  };

  Counts most_of_a_connection() const;  // the largest count of each kind
  long num_requests(store::Opcode opcode) const;
  // For each key, the number of connections that asked for this key alone. They waited for it,
  // looked for it or read it.
  std::map<std::string, int> num_readers_alone() const;

 private:
  friend class CountingStore;
  struct Connection {
    Counts counts;
    std::string inbox;
    std::condition_variable arrived;
  };

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  store::StoreState state_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::map<store::Opcode, long> num_requests_;
  std::map<std::string, std::map<store::ConnectionId, int>> alone_;
};

// A connection. Each thread needs its own.
class CountingStore final : public store::Store {
 public:
  explicit CountingStore(std::shared_ptr<CountedServer> server);

  std::unique_ptr<store::Store> clone() override {
    return std::make_unique<CountingStore>(server_);
  }
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
  void send(const store::Request& request);
  std::string receive(std::size_t size_bytes);  // throws Error(kTimeout)
  std::int64_t receive_integer();
  std::string receive_vector();

  const std::shared_ptr<CountedServer> server_;  // shared with the other connections
  std::chrono::milliseconds timeout_{300'000};
  store::ConnectionId id_ = 0;
};

}  // namespace ddprun::test
