// SPDX-License-Identifier: Apache-2.0
// Fuzzes what strangers can send to the rendezvous' port before they have proved anything. The
// input's first byte chooses the daemon (without or with a token), and the way of the rest. The
// rest comes at once, or after the upgrade to an agent's WebSocket (frames, proofs), or is itself
// checked as a proof or an Authorization. Beyond "no crash" this must hold: the connection ends,
// nothing is admitted, no job is made without the token, and the daemon still answers.
#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/security/proof.h"
#include "tests/support/secret_file.h"

namespace {

using namespace ddprun;
namespace asio = boost::asio;
using asio::ip::tcp;

constexpr char kUpgrade[] =
    "GET /v1/agent HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

constexpr std::uint32_t kClients = 250;

struct Served {
  explicit Served(bool has_token)
      : token(has_token ? test::secret_of("a token of many bytes") : nullptr) {
    rendezvous::DaemonOptions options;
    options.token = token;
    daemon = std::make_unique<rendezvous::Daemon>(
        io, rendezvous::bind_endpoint(Endpoint{.host = "127.0.0.1", .port = 0}), options);
  }
  // The daemon's bytes until it ends the connection, which it must once the client has ended its
  // side.
  std::string say(tcp::socket& client, std::string_view bytes) {
    std::string all;
    bool ended = false;
    asio::async_write(client, asio::buffer(bytes), [&](auto...) {
      boost::system::error_code error;
      client.shutdown(tcp::socket::shutdown_send, error);
    });
    asio::async_read(client, asio::dynamic_buffer(all), [&](auto...) { ended = true; });
    run_until(ended);
    return all;
  }
  std::string upgrade(tcp::socket& client) {
    std::string answer;
    bool ended = false;
    asio::async_write(client, asio::buffer(std::string_view(kUpgrade)), [](auto...) {});
    asio::async_read_until(client, asio::dynamic_buffer(answer), "\r\n\r\n",
                           [&](auto...) { ended = true; });
    run_until(ended);
    return answer;
  }
  // The clients have many addresses. Each connection leaves a port in TIME_WAIT, and thousands a
  // second would use up the ports of one address.
  tcp::socket connect() {
    tcp::socket client(io);
    client.open(tcp::v4());
    const int with_connect = 1;
    ::setsockopt(client.native_handle(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &with_connect,
                 sizeof with_connect);
    last_client = (last_client + 1) % kClients;
    client.bind({asio::ip::address_v4(INADDR_LOOPBACK + last_client), 0});
    bool connected = false;
    client.async_connect({asio::ip::address_v4::loopback(), daemon->port()},
                         [&](boost::system::error_code error) { connected = !error; });
    run_until(connected);
    return client;
  }
  // No call here blocks; the fuzzer's own timer interrupts system calls. The machine may be busy
  // with tests.
  void run_until(const bool& ended) {
    const auto deadline = Clock::now() + std::chrono::seconds(50);
    while (!ended && Clock::now() < deadline) io.run_one_until(deadline);
    DDPRUN_CHECK(ended);
  }

  asio::io_context io{1};
  std::uint32_t last_client = 0;
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
      DDPRUN_CHECK(served.upgrade(client).starts_with("HTTP/1.1 101"));
    }
    const std::string heard = served.say(client, bytes);
    if (has_token) DDPRUN_CHECK(heard.find("welcome") == heard.npos);
    if (has_token) DDPRUN_CHECK(heard.find("\"jobs\"") == heard.npos);
  }
  served.io.poll();
  if (has_token) {
    DDPRUN_CHECK(served.daemon->status_json().find("\"live\":0,") != std::string::npos);
  }
  tcp::socket client = served.connect();
  const std::string health = served.say(client, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
  DDPRUN_CHECK(health.starts_with("HTTP/1.1 200"));
  return 0;
}
