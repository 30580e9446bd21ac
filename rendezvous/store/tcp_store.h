// SPDX-License-Identifier: Apache-2.0
// The blocking client: one connection to a c10d store server, ddprun's or PyTorch's.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/unique_fd.h"
#include "rendezvous/store/request.h"
#include "rendezvous/store/store.h"

namespace ddprun::store {

struct TcpStoreOptions {
  std::chrono::milliseconds timeout{300'000};  // of every call and of the constructor
};

// Every call has the deadline `timeout()`. A wait that expires is cancelled at the server, which
// may take kCancelTimeout more; the connection stays usable.
class TcpStore final : public Store {
 public:
  static constexpr std::chrono::milliseconds kCancelTimeout{2'000};

  // Connects and shakes hands. A refused connection is retried until the deadline: the server may
  // be starting. Throws Error(kUnavailable) if no server is reached, Error(kTimeout) if the server
  // doesn't answer, and Error(kProtocol) if it is no c10d store.
  explicit TcpStore(const Endpoint& server, const TcpStoreOptions& options = {});

  // Does one round trip, which changes nothing.
  void ping();

  std::unique_ptr<Store> clone() override { return std::make_unique<TcpStore>(server_, options_); }
  std::chrono::milliseconds timeout() const override { return options_.timeout; }
  void set_timeout(std::chrono::milliseconds timeout) override { options_.timeout = timeout; }
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override;
  bool delete_key(std::string_view key) override;
  std::int64_t num_keys() override;
  // Lists users' keys, without the join counter, which num_keys() counts, as PyTorch's does.
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
  void send(const Request& request);
  // Send a request without a reply, send one with a number as its reply, do one round trip.
  void tell(const Request& request);
  std::int64_t ask_integer(const Request& request);
  std::uint32_t exchange_ping(std::uint32_t word);
  void receive(void* data, std::size_t size);
  std::int64_t receive_integer();
  std::string receive_vector();
  void receive_stop_waiting(std::string_view what, const std::vector<std::string_view>& keys);
  void wait_for(const std::vector<std::string_view>& raw_keys);
  std::optional<std::string> pop(std::string_view raw_key);
  // Runs one exchange. Any error but an expired wait ends the connection.
  template <typename Call>
  auto guarded(Call call);
  // Does the same with the time-out of a new call.
  template <typename Exchange>
  auto call(Exchange exchange);

  const Endpoint server_;
  TcpStoreOptions options_;
  UniqueFd connection_;
  Deadline deadline_ = Deadline::after(options_.timeout);  // of the present call
  std::string out_;    // The encoded request; kept for its capacity.
  std::string death_;  // Why the connection ended.
};

}  // namespace ddprun::store
