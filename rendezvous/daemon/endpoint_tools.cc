// SPDX-License-Identifier: Apache-2.0
// The blocking steps before a daemon runs (daemon.h).
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/json/object.hpp>
#include <boost/system/error_code.hpp>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "common/byte_text.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/keyed_hash.h"
#include "common/log.h"
#include "common/port_holder.h"
#include "common/socket.h"
#include "common/throw_error.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/daemon/http_session.h"
#include "rendezvous/http/exchange.h"

namespace ddprun::rendezvous {
namespace {

using boost::asio::ip::tcp;

// Connects; tries again until the deadline, since a port may be bound a moment before its owner
// listens. Returns no descriptor if none listens.
UniqueFd connect_when_listening(const std::vector<SocketAddress>& addresses, Deadline deadline) {
  constexpr std::chrono::milliseconds kLongestPause{500};
  std::string failure;
  for (std::chrono::milliseconds pause{10};; pause = std::min(2 * pause, kLongestPause)) {
    UniqueFd connection = connect_to_any(addresses, deadline.remaining(), deadline, &failure);
    if (connection || addresses.empty() || deadline.expired()) return connection;
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline.remaining()));
  }
}

// Returns the body of the answer to GET /healthz; "" if it isn't HTTP, or not whole at the
// deadline.
std::string health_at(UniqueFd connection, Deadline deadline) {
  constexpr std::size_t kMaxAnswerBytes = 4096;
  const std::string request = http::request_text("GET", kHealthPath, "localhost", {}, "");
  send_all(connection.get(), request.data(), request.size(), deadline);
  boost::asio::io_context io{1};
  const bool is_v6 = local_address(connection.get()).storage.ss_family == AF_INET6;
  security::Wire wire(tcp::socket(io, is_v6 ? tcp::v6() : tcp::v4(), connection.release()));
  http::AnswerReader answer;
  answer.begin(kMaxAnswerBytes);
  const http::Done read_on = [&](boost::system::error_code error) {
    if (!error && !answer.is_done()) answer.async_read_some(wire, read_on);
  };
  read_on({});
  io.run_for(deadline.remaining());
  const bool is_whole = answer.is_done();
  wire.close();
  io.restart();
  io.run();
  return is_whole ? std::move(answer.body()) : "";
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
      listeners.push_back(listen_or_name_holder(address));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kSystem) throw;
      // "localhost" may also be ::1 although the kernel has no IPv6, e.g. in a container.
      refusal = error.what();
      continue;
    }
    if (port == 0) port = local_address(listeners.back().get()).port();
  }
  if (listeners.empty() && !refusal.empty()) throw Error(ErrorCode::kSystem, refusal);
  if (!refusal.empty()) log_info(refusal, ": serving the endpoint's other addresses");
  if (listeners.empty()) {
    throw_error(ErrorCode::kUnavailable, "can't listen on ", to_string(endpoint), ": ", seen,
                " is not an address of this machine");
  }
  return listeners;
}

std::vector<UniqueFd> bind_everywhere(std::uint16_t port) {
  try {
    return bind_endpoint({.host = "::", .port = port});  // with IPv4
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) throw;  // the kernel has no IPv6
    return bind_endpoint({.host = "0.0.0.0", .port = port});
  }
}

std::string job_mark(const std::string& job_id) {
  const std::uint64_t hash = sip_hash(job_id, SipKey());
  std::array<std::uint8_t, sizeof hash> bytes;
  std::memcpy(bytes.data(), &hash, sizeof hash);
  return to_hex(bytes);
}

std::optional<std::string> rendezvous_at(const std::vector<SocketAddress>& addresses,
                                         std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  std::optional<boost::json::object> answer;
  try {
    UniqueFd connection = connect_when_listening(addresses, deadline);
    if (connection) answer = parse_object(health_at(std::move(connection), deadline));
  } catch (const Error&) {
    // No daemon is there: the connection ended, or what listens takes no request.
  }
  if (!answer) return std::nullopt;
  const auto text = [&](const char* name) {
    const auto* value = answer->if_contains(name);
    return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
  };
  if (text("service") != kServiceName) return std::nullopt;
  return text("job_mark");
}

}  // namespace ddprun::rendezvous
