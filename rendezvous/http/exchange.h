// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 over a Wire, for either side. Only the source uses Beast. A header has at most 8,192
// bytes and 100 fields. These limits are needed: Beast's own one counts only unparsed bytes, and
// small fields take much more memory than their bytes. I/O thread only.
#pragma once

#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/security/wire.h"

namespace ddprun::http {

inline constexpr unsigned kSwitchingProtocols = 101, kOk = 200, kBadRequest = 400,
                          kUnauthorized = 401, kForbidden = 403, kNotFound = 404,
                          kMethodNotAllowed = 405, kUpgradeRequired = 426,
                          kServiceUnavailable = 503;

// The fields of a header, in their order. The case of names is ignored.
class Fields {
 public:
  void add(std::string_view name, std::string_view value) { all_.emplace_back(name, value); }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // Returns the first such field's value; "" if there is none.
  std::string_view operator[](std::string_view name) const {
    const std::string* value = find(name);
    return value == nullptr ? std::string_view() : *value;
  }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  const std::string* find(std::string_view name) const;

  std::vector<std::pair<std::string, std::string>> all_;
};

struct Request {
  std::string method, target;
  Fields fields;
  std::string body;
  bool is_upgrade = false;  // to WebSocket
};

struct Response {
  unsigned status = 0;
  Fields fields;
  std::string body;
};

inline constexpr std::size_t kMaxHeaderBytes = 8192;

using Done = std::function<void(boost::system::error_code)>;

// A server's side: one request, one answer. The object must live until `done` is called.
class ServerExchange {
 public:
  // The limits of a body's own bytes, and of all bytes received for the request (chunks have
  // frames).
  struct Limit {
    std::uint64_t max_bytes;
    std::size_t max_received;
  };
  explicit ServerExchange(security::Wire its);
  ~ServerExchange();

  // Calls `limit` when the header has come, before the body is read; if `limit` is empty, no body
  // is read. `done` gets asio::error::eof if the connection ended before any byte of a request.
  void async_read(std::function<Limit(const Request&)> limit, Done done);
  bool has_more() const;  // bytes came after the request
  // Sends the answer, with Content-Length and "Connection: close".
  void async_answer(Response response, Done done);

  security::Wire wire;  // may be moved out after an upgrade
  Request request;

 private:
  struct Beast;
  void read(Done done);
  void parse(boost::system::error_code& error);

  const std::unique_ptr<Beast> beast_;
};

// Returns a request's text. GET has no body.
std::string request_text(std::string_view method, std::string_view target, std::string_view host,
                         const Fields& fields, std::string_view body);

// A client's side: reads one answer after the other.
class AnswerReader {
 public:
  AnswerReader();
  ~AnswerReader();

  // Begins the next answer, with a body of at most `max_bytes`.
  void begin(std::uint64_t max_bytes);
  // Reads some bytes of it. This object and `wire` must live until `done` is called.
  void async_read_some(security::Wire& wire, Done done);

  bool has_header() const;
  bool is_done() const;
  bool keeps_alive() const;  // another request may follow
  unsigned status() const;
  std::string& body();  // the part that has come
  Response take();      // called once is_done()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Kinds of errors of an answer or a request.
enum class Trouble {
  kEnded,    // the connection ended before any byte of it
  kCut,      // the connection ended in the middle of it
  kTooLong,  // the body exceeds its limit
  kNoHttp,
  kOther,  // an error of the connection, not of HTTP
};
Trouble trouble_of(const boost::system::error_code& error);

}  // namespace ddprun::http
