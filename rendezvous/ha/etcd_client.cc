// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/etcd_client.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/blocking_io.h"
#include "rendezvous/ha/etcd_codec.h"
#include "rendezvous/ha/etcd_connection.h"

namespace ddprun::ha {
namespace {

constexpr std::chrono::milliseconds kPause{50};  // before all endpoints are tried again
constexpr std::int64_t kFirstPage = 16, kLastPage = 512;
constexpr std::size_t kFullPageBytes = std::size_t{1} << 20;  // a page is not made longer then
constexpr int kMaxReads = 3;  // of all pages, where etcd's history was cut off meanwhile

}  // namespace

class EtcdClient::Impl {
 public:
  explicit Impl(EtcdOptions options) : options_(std::move(options)) {
    DDPRUN_CHECK(!options_.endpoints.empty());
  }

  // `parse` makes the call's result of the answer's body.
  template <typename Parse>
  auto ask(const char* path, const std::string& body, Parse parse)
      -> decltype(parse(std::string_view())) {
    return ask(path, body, Deadline::after(options_.call_limit), parse);
  }
  // Ends at `limit`, too.
  template <typename Parse>
  auto ask_until(Deadline limit, const char* path, const std::string& body, Parse parse)
      -> decltype(parse(std::string_view())) {
    const Deadline own = Deadline::after(options_.call_limit);
    return ask(path, body, own.at() < limit.at() ? own : limit, parse);
  }
  std::vector<KeyValue> read_pages(const std::string& prefix);
  void await_erased(const std::string& key, std::int64_t after_revision, Deadline deadline);
  void cancel() { io_.cancel(); }

 private:
  template <typename Parse>
  auto ask(const char* path, const std::string& body, Deadline deadline, Parse parse)
      -> decltype(parse(std::string_view()));
  std::string exchange(const char* path, const std::string& body, Deadline deadline);
  // Whether it was erased by `deadline`; false, too, where etcd can't tell any more.
  bool watch(const std::string& key, std::int64_t from_revision, Deadline deadline);
  void connect(Deadline deadline);
  void leave_endpoint();
  std::string at_endpoint(const std::string& trouble) const;
  void pause(Deadline deadline);
  void check_cancelled() const;

  const EtcdOptions options_;
  BlockingIo io_;
  std::size_t current_ = 0;  // of endpoints: the one that answered last
  std::unique_ptr<EtcdConnection> connection_;
};

namespace {

[[noreturn]] void refuse(unsigned status, const std::string& body) {
  std::optional<EtcdRefusal> refusal;
  try {
    refusal.emplace(parse_refusal(body));
  } catch (const Error&) {
    if (status >= 500) throw EndpointTrouble(concat("HTTP ", status));
    throw Error(ErrorCode::kProtocol,
                concat("HTTP ", status, ": what listens there is no etcd of version 3.4 or later"));
  }
  throw EtcdRefusal(refusal->grpc_code(), concat(refusal->what(), " (HTTP ", status, ")"));
}

}  // namespace

template <typename Parse>
auto EtcdClient::Impl::ask(const char* path, const std::string& body, Deadline deadline,
                           Parse parse) -> decltype(parse(std::string_view())) {
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

std::string EtcdClient::Impl::exchange(const char* path, const std::string& body,
                                       Deadline deadline) {
  check_cancelled();
  std::optional<EtcdConnection::Answer> answer;
  if (connection_ && connection_->is_reusable()) {
    try {
      answer = connection_->post(path, body, deadline);
    } catch (const EndpointTrouble&) {
      // It may have been closed while it was idle.
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

std::vector<KeyValue> EtcdClient::Impl::read_pages(const std::string& prefix) {
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

void EtcdClient::Impl::await_erased(const std::string& key, std::int64_t after_revision,
                                    Deadline deadline) {
  while (!deadline.expired()) {
    RangeAnswer now;
    const Deadline limit = Deadline::after(options_.call_limit);
    try {
      now = ask("/v3/kv/range", range_request(key), limit.at() < deadline.at() ? limit : deadline,
                parse_range);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnavailable && deadline.expired()) return;
      throw;
    }
    if (now.keys.empty() || now.keys.front().create_revision > after_revision) return;
    try {
      if (watch(key, now.revision + 1, deadline)) return;
    } catch (const EndpointTrouble&) {
      leave_endpoint();
      pause(deadline);
    }
  }
}

bool EtcdClient::Impl::watch(const std::string& key, std::int64_t from_revision,
                             Deadline deadline) {
  if (!connection_->is_reusable()) connect(deadline);
  // Of no use for anything else afterwards.
  const std::unique_ptr<EtcdConnection> connection = std::move(connection_);
  const unsigned status =
      connection->begin_stream("/v3/watch", erasures_request(key, from_revision), deadline);
  if (status != 200) throw EndpointTrouble(concat("HTTP ", status));
  try {
    while (const auto line = connection->next_line(deadline)) {
      const WatchNews news = parse_watch(*line);
      if (news.erased) return true;
      if (news.cancelled) return false;
    }
  } catch (const EtcdRefusal& refusal) {
    throw EndpointTrouble(refusal.what());
  }
  return false;
}

void EtcdClient::Impl::connect(Deadline deadline) {
  connection_.reset();
  connection_ = std::make_unique<EtcdConnection>(io_, options_.endpoints[current_], options_.tls,
                                                 options_.request_limit, deadline);
}

void EtcdClient::Impl::leave_endpoint() {
  connection_.reset();
  current_ = (current_ + 1) % options_.endpoints.size();
}

std::string EtcdClient::Impl::at_endpoint(const std::string& trouble) const {
  return concat("etcd: ", to_string(options_.endpoints[current_]), ": ", trouble);
}

void EtcdClient::Impl::pause(Deadline deadline) {
  const Deadline end(std::min(deadline.at(), Clock::now() + kPause));
  io_.run_until([] { return false; }, end);
  check_cancelled();
}

void EtcdClient::Impl::check_cancelled() const {
  if (io_.is_cancelled()) throw Error(ErrorCode::kAborted, "etcd: the call was cancelled");
}

EtcdClient::EtcdClient(EtcdOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

EtcdClient::~EtcdClient() = default;

std::int64_t EtcdClient::grant_lease(std::chrono::seconds ttl) {
  return impl_->ask("/v3/lease/grant", grant_request(ttl.count()), parse_grant);
}

bool EtcdClient::keep_alive(std::int64_t lease, Deadline limit) {
  return impl_->ask_until(limit, "/v3/lease/keepalive", lease_request(lease), parse_keep_alive);
}

void EtcdClient::revoke(std::int64_t lease) {
  try {
    impl_->ask("/v3/lease/revoke", lease_request(lease), parse_revoke);
  } catch (const EtcdRefusal& refusal) {
    if (!refusal.is_not_found()) throw;
  }
}

TxnResult EtcdClient::change_if(const std::vector<Guard>& guards,
                                const std::vector<KeyChange>& changes) {
  return impl_->ask("/v3/kv/txn", txn_request(guards, changes),
                    [&](std::string_view answer) { return parse_txn(answer, guards.size()); });
}

std::optional<KeyValue> EtcdClient::get(const std::string& key) {
  RangeAnswer found = impl_->ask("/v3/kv/range", range_request(key), parse_range);
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

void EtcdClient::await_erased(const std::string& key, std::int64_t after_revision,
                              Deadline deadline) {
  impl_->await_erased(key, after_revision, deadline);
}

void EtcdClient::cancel() { impl_->cancel(); }

}  // namespace ddprun::ha
