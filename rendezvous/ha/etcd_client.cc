// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/etcd_client.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/write.hpp>
#include <functional>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/socket.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "rendezvous/asio/connect.h"
#include "rendezvous/ha/etcd_codec.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/security/wire.h"

namespace ddprun::ha {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::milliseconds kPause{50};  // before the next turn through all endpoints
constexpr std::int64_t kFirstPage = 16, kLastPage = 512;
constexpr std::size_t kFullPageBytes = std::size_t{1} << 20;  // pages of so many bytes don't grow
constexpr int kMaxReads = 3;  // of all pages, if etcd forgets the revision meanwhile

}  // namespace

// Runs Asio's operations one after another, for a thread that waits for each. Each operation has a
// time limit, and any thread can cancel it. One thread at a time, except for cancel().
class BlockingIo {
 public:
  BlockingIo() : work_(io_.get_executor()), door_(std::make_shared<Door>()) { door_->io = &io_; }

  ~BlockingIo() {
    const std::lock_guard lock(door_->mutex);
    door_->io = nullptr;
  }

  asio::io_context& io() { return io_; }

  // Runs the operation under way until `is_done`. Returns false if `limit` passed, or cancel() was
  // called, before.
  bool run_until(const std::function<bool()>& is_done, Deadline limit) {
    while (!is_done()) {
      if (cancelled_ || limit.expired()) return false;
      io_.run_one_until(limit.at());
    }
    return true;
  }

  // Runs the operation to its end, after the caller has closed its socket.
  void drain(const std::function<bool()>& is_done) {
    while (!is_done()) io_.run_one();
  }

  // Does the same as look_up() (common/socket.h), but cancel() ends it, without an address.
  NameLookup look_up(const Endpoint& endpoint, Deadline limit) {
    boost::system::error_code not_numeric;
    asio::ip::make_address(endpoint.host, not_numeric);
    if (!not_numeric) return ddprun::look_up(endpoint, limit);
    const auto answer = std::make_shared<std::optional<NameLookup>>();  // used by io_ only
    look_up_in_background(endpoint, [answer, door = door_](NameLookup found) {
      const std::lock_guard lock(door->mutex);
      if (door->io == nullptr) return;
      asio::post(*door->io, [answer, found = std::move(found)] { *answer = found; });
    });
    if (run_until([&] { return answer->has_value(); }, limit)) return **answer;
    return {{}, concat("can't resolve host name \"", endpoint.host, "\": no answer in time")};
  }

  // Any thread. Ends the present wait and all later ones.
  void cancel() {
    cancelled_ = true;
    asio::post(io_, [] {});  // wakes the waiting thread
  }

  // Throws Error(kAborted) after cancel().
  void check_cancelled() const {
    if (cancelled_) throw Error(ErrorCode::kAborted, "etcd: the call was cancelled");
  }

 private:
  // Takes the answer of a look-up's thread while the BlockingIo exists.
  struct Door {
    std::mutex mutex;
    asio::io_context* io = nullptr;  // guarded by mutex
  };

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  const std::shared_ptr<Door> door_;  // shared with look-ups that outlive this
  std::atomic<bool> cancelled_{false};
};

// A problem of one endpoint: "connection refused". Another endpoint may work.
class EndpointTrouble : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thrown if an answer, or a whole stream, is longer than its limit.
class AnswerTooLong : public Error {
 public:
  explicit AnswerTooLong(const std::string& what) : Error(ErrorCode::kProtocol, what) {}
};

// One HTTP/1.1 connection to one etcd's JSON gateway, kept open between requests. Blocking; one
// thread at a time. Every call may throw EndpointTrouble, AnswerTooLong, Error(kProtocol) if the
// answer is no HTTP, or Error(kAborted) after io.cancel(). After any of them this object can't be
// used any more.
class EtcdConnection {
 public:
  // Connects, at most until `deadline`. `silence_limit` applies to connecting, to writing a
  // request, and to each wait for more of an answer.
  EtcdConnection(BlockingIo& io, const Endpoint& endpoint, const security::TlsContext& tls,
                 std::chrono::milliseconds silence_limit, Deadline deadline)
      : io_(io), endpoint_(endpoint), silence_limit_(silence_limit), wire_(tcp::socket(io.io())) {
    connect(tls, soon(deadline));
  }

  ~EtcdConnection() { wire_.close(); }

  struct Answer {
    unsigned status = 0;
    std::string body;
  };

  Answer post(const std::string& path, const std::string& body, Deadline deadline) {
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

  // Returns whether the other side ended the connection before any byte of the last post()'s answer
  // came.
  bool ended_unanswered() const { return ended_unanswered_; }
  bool is_reusable() const { return reusable_; }

  // begin_stream() begins an endless answer and returns its status; next_line() returns its lines.
  // nullopt: `deadline` has passed; `silence_limit` doesn't apply to lines. Afterwards the
  // connection takes no further request.
  unsigned begin_stream(const std::string& path, const std::string& body, Deadline deadline) {
    reusable_ = false;
    send(path, body, kMaxStreamBytes, deadline);
    while (!answer_.has_header()) {
      if (!read_some(soon(deadline))) fail_silent();
    }
    return answer_.status();
  }

  std::optional<std::string> next_line(Deadline deadline) {
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

  static constexpr std::size_t kMaxBodyBytes = std::size_t{32} << 20;
  static constexpr std::size_t kMaxStreamBytes = std::size_t{1} << 20;

 private:
  void connect(const security::TlsContext& tls, Deadline deadline) {
    NameLookup found;
    try {
      found = io_.look_up(endpoint_, deadline);
    } catch (const Error& error) {
      found.failure = error.what();
    }
    io_.check_cancelled();
    if (found.addresses.empty()) throw EndpointTrouble(found.failure);
    const auto connect = [&](auto done) {
      connect_to_first(wire_.socket(), endpoints_of(found.addresses), std::move(done));
    };
    wait_or_fail(connect, deadline);
    error_code ignored;
    wire_.socket().set_option(tcp::no_delay(true), ignored);
    if (!tls) return;
    end_means_ = " in the TLS handshake: an etcd without TLS does that";
    wait_or_fail([&](auto done) { wire_.async_connect_tls(tls, endpoint_.host, std::move(done)); },
                 deadline);
    end_means_ =
        " before it answered: an etcd that doesn't trust --ha-cert's certificate does that";
  }

  void send(const std::string& path, const std::string& body, std::size_t max_answer,
            Deadline deadline) {
    answer_.begin(max_answer);
    http::Fields fields;
    fields.add("Content-Type", "application/json");
    const std::string request =
        http::request_text("POST", path, to_string(endpoint_), fields, body);
    wait_or_fail(
        [&](auto done) { asio::async_write(wire_, asio::buffer(request), std::move(done)); },
        soon(deadline));
  }

  // Returns false if `deadline` passed.
  bool read_some(Deadline deadline) {
    const auto error =
        wait([this](auto done) { answer_.async_read_some(wire_, std::move(done)); }, deadline);
    if (!error) return false;
    if (*error) fail(*error);
    end_means_ = "";
    return true;
  }

  Deadline soon(Deadline deadline) const {
    return Deadline(std::min(deadline.at(), Clock::now() + silence_limit_));
  }

  // Returns the operation's result. nullopt: `limit` passed, and the connection is closed.
  template <typename Begin>
  std::optional<error_code> wait(const Begin& begin, Deadline limit) {
    std::optional<error_code> result;
    const Clock::time_point begun = Clock::now();
    const auto is_done = [&result] { return result.has_value(); };
    begin([&result](error_code error, const auto&...) { result = error; });
    if (!io_.run_until(is_done, limit)) {
      wire_.close();
      io_.drain(is_done);
      waited_ = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
      io_.check_cancelled();
      return std::nullopt;
    }
    return result;
  }

  template <typename Begin>
  void wait_or_fail(const Begin& begin, Deadline limit) {
    const auto error = wait(begin, limit);
    if (!error) fail_silent();
    if (*error) fail(*error);
  }

  [[noreturn]] void fail(const error_code& error) {
    reusable_ = false;
    const http::Trouble trouble = http::trouble_of(error);
    if (trouble == http::Trouble::kTooLong) throw AnswerTooLong("an answer without end");
    if (const std::string of_tls = wire_.tls_trouble(error);
        !of_tls.empty() && error != asio::ssl::error::stream_truncated) {
      throw EndpointTrouble("TLS: " + of_tls);
    }
    const bool is_end = trouble == http::Trouble::kEnded || error == asio::error::eof ||
                        error == asio::error::connection_reset ||
                        error == asio::error::broken_pipe ||
                        error == asio::ssl::error::stream_truncated;
    if (is_end) throw EndpointTrouble(concat("it ended the connection", end_means_));
    if (trouble == http::Trouble::kCut) {
      throw EndpointTrouble("it ended the connection inside an answer");
    }
    if (trouble == http::Trouble::kNoHttp) {
      throw_error(ErrorCode::kProtocol, "no HTTP: ", error.message());
    }
    if (error == asio::error::connection_refused) throw EndpointTrouble("connection refused");
    throw EndpointTrouble(one_line(error.message()));
  }

  [[noreturn]] void fail_silent() {
    ended_unanswered_ = false;
    throw EndpointTrouble(concat("no answer in ", waited_.count(), " ms"));
  }

  BlockingIo& io_;
  const Endpoint endpoint_;
  const std::chrono::milliseconds silence_limit_;
  security::Wire wire_;
  http::AnswerReader answer_;
  bool reusable_ = true;
  bool ended_unanswered_ = false;
  // The likely reason if etcd ends the connection now; empty once it has answered.
  const char* end_means_ = " before it answered: an etcd that wants TLS does that (--ha-ca)";
  std::chrono::milliseconds waited_{0};  // the time of the last wait without an answer
};

namespace {

[[noreturn]] void refuse(unsigned status, const std::string& body) {
  std::optional<EtcdRefusal> refusal;
  try {
    refusal.emplace(parse_refusal(body));
  } catch (const Error&) {
    if (status >= 500) throw EndpointTrouble(concat("HTTP ", status));
    throw_error(ErrorCode::kProtocol, "HTTP ", status,
                ": what listens there is no etcd of version 3.4 or later");
  }
  throw EtcdRefusal(refusal->grpc_code(), concat(refusal->what(), " (HTTP ", status, ")"));
}

}  // namespace

class EtcdClient::Impl {
 public:
  explicit Impl(EtcdOptions options) : options_(std::move(options)) {
    DDPRUN_CHECK(!options_.endpoints.empty());
  }

  // `parse` turns the answer's body into the call's result. The call also ends at `limit`.
  template <typename Parse>
  auto ask(const char* path, const std::string& body, Parse parse,
           Deadline limit = Deadline::after(std::chrono::hours(1))) {
    const Deadline deadline(std::min(limit.at(), Clock::now() + options_.call_limit));
    for (;;) {
      std::string troubles;
      bool all_protocol = true;
      for (std::size_t i = 0; i < options_.endpoints.size(); ++i) {
        std::string trouble;
        try {
          return parse(exchange(path, body, deadline));
        } catch (const EtcdRefusal& refusal) {
          trouble = refusal.what();
          all_protocol = false;
          if (!refusal.is_passing()) throw EtcdRefusal(refusal.grpc_code(), at_endpoint(trouble));
        } catch (const EndpointTrouble& error) {
          trouble = error.what();
          all_protocol = false;
        } catch (const AnswerTooLong& error) {
          trouble = at_endpoint(error.what());
          leave_endpoint();
          throw AnswerTooLong(trouble);
        } catch (const Error& error) {
          trouble = error.what();
          if (error.code() != ErrorCode::kProtocol) throw;
        }
        troubles += concat(troubles.empty() ? "etcd: " : "; ",
                           to_string(options_.endpoints[current_]), ": ", trouble);
        leave_endpoint();
        if (deadline.expired()) break;
      }
      if (all_protocol) throw Error(ErrorCode::kProtocol, troubles);
      pause(deadline);
      if (deadline.expired()) throw Error(ErrorCode::kUnavailable, troubles);
    }
  }

  std::vector<KeyValue> read_pages(const std::string& prefix) {
    const std::string end = end_of_prefix(prefix);
    std::vector<KeyValue> keys;
    std::string from = prefix;
    std::int64_t revision = 0, page = kFirstPage;
    for (;;) {
      RangeAnswer part;
      std::size_t num_bytes = 0;
      try {
        part = ask("/v3/kv/range", range_request(from, end, page, revision),
                   [&](std::string_view answer) {
                     num_bytes = answer.size();
                     return parse_range(answer);
                   });
      } catch (const AnswerTooLong&) {
        if (page == 1) throw;
        page = std::max<std::int64_t>(page / 8, 1);
        continue;
      }
      if (part.more && (part.keys.empty() || part.keys.back().key < from)) {
        throw Error(ErrorCode::kProtocol, at_endpoint("its pages don't end"));
      }
      revision = revision == 0 ? part.revision : revision;
      std::move(part.keys.begin(), part.keys.end(), std::back_inserter(keys));
      if (!part.more) return keys;
      from = keys.back().key + '\0';
      if (num_bytes < kFullPageBytes) page = std::min(page * 2, kLastPage);
      if (num_bytes > kFullPageBytes * 8) page = std::max<std::int64_t>(page / 2, 1);
    }
  }

  void await_erased(const std::string& key, std::int64_t after_revision, Deadline deadline) {
    while (!deadline.expired()) {
      RangeAnswer now;
      try {
        now = ask("/v3/kv/range", range_request(key), parse_range, deadline);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kUnavailable && deadline.expired()) return;
        throw;
      }
      if (now.keys.empty() || now.keys.front().create_revision > after_revision) return;
      try {
        if (watch(key, now.revision + 1, deadline)) return;
      } catch (const EndpointTrouble&) {
        leave_endpoint();
      }
      pause(deadline);
    }
  }

  void cancel() { io_.cancel(); }

 private:
  std::string exchange(const char* path, const std::string& body, Deadline deadline) {
    io_.check_cancelled();
    std::optional<EtcdConnection::Answer> answer;
    if (connection_ && connection_->is_reusable()) {
      try {
        answer = connection_->post(path, body, deadline);
      } catch (const EndpointTrouble&) {
        // etcd may have closed the connection while it was idle.
        if (!connection_->ended_unanswered() || deadline.expired()) throw;
      }
    }
    if (!answer) {
      connect(deadline);
      answer = connection_->post(path, body, deadline);
    }
    if (answer->status != 200) refuse(answer->status, answer->body);
    return std::move(answer->body);
  }

  // Returns whether `key` was erased by `deadline`; false also if etcd ended the watch.
  bool watch(const std::string& key, std::int64_t from_revision, Deadline deadline) {
    if (!connection_->is_reusable()) connect(deadline);
    // The connection can't be used after a watch.
    const std::unique_ptr<EtcdConnection> connection = std::move(connection_);
    try {
      const unsigned status =
          connection->begin_stream("/v3/watch", erasures_request(key, from_revision), deadline);
      if (status != 200) throw EndpointTrouble(concat("HTTP ", status));
      while (const auto line = connection->next_line(deadline)) {
        const WatchNews news = parse_watch(*line);
        if (news.erased) return true;
        if (news.cancelled) return false;
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kAborted) throw;
      throw EndpointTrouble(error.what());  // the caller asks for the key again
    }
    return false;
  }

  void connect(Deadline deadline) {
    connection_.reset();
    connection_ = std::make_unique<EtcdConnection>(io_, options_.endpoints[current_], options_.tls,
                                                   options_.request_limit, deadline);
  }

  void leave_endpoint() {
    connection_.reset();
    current_ = (current_ + 1) % options_.endpoints.size();
  }

  std::string at_endpoint(const std::string& trouble) const {
    return concat("etcd: ", to_string(options_.endpoints[current_]), ": ", trouble);
  }

  void pause(Deadline deadline) {
    const Deadline end(std::min(deadline.at(), Clock::now() + kPause));
    io_.run_until([] { return false; }, end);
    io_.check_cancelled();
  }

  const EtcdOptions options_;
  BlockingIo io_;
  std::size_t current_ = 0;  // index of the endpoint that answered last
  std::unique_ptr<EtcdConnection> connection_;
};

EtcdClient::EtcdClient(EtcdOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

EtcdClient::~EtcdClient() = default;

std::int64_t EtcdClient::grant_lease(std::chrono::seconds ttl) {
  return impl_->ask("/v3/lease/grant", grant_request(ttl.count()), parse_grant);
}

bool EtcdClient::keep_alive(std::int64_t lease, Deadline limit) {
  return impl_->ask("/v3/lease/keepalive", lease_request(lease), parse_keep_alive, limit);
}

void EtcdClient::revoke(std::int64_t lease) {
  try {
    impl_->ask("/v3/lease/revoke", lease_request(lease), parse_done);
  } catch (const EtcdRefusal& refusal) {
    if (!refusal.is_not_found()) throw;
  }
}

TxnResult EtcdClient::change_if(const std::vector<Guard>& guards,
                                const std::vector<KeyChange>& changes) {
  return impl_->ask("/v3/kv/txn", txn_request(guards, changes),
                    [&](std::string_view answer) { return parse_txn(answer, guards.size()); });
}

std::optional<KeyValue> EtcdClient::get(const std::string& key, Deadline limit) {
  RangeAnswer found = impl_->ask("/v3/kv/range", range_request(key), parse_range, limit);
  if (found.keys.empty()) return std::nullopt;
  return std::move(found.keys.front());
}

std::vector<KeyValue> EtcdClient::get_prefix(const std::string& prefix) {
  DDPRUN_CHECK(!prefix.empty());
  for (int read = 1;; ++read) {
    try {
      return impl_->read_pages(prefix);
    } catch (const EtcdRefusal& refusal) {
      if (!refusal.is_out_of_range() || read == kMaxReads) throw;
    }
  }
}

void EtcdClient::compact(std::int64_t revision) {
  try {
    impl_->ask("/v3/kv/compaction", compaction_request(revision), parse_done);
  } catch (const EtcdRefusal& refusal) {
    if (!refusal.is_out_of_range()) throw;  // another process has compacted
  }
}

void EtcdClient::await_erased(const std::string& key, std::int64_t after_revision,
                              Deadline deadline) {
  impl_->await_erased(key, after_revision, deadline);
}

void EtcdClient::cancel() { impl_->cancel(); }

}  // namespace ddprun::ha
