// SPDX-License-Identifier: Apache-2.0
// Fuzzes what strangers can send to the rendezvous' port before they have proved anything: the
// input's first byte chooses the daemon (nothing, a token), and whether the rest comes
// at once, after the upgrade to an agent's WebSocket (frames, proofs), or is checked as a proof or
// an Authorization itself. What must hold beyond "no crash": the connection ends or waits, nothing
// is admitted, no job is made of what has no token, and the daemon still answers.
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/security/http_proof.h"
#include "rendezvous/security/proof.h"
#include "tests/support/secret_file.h"

namespace {

using namespace ddprun;
namespace asio = boost::asio;
using asio::ip::tcp;

constexpr char kUpgrade[] =
    "GET /v1/agent HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

struct Served {
  explicit Served(bool has_token)
      : token(has_token ? test::secret_of("a token of many bytes") : nullptr) {
    rendezvous::DaemonOptions options;
    options.token = token;
    daemon = std::make_unique<rendezvous::Daemon>(
        io, rendezvous::bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0}), options);
  }
  // All that comes until the daemon has nothing to do; its end of the connection is closed then.
  std::string say(tcp::socket& client, std::string_view bytes, bool and_end) {
    boost::system::error_code error;
    asio::write(client, asio::buffer(bytes.data(), bytes.size()), error);
    if (and_end) client.shutdown(tcp::socket::shutdown_send, error);
    return hear(client);
  }
  std::string hear(tcp::socket& client) {
    std::string all;
    boost::system::error_code error;
    client.non_blocking(true, error);
    for (int idle = 0; idle < 3;) {
      const std::size_t done = io.poll();
      char buffer[4096];
      const std::size_t got = client.read_some(asio::buffer(buffer), error);
      all.append(buffer, got);
      if (error && error != asio::error::would_block) break;
      idle = done == 0 && got == 0 ? idle + 1 : 0;
    }
    client.non_blocking(false, error);
    return all;
  }
  tcp::socket connect() {
    tcp::socket client(clients);
    client.connect({asio::ip::address_v4::loopback(), daemon->port()});
    const linger at_once{1, 0};  // no TIME_WAIT: ports are not endless
    ::setsockopt(client.native_handle(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    return client;
  }

  asio::io_context io{1}, clients{1};
  std::shared_ptr<const Secret> token;
  std::unique_ptr<rendezvous::Daemon> daemon;
};

void check_as_proof(const Served& served, std::string_view text) {
  security::RendezvousProof rendezvous(served.token, "");
  DDPRUN_CHECK(!rendezvous.check(text).admitted);
  security::HttpDoor door(served.token);
  DDPRUN_CHECK(!door.check(text, {"GET", "/v1/jobs", ""}, Clock::now()).admitted);
  try {
    security::AgentProof agent(served.token, "");
    agent.answer(text.substr(0, text.find('\n')));
    agent.check(text.substr(std::min(text.size(), text.find('\n'))));
    DDPRUN_CHECK(false);
  } catch (const Error& error) {
    DDPRUN_CHECK(error.code() == ErrorCode::kInvalidArgument);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool quiet = [] {
    set_log_sink([](LogLevel, std::string_view) {});
    return true;
  }();
  (void)quiet;
  if (size == 0) return 0;
  static Served open(false), closed(true);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool has_token = (data[0] & 1) != 0;
  Served& served = has_token ? closed : open;
  if ((data[0] & 4) != 0) {
    check_as_proof(closed, bytes);
    return 0;
  }
  {
    tcp::socket client = served.connect();
    if ((data[0] & 2) != 0) {
      const std::string answer = served.say(client, kUpgrade, false);
      DDPRUN_CHECK(answer.starts_with("HTTP/1.1 101"));
    }
    const std::string heard = served.say(client, bytes, true);
    if (has_token) DDPRUN_CHECK(heard.find("welcome") == heard.npos);
    if (has_token) DDPRUN_CHECK(heard.find("\"jobs\"") == heard.npos);
  }
  served.io.poll();
  if (has_token) DDPRUN_CHECK(served.daemon->jobs_json().find("run_id") == std::string::npos);
  tcp::socket client = served.connect();
  const std::string health = served.say(client, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", false);
  DDPRUN_CHECK(health.starts_with("HTTP/1.1 200"));
  return 0;
}
