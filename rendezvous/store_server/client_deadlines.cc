// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/client_deadlines.h"

#include <algorithm>

#include "common/text.h"

namespace ddprun::store {

using std::chrono::milliseconds;

ClientDeadlines::ClientDeadlines(milliseconds handshake_timeout, milliseconds stall_timeout,
                                 const ConnectionTable& connections)
    : handshake_timeout_(handshake_timeout),
      stall_timeout_(stall_timeout),
      connections_(connections) {}

void ClientDeadlines::await_handshake(const Connection& connection, Clock::time_point now) {
  while (!handshakes_.empty()) {
    Connection* const oldest = connections_.find(handshakes_.front().handle);
    if (oldest != nullptr && !oldest->parser().validated()) break;
    handshakes_.pop_front();
  }
  handshakes_.push_back({connection.handle(), now});
}

void ClientDeadlines::await_reading(Connection& connection) {
  if (connection.watched) return;
  connection.watched = true;
  readers_.push_back(connection.handle());
}

milliseconds ClientDeadlines::interval() const {
  const milliseconds shorter = std::min(handshake_timeout_, stall_timeout_);
  return std::clamp(shorter / 4, milliseconds(5), milliseconds(5000));
}

void ClientDeadlines::check(Clock::time_point now, const Close& close) {
  check_handshakes(now, close);
  std::erase_if(readers_, [&](Handle handle) { return is_no_reader_to_watch(handle, now, close); });
}

void ClientDeadlines::check_handshakes(Clock::time_point now, const Close& close) {
  while (!handshakes_.empty()) {
    const Handshake oldest = handshakes_.front();
    Connection* const connection = connections_.find(oldest.handle);
    const bool waits = connection != nullptr && !connection->parser().validated();
    if (waits && now - oldest.since < handshake_timeout_) break;
    handshakes_.pop_front();
    if (!waits) continue;
    if (connection->held) {  // it is we who don't read
      handshakes_.push_back({oldest.handle, now});
    } else {
      close(*connection, concat("no handshake in ", handshake_timeout_.count(), " ms"));
    }
  }
}

bool ClientDeadlines::is_no_reader_to_watch(Handle handle, Clock::time_point now,
                                            const Close& close) {
  Connection* const connection = connections_.find(handle);
  if (connection == nullptr) return true;
  if (!connection->blocked()) {
    connection->watched = false;
    return true;
  }
  if (now - connection->last_progress() < stall_timeout_) return false;
  close(*connection,
        concat("it doesn't read: ", connection->unsent_bytes(),
               " bytes of replies wait, none was taken for ", stall_timeout_.count(), " ms"));
  return true;
}

}  // namespace ddprun::store
