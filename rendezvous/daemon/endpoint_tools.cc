// SPDX-License-Identifier: Apache-2.0
// bind_endpoint, bind_addresses and answers_as_rendezvous (daemon.h): the synchronous steps before
// a daemon runs.
#include <algorithm>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/socket.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/daemon/http_session.h"
#include "rendezvous/daemon/port_holder.h"

namespace ddprun::rendezvous {
namespace {

// Who has a port may have bound it only, and listen a moment later. Empty: nobody does.
UniqueFd connect_when_listening(const std::vector<SocketAddress>& addresses, Deadline deadline) {
  constexpr std::chrono::milliseconds kLongestPause{500};
  std::string failure;
  for (std::chrono::milliseconds pause{10};; pause = std::min(2 * pause, kLongestPause)) {
    UniqueFd connection = connect_to_any(addresses, deadline.remaining(), deadline, &failure);
    if (connection || addresses.empty() || deadline.expired()) return connection;
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline.remaining()));
  }
}

}  // namespace

std::vector<UniqueFd> bind_endpoint(const Endpoint& endpoint) {
  return bind_addresses(endpoint, resolve(endpoint));
}

std::vector<UniqueFd> bind_addresses(const Endpoint& endpoint,
                                     const std::vector<SocketAddress>& addresses) {
  std::vector<UniqueFd> listeners;
  std::uint16_t port = endpoint.port;
  std::string seen, refusal;
  for (SocketAddress address : addresses) {
    if (!address.is_any() && !is_local_address(address)) {
      seen += (seen.empty() ? "" : ", ") + address.host_text();
      continue;
    }
    address.set_port(port);
    try {
      listeners.push_back(listen_on(address));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kSystem) {
        // "localhost" is ::1, too, where the kernel has no IPv6 (a container, say).
        refusal = error.what();
        continue;
      }
      const std::string holder = describe_port_holder(port);
      if (error.code() != ErrorCode::kUnavailable || holder.empty()) throw;
      throw Error(ErrorCode::kUnavailable,
                  concat("can't listen on ", address.text(), ": in use by ", holder));
    }
    if (port == 0) port = local_address(listeners.back().get()).port();
  }
  if (listeners.empty() && !refusal.empty()) throw Error(ErrorCode::kSystem, refusal);
  if (!refusal.empty()) log_info(refusal, ": serving the endpoint's other addresses");
  if (listeners.empty()) {
    throw Error(ErrorCode::kUnavailable, concat("can't listen on ", to_string(endpoint), ": ", seen,
                                                " is not an address of this machine"));
  }
  return listeners;
}

std::vector<UniqueFd> bind_everywhere(std::uint16_t port) {
  try {
    return bind_endpoint({.host = "::", .port = port});  // IPv4 too
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) throw;  // no IPv6 here
    return bind_endpoint({.host = "0.0.0.0", .port = port});
  }
}

bool answers_as_rendezvous(const std::vector<SocketAddress>& addresses,
                           std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  try {
    const UniqueFd connection = connect_when_listening(addresses, deadline);
    if (!connection) return false;
    const std::string request = "GET /healthz HTTP/1.0\r\n\r\n";
    send_all(connection.get(), request.data(), request.size(), deadline);
    std::string answer;
    constexpr std::size_t kMaxAnswerBytes = 4096;
    char byte = 0;
    while (answer.size() < kMaxAnswerBytes) {
      receive_all(connection.get(), &byte, 1, deadline);
      answer += byte;
      if (answer.find(kServiceName) != std::string::npos) return true;
    }
  } catch (const Error&) {
    // Not one: nobody there, somebody mute, or somebody who speaks another language.
  }
  return false;
}

}  // namespace ddprun::rendezvous
