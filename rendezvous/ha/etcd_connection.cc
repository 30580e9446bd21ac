// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/etcd_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <utility>

#include "common/log.h"

namespace ddprun::ha {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

EtcdConnection::EtcdConnection(BlockingIo& io, const Endpoint& endpoint,
                               const security::TlsContext& tls,
                               std::chrono::milliseconds silence_limit, Deadline deadline)
    : io_(io), endpoint_(endpoint), silence_limit_(silence_limit), wire_(tcp::socket(io.io())) {
  connect(tls, soon(deadline));
}

EtcdConnection::~EtcdConnection() { wire_.close(); }

Deadline EtcdConnection::soon(Deadline deadline) const {
  return Deadline(std::min(deadline.at(), Clock::now() + silence_limit_));
}

// nullopt: `limit` passed, and the connection is closed.
template <typename Begin>
std::optional<error_code> EtcdConnection::wait(const Begin& begin, Deadline limit) {
  std::optional<error_code> result;
  const Clock::time_point begun = Clock::now();
  const auto is_done = [&result] { return result.has_value(); };
  begin([&result](error_code error, const auto&...) { result = error; });
  if (!io_.run_until(is_done, limit)) {
    wire_.close();
    io_.drain(is_done);
    waited_ = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
    if (io_.is_cancelled()) throw Error(ErrorCode::kAborted, "etcd: the call was cancelled");
    return std::nullopt;
  }
  return result;
}

template <typename Begin>
void EtcdConnection::wait_or_fail(const Begin& begin, Deadline limit) {
  const auto error = wait(begin, limit);
  if (!error) fail_silent();
  if (*error) fail(*error);
}

void EtcdConnection::connect(const security::TlsContext& tls, Deadline deadline) {
  NameLookup found;
  try {
    found = io_.look_up(endpoint_, deadline);
  } catch (const Error& error) {
    found.failure = error.what();
  }
  if (io_.is_cancelled()) throw Error(ErrorCode::kAborted, "etcd: the call was cancelled");
  if (found.addresses.empty()) throw EndpointTrouble(found.failure);
  std::vector<tcp::endpoint> targets;
  for (const SocketAddress& address : found.addresses) {
    tcp::endpoint& target = targets.emplace_back();
    target.resize(address.length);
    std::memcpy(target.data(), &address.storage, address.length);
  }
  wait_or_fail([&](auto done) { asio::async_connect(wire_.socket(), targets, std::move(done)); },
               deadline);
  error_code ignored;
  wire_.socket().set_option(tcp::no_delay(true), ignored);
  if (!tls) return;
  wait_or_fail([&](auto done) { wire_.async_connect_tls(tls, endpoint_.host, std::move(done)); },
               deadline);
}

void EtcdConnection::fail_silent() {
  ended_unanswered_ = false;
  throw EndpointTrouble(concat("no answer in ", waited_.count(), " ms"));
}

void EtcdConnection::fail(const error_code& error) {
  reusable_ = false;
  const http::Trouble trouble = http::trouble_of(error);
  if (trouble == http::Trouble::kTooLong) throw AnswerTooLong("an answer without end");
  if (const std::string of_tls = wire_.tls_trouble(error);
      !of_tls.empty() && error != asio::ssl::error::stream_truncated) {
    throw EndpointTrouble("TLS: " + of_tls);
  }
  const bool is_end = trouble == http::Trouble::kEnded || error == asio::error::eof ||
                      error == asio::error::connection_reset || error == asio::error::broken_pipe ||
                      error == asio::ssl::error::stream_truncated;
  if (is_end) throw EndpointTrouble("it ended the connection");
  if (trouble == http::Trouble::kCut) {
    throw EndpointTrouble("it ended the connection inside an answer");
  }
  if (trouble == http::Trouble::kNoHttp) {
    throw Error(ErrorCode::kProtocol, concat("no HTTP: ", error.message()));
  }
  if (error == asio::error::connection_refused) throw EndpointTrouble("connection refused");
  throw EndpointTrouble(one_line(error.message()));
}

void EtcdConnection::send(const std::string& path, const std::string& body, std::size_t max_answer,
                          Deadline deadline) {
  answer_.begin(max_answer);
  http::Fields fields;
  fields.add("Content-Type", "application/json");
  const std::string request = http::request_text("POST", path, to_string(endpoint_), fields, body);
  wait_or_fail([&](auto done) { asio::async_write(wire_, asio::buffer(request), std::move(done)); },
               soon(deadline));
}

bool EtcdConnection::read_some(Deadline deadline) {
  const auto error =
      wait([this](auto done) { answer_.async_read_some(wire_, std::move(done)); }, deadline);
  if (!error) return false;
  if (*error) fail(*error);
  return true;
}

EtcdConnection::Answer EtcdConnection::post(const std::string& path, const std::string& body,
                                            Deadline deadline) {
  ended_unanswered_ = true;
  reusable_ = false;
  send(path, body, kMaxBodyBytes, deadline);
  while (!answer_.is_done()) {
    if (!read_some(soon(deadline))) fail_silent();
    ended_unanswered_ = false;
  }
  ended_unanswered_ = false;
  reusable_ = answer_.keeps_alive();
  return {answer_.status(), std::move(answer_.body())};
}

unsigned EtcdConnection::begin_stream(const std::string& path, const std::string& body,
                                      Deadline deadline) {
  reusable_ = false;
  send(path, body, kMaxStreamBytes, deadline);
  while (!answer_.has_header()) {
    if (!read_some(soon(deadline))) fail_silent();
  }
  return answer_.status();
}

std::optional<std::string> EtcdConnection::next_line(Deadline deadline) {
  std::string& body = answer_.body();
  for (;;) {
    if (const auto end = body.find('\n'); end != std::string::npos) {
      std::string line = body.substr(0, end);
      body.erase(0, end + 1);
      if (!line.empty()) return line;
      continue;
    }
    if (answer_.is_done()) throw EndpointTrouble("it ended its answer");
    if (!read_some(deadline)) return std::nullopt;
  }
}

}  // namespace ddprun::ha
