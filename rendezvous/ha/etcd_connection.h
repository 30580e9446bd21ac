// SPDX-License-Identifier: Apache-2.0
// One HTTP/1.1 connection to one etcd's JSON gateway, kept open between requests. Blocking; one
// thread at a time.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/error.h"
#include "rendezvous/ha/blocking_io.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/security/wire.h"

namespace ddprun::ha {

// What went wrong with one endpoint: "connection refused". Others may do better.
class EndpointTrouble : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An answer, or a stream as a whole, of more than there is a limit for.
class AnswerTooLong : public Error {
 public:
  explicit AnswerTooLong(const std::string& what) : Error(ErrorCode::kProtocol, what) {}
};

// Every call throws EndpointTrouble, after which this object is of no use any more. So it is after
// Error(kProtocol): that is no HTTP; AnswerTooLong; Error(kAborted): io.cancel() was called.
class EtcdConnection {
 public:
  // Connects. `silence_limit`: what connecting, writing a request, and each wait for more of an
  // answer may take. `deadline`: all of it.
  EtcdConnection(BlockingIo& io, const Endpoint& endpoint, const security::TlsContext& tls,
                 std::chrono::milliseconds silence_limit, Deadline deadline);
  ~EtcdConnection();
  EtcdConnection(const EtcdConnection&) = delete;
  EtcdConnection& operator=(const EtcdConnection&) = delete;

  struct Answer {
    unsigned status = 0;
    std::string body;
  };
  Answer post(const std::string& path, const std::string& body, Deadline deadline);
  // Whether the other side ended the connection before anything of the last post()'s answer was
  // there.
  bool ended_unanswered() const { return ended_unanswered_; }
  bool is_reusable() const { return reusable_; }

  // An answer that goes on: its status, then its lines, one by one. nullopt: `deadline` has passed;
  // a line may take until then, whatever `silence_limit` is. Nothing else can be asked afterwards.
  unsigned begin_stream(const std::string& path, const std::string& body, Deadline deadline);
  std::optional<std::string> next_line(Deadline deadline);

  static constexpr std::size_t kMaxBodyBytes = std::size_t{32} << 20;
  static constexpr std::size_t kMaxStreamBytes = std::size_t{1} << 20;

 private:
  void connect(const security::TlsContext& tls, Deadline deadline);
  void send(const std::string& path, const std::string& body, std::size_t max_answer,
            Deadline deadline);
  // False: `deadline` passed.
  bool read_some(Deadline deadline);
  Deadline soon(Deadline deadline) const;
  template <typename Begin>
  std::optional<boost::system::error_code> wait(const Begin& begin, Deadline limit);
  template <typename Begin>
  void wait_or_fail(const Begin& begin, Deadline limit);
  [[noreturn]] void fail(const boost::system::error_code& error);
  [[noreturn]] void fail_silent();

  BlockingIo& io_;
  const Endpoint endpoint_;
  const std::chrono::milliseconds silence_limit_;
  security::Wire wire_;
  http::AnswerReader answer_;
  bool reusable_ = true;
  bool ended_unanswered_ = false;
  std::chrono::milliseconds waited_{0};  // in vain
};

}  // namespace ddprun::ha
