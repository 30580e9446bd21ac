// SPDX-License-Identifier: Apache-2.0
// A daemon on a thread of its own for tests that speak to it with blocking calls, byte by byte.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "common/socket.h"
#include "rendezvous/daemon/daemon.h"

namespace ddprun::rendezvous::testing {

using namespace std::chrono_literals;

// The log lines since the last ServedDaemon was made.
inline std::vector<std::string>& lines() {
  static std::vector<std::string> all;
  return all;
}

inline constexpr char kUpgrade[] =
    "GET /v1/agent HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

// The daemon on a thread of its own, so that a test can use blocking calls.
class ServedDaemon {
 public:
  explicit ServedDaemon(std::chrono::milliseconds handshake_timeout = 10s,
                        std::size_t max_handshakes = 4096) {
    DaemonOptions options;
    options.handshake_timeout = handshake_timeout;
    options.max_handshakes = max_handshakes;
    serve(options);
  }
  explicit ServedDaemon(const DaemonOptions& options, const std::string& host = "127.0.0.1") {
    serve(options, host);
  }
  ~ServedDaemon() { stop(); }
  void stop() {
    io_.stop();
    if (thread_.joinable()) thread_.join();
    set_log_level(LogLevel::kError);
  }
  boost::asio::io_context& io() { return io_; }
  Daemon& daemon() { return *daemon_; }  // to be used on its io thread

  // Sends `text`. Returns all bytes until the daemon closes.
  std::string exchange(const std::string& text) {
    const UniqueFd connection = connect();
    send_all(connection.get(), text.data(), text.size(), Deadline::after(5s));
    return read_all(connection);
  }
  // Does the same after an upgrade to the agents' WebSocket.
  std::string exchange_frames(const std::string& bytes) {
    const UniqueFd connection = upgrade();
    send_all(connection.get(), bytes.data(), bytes.size(), Deadline::after(5s));
    return read_all(connection);
  }
  // An agent's connection on which nothing was said yet.
  UniqueFd upgrade(const std::string& greeting = kUpgrade) {
    UniqueFd connection = connect();
    send_all(connection.get(), greeting.data(), greeting.size(), Deadline::after(5s));
    std::string answer;
    while (answer.find("\r\n\r\n") == std::string::npos) {
      char byte = 0;
      receive_all(connection.get(), &byte, 1, Deadline::after(5s));
      answer += byte;
    }
    return connection;
  }
  UniqueFd connect() {
    return connect_to(Endpoint{.host = "127.0.0.1", .port = port}, Deadline::after(5s));
  }
  static std::string read_all(const UniqueFd& connection) {
    std::string all;
    char byte = 0;
    try {
      for (;;) {
        receive_all(connection.get(), &byte, 1, Deadline::after(5s));
        all += byte;
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kTimeout) all += "<still open>";
    }
    return all;
  }

  std::uint16_t port = 0;

 private:
  void serve(const DaemonOptions& options, const std::string& host = "127.0.0.1") {
    lines().clear();
    set_log_level(LogLevel::kInfo);
    set_log_sink([](LogLevel, std::string_view text) { lines().emplace_back(text); });
    daemon_ =
        std::make_unique<Daemon>(io_, bind_endpoint(Endpoint{.host = host, .port = 0}), options);
    port = daemon_->port();
    thread_ = std::thread([this] { io_.run(); });
  }

  boost::asio::io_context io_{1};
  std::unique_ptr<Daemon> daemon_;
  std::thread thread_;
};

// A masked (key 0) text frame, as a client sends it.
inline std::string text_frame(const std::string& text) {
  std::string frame = "\x81";
  if (text.size() < 126) {
    frame += static_cast<char>(0x80 | text.size());
  } else {
    frame += static_cast<char>(0x80 | 126);
    frame += static_cast<char>(text.size() >> 8);
    frame += static_cast<char>(text.size() & 255);
  }
  frame += std::string(4, '\0');
  return frame + text;
}

}  // namespace ddprun::rendezvous::testing
