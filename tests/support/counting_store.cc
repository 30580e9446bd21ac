// SPDX-License-Identifier: Apache-2.0
#include "tests/support/counting_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/clock.h"
#include "common/error.h"

namespace ddprun::test {

using store::Opcode;
using store::Request;

CountedServer::Counts CountedServer::most_of_a_connection() const {
  const std::lock_guard lock(mutex_);
  Counts most;
  for (const auto& one : connections_) {
    most.num_requests = std::max(most.num_requests, one->counts.num_requests);
    most.received_bytes = std::max(most.received_bytes, one->counts.received_bytes);
  }
  return most;
}

long CountedServer::num_requests(Opcode opcode) const {
  const std::lock_guard lock(mutex_);
  const auto found = num_requests_.find(opcode);
  return found == num_requests_.end() ? 0 : found->second;
}

std::map<std::string, int> CountedServer::num_readers_alone() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, int> numbers;
  for (const auto& [key, readers] : alone_) numbers[key] = static_cast<int>(readers.size());
  return numbers;
}

CountingStore::CountingStore(std::shared_ptr<CountedServer> server) : server_(std::move(server)) {
  const std::lock_guard lock(server_->mutex_);
  id_ = static_cast<store::ConnectionId>(server_->connections_.size());
  server_->connections_.push_back(std::make_unique<CountedServer::Connection>());
}

void CountingStore::send(const Request& request) {
  const std::lock_guard lock(server_->mutex_);
  ++server_->num_requests_[request.opcode];
  ++server_->connections_[id_]->counts.num_requests;
  if (request.opcode == Opcode::kGet) ++server_->alone_[std::string(request.key)][id_];
  if (request.keys.size() == 1) ++server_->alone_[std::string(request.keys[0])][id_];
  const store::Outcome& outcome = server_->state_.step(id_, request);
  for (const store::Reply& reply : outcome.replies) {
    CountedServer::Connection& to = *server_->connections_[reply.to];
    to.inbox += reply.bytes;
    if (reply.body) to.inbox += *reply.body;
    to.arrived.notify_all();
  }
  if (outcome.close_reason.empty()) return;
  throw Error(ErrorCode::kConnectionLost, outcome.close_reason);
}

std::string CountingStore::receive(std::size_t size_bytes) {
  std::unique_lock lock(server_->mutex_);
  CountedServer::Connection& own = *server_->connections_[id_];
  const Deadline deadline = Deadline::after(timeout_);
  if (!own.arrived.wait_until(lock, deadline.at(),
                              [&] { return own.inbox.size() >= size_bytes; })) {
    server_->state_.disconnect(id_);  // forgets this connection's wait
    throw Error(ErrorCode::kTimeout, "the counting store had no answer in time");
  }
  std::string bytes = own.inbox.substr(0, size_bytes);
  own.inbox.erase(0, size_bytes);
  own.counts.received_bytes += static_cast<long>(size_bytes);
  return bytes;
}

std::int64_t CountingStore::receive_integer() {
  std::int64_t value = 0;
  std::memcpy(&value, receive(sizeof value).data(), sizeof value);
  return value;
}

std::string CountingStore::receive_vector() {
  return receive(static_cast<std::size_t>(receive_integer()));
}

void CountingStore::set(std::string_view key, std::string_view value) {
  send({.opcode = Opcode::kSet, .key = key, .value = value});
}

std::string CountingStore::get(std::string_view key) {
  wait({std::string(key)});
  send({.opcode = Opcode::kGet, .key = key});
  return receive_vector();
}

std::int64_t CountingStore::add(std::string_view key, std::int64_t delta) {
  send({.opcode = Opcode::kAdd, .key = key, .number = delta});
  return receive_integer();
}

std::string CountingStore::compare_set(std::string_view key, std::string_view expected,
                                       std::string_view desired) {
  send({.opcode = Opcode::kCompareSet, .key = key, .value = desired, .expected = expected});
  return receive_vector();
}

bool CountingStore::check(const std::vector<std::string>& keys) {
  send({.opcode = Opcode::kCheck, .keys = {keys.begin(), keys.end()}});
  return receive(1)[0] == store::kReady;
}

void CountingStore::wait(const std::vector<std::string>& keys) {
  send({.opcode = Opcode::kWait, .keys = {keys.begin(), keys.end()}});
  receive(1);
}

bool CountingStore::delete_key(std::string_view key) {
  send({.opcode = Opcode::kDeleteKey, .key = key});
  return receive_integer() > 0;
}

std::int64_t CountingStore::num_keys() {
  send({.opcode = Opcode::kGetNumKeys});
  return receive_integer();
}

std::vector<std::string> CountingStore::list_keys() {
  send({.opcode = Opcode::kListKeys});
  std::vector<std::string> keys(static_cast<std::size_t>(receive_integer()));
  for (std::string& key : keys) key = receive_vector();
  return keys;
}

void CountingStore::append(std::string_view key, std::string_view value) {
  send({.opcode = Opcode::kAppend, .key = key, .value = value});
}

std::vector<std::string> CountingStore::multi_get(const std::vector<std::string>& keys) {
  wait(keys);
  send({.opcode = Opcode::kMultiGet, .keys = {keys.begin(), keys.end()}});
  std::vector<std::string> values(keys.size());
  for (std::string& value : values) value = receive_vector();
  return values;
}

void CountingStore::multi_set(const std::vector<std::pair<std::string, std::string>>& entries) {
  Request request{.opcode = Opcode::kMultiSet};
  for (const auto& [key, value] : entries) {
    request.keys.push_back(key);
    request.values.push_back(value);
  }
  send(request);
}

void CountingStore::queue_push(std::string_view key, std::string_view value) {
  send({.opcode = Opcode::kQueuePush, .key = key, .value = value});
}

std::string CountingStore::queue_pop(std::string_view key) {
  for (;;) {
    wait({std::string(key)});
    if (auto element = try_queue_pop(key)) return *element;
  }
}

std::optional<std::string> CountingStore::try_queue_pop(std::string_view key) {
  send({.opcode = Opcode::kQueuePop, .key = key});
  if (receive_integer() == 0) return std::nullopt;
  return receive_vector();
}

std::int64_t CountingStore::queue_len(std::string_view key) {
  send({.opcode = Opcode::kQueueLen, .key = key});
  return receive_integer();
}

void CountingStore::barrier(std::string_view key, std::int64_t world_size) {
  send({.opcode = Opcode::kBarrier, .key = key, .number = world_size});
  receive(1);
}

}  // namespace ddprun::test
