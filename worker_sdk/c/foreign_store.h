// SPDX-License-Identifier: Apache-2.0
// A store that a C program has, as the SDK sees it. Operations that no communicator needs are
// refused.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rendezvous/store/store.h"
#include "worker_sdk/c/ddprun_c.h"

namespace ddprun::c {

class ForeignStore final : public store::Store {
 public:
  ForeignStore(const ddprun_store_calls& calls, void* context) : calls_(calls), context_(context) {}

  std::unique_ptr<Store> clone() override;
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
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override;

  std::int64_t num_keys() override { refuse("num_keys"); }
  std::vector<std::string> list_keys() override { refuse("list_keys"); }
  void append(std::string_view, std::string_view) override { refuse("append"); }
  void multi_set(const std::vector<std::pair<std::string, std::string>>&) override {
    refuse("multi_set");
  }
  void queue_push(std::string_view, std::string_view) override { refuse("queue_push"); }
  std::string queue_pop(std::string_view) override { refuse("queue_pop"); }
  std::optional<std::string> try_queue_pop(std::string_view) override { refuse("queue_pop"); }
  std::int64_t queue_len(std::string_view) override { refuse("queue_len"); }
  void barrier(std::string_view, std::int64_t) override { refuse("barrier"); }

 private:
  [[noreturn]] static void refuse(const char* operation);
  // Throws what the status says; the reply is returned.
  std::string call(const char* operation, std::string_view key,
                   const std::function<int(ddprun_reply*)>& make) const;

  const ddprun_store_calls calls_;
  void* const context_;
  std::chrono::milliseconds timeout_{300'000};
};

}  // namespace ddprun::c

// Bytes that a function of ddprun_store_calls hands back.
struct ddprun_reply {
  std::string bytes;
};
