// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/pages/fetch.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <utility>

#include "common/clock.h"
#include "common/json.h"
#include "common/peer_user.h"
#include "common/socket.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "rendezvous/http/browser.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/security/proof.h"
#include "rendezvous/wire/standby_header.h"

namespace ddprun::pages {
namespace {

using boost::asio::ip::tcp;

constexpr std::size_t kMaxAnswerBytes = std::size_t{64} << 20;
constexpr std::size_t kMostReason = 200;  // bytes of a reason in messages

using Answer = http::Response;

// Returns "HTTP 502, \"<html>Bad gateway\"".
std::string shown_answer(const Answer& answer) {
  const std::string status = concat("HTTP ", answer.status);
  return answer.body.empty() ? status : concat(status, ", ", quoted_begin(answer.body));
}

[[noreturn]] void refuse(const FetchOptions& options, const std::string& what,
                         ErrorCode code = ErrorCode::kInvalidArgument) {
  throw Error(code, concat("the rendezvous at ", to_string(options.endpoint), " ", what));
}

// Makes one request on one connection.
class Exchange {
 public:
  // `has_secrets` says that this request, or one that follows, has secrets.
  Exchange(const FetchOptions& options, bool has_secrets, Deadline deadline)
      : options_(options), deadline_(deadline), wire_(connect()) {
    if ((has_secrets || options.is_acted_on) && !options.tls && !options.token) {
      const int socket = wire_.socket().native_handle();
      const std::string problem =
          has_secrets ? commander_problem(socket) : stranger_problem(socket);
      if (problem == kHiddenPeer) refuse(options, problem, ErrorCode::kUnavailable);
      if (!problem.empty()) refuse(options, problem);
    }
    if (!options.tls) return;
    wait([this](auto done) {
      wire_.async_connect_tls(options_.tls, options_.endpoint.host, std::move(done));
    });
  }

  std::string binding() const { return wire_.binding(); }

  // Without `has_body` it only asks for the challenge.
  Answer ask(const std::string& authorization, bool has_body) {
    http::Fields fields;
    if (!authorization.empty()) fields.add("Authorization", authorization);
    if (has_body && !options_.body.empty()) fields.add("Content-Type", "application/json");
    const std::string request =
        http::request_text(options_.method, options_.target,
                           http::host_field(options_.endpoint, wire_.socket().native_handle()),
                           fields, has_body ? options_.body : "");
    wait([&](auto done) {
      boost::asio::async_write(
          wire_, boost::asio::buffer(request),
          [done](boost::system::error_code error, std::size_t) { done(error); });
    });
    http::AnswerReader answer;
    answer.begin(kMaxAnswerBytes);
    while (!answer.is_done()) {
      wait([&](auto done) { answer.async_read_some(wire_, done); });
    }
    return answer.take();
  }

 private:
  tcp::socket connect() {
    UniqueFd fd = options_.is_patient ? connect_to(options_.endpoint, deadline_) : connect_now();
    const bool is_v6 = local_address(fd.get()).storage.ss_family == AF_INET6;
    return {io_, is_v6 ? tcp::v6() : tcp::v4(), fd.release()};
  }

  UniqueFd connect_now() {
    const NameLookup found = look_up(options_.endpoint, deadline_);
    std::string failure = found.failure;
    UniqueFd fd;
    if (!found.addresses.empty()) {
      fd = connect_to_any(found.addresses, deadline_.remaining(), deadline_, &failure);
    }
    if (fd) return fd;
    const std::string who = to_string(options_.endpoint);
    throw_error(ErrorCode::kUnavailable, "can't connect to ",
                failure.starts_with(who) ? "" : who + ": ", failure, options_.hint);
  }

  template <typename Begin>
  void wait(const Begin& begin) {
    std::optional<boost::system::error_code> result;
    begin([&result](boost::system::error_code error) { result = error; });
    io_.restart();
    io_.run_for(deadline_.remaining());
    if (!result) {
      wire_.close();
      io_.restart();
      io_.run();
      refuse(options_, "did not answer in time", ErrorCode::kTimeout);
    }
    if (!*result) return;
    const std::string trouble = wire_.tls_trouble(*result);
    if (!trouble.empty()) refuse(options_, "can't be trusted: " + trouble);
    const http::Trouble what = http::trouble_of(*result);
    if (what == http::Trouble::kNoHttp || what == http::Trouble::kTooLong) {
      throw foreign_answer(to_string(options_.endpoint), "no HTTP (" + result->message() + ")");
    }
    refuse(options_, "ended the connection", ErrorCode::kConnectionLost);
  }

  const FetchOptions& options_;
  const Deadline deadline_;
  boost::asio::io_context io_{1};
  security::Wire wire_;
};

std::string field(const Answer& answer, const char* name) {
  return std::string(answer.fields[name]);
}

Page page_of(const FetchOptions& options, const Answer& answer) {
  if (answer.fields.has(security::kTlsHeader)) refuse(options, "wants TLS: give --tls-ca");
  if (answer.fields.has(security::kOtherUserHeader)) {
    refuse(options, "serves programs of its own user and root alone");
  }
  const unsigned status = answer.status;
  if (status == 200 || status == 201 || (options.wants_refusals && status >= 400 && status < 500)) {
    return {answer.body, status, false,
            "",          "",     std::string(field(answer, "Content-Security-Policy"))};
  }
  if (answer.status == http::kServiceUnavailable && answer.fields.has(membership::kStandbyHeader)) {
    const auto leader = parse_endpoint(field(answer, membership::kStandbyHeader), 0);
    return {"", 503, true, leader && !leader->host.empty() ? to_string(*leader) : "", ""};
  }
  if (answer.status == http::kServiceUnavailable) {
    const std::string reason = answer.body.substr(0, kMostReason);
    refuse(options, concat("can't answer now: ", one_line(reason.substr(0, reason.find('\n')))),
           ErrorCode::kUnavailable);
  }
  if (answer.status == http::kNotFound && answer.body.starts_with("try /")) {
    refuse(options, concat("knows no ", options.target, ": it is older than this program"),
           ErrorCode::kProtocol);
  }
  throw foreign_answer(to_string(options.endpoint), shown_answer(answer));
}

// Handles an answer without a proof, although this side has a token. It is an answer that is sent
// before the token is checked, or it isn't ddprund's.
Page unproven_page(const FetchOptions& options, const Answer& answer) {
  const bool is_page = answer.status == http::kOk;
  if (is_page && answer.body.starts_with('{')) {
    refuse(options, "has no token, but this side has one (--token-file)");
  }
  const bool comes_before = answer.status == http::kServiceUnavailable ||
                            answer.status == http::kMethodNotAllowed ||
                            answer.fields.has(security::kTlsHeader);
  if (comes_before) return page_of(options, answer);
  throw foreign_answer(to_string(options.endpoint), shown_answer(answer));
}

// A submission has a job's environment, which another user's server must not get.
bool has_secrets(const FetchOptions& options) { return options.method != "GET"; }

Page fetch_now(const FetchOptions& options, bool is_secret) {
  // A server that wants a token reads no large body before the proof. So this asks without a body
  // first, and learns that.
  constexpr std::size_t kReadAnyway = 512;
  if (!options.token && options.body.size() > kReadAnyway) {
    FetchOptions probe = options;
    probe.method = "GET";
    probe.body.clear();
    Page page = fetch_now(probe, is_secret);
    if (page.is_standby || page.status >= 400) return page;
  }
  const Deadline deadline = Deadline::after(options.timeout);
  const Answer first = Exchange(options, is_secret, deadline).ask("", !options.token);
  if (first.status != http::kUnauthorized) {
    return options.token ? unproven_page(options, first) : page_of(options, first);
  }
  if (!field(first, "WWW-Authenticate").starts_with("DDPRUN")) {
    throw foreign_answer(to_string(options.endpoint), shown_answer(first));
  }
  if (!options.token) refuse(options, "wants a token: give --token-file");
  security::HttpProof proof(options.token);
  Answer answer;
  try {
    Exchange second(options, is_secret, deadline);
    const std::string binding = second.binding();
    const std::string given = proof.answer(field(first, "WWW-Authenticate"),
                                           {options.method, options.target, binding}, options.body);
    answer = second.ask(given, true);
    if (answer.status == http::kUnauthorized) {
      refuse(options,
             "refused this request: its token is another one (compare the --token-file of "
             "both)");
    }
    if (!answer.fields.has(security::kAnswerHeader)) return unproven_page(options, answer);
    proof.check(field(answer, security::kAnswerHeader), answer.status, answer.body);
  } catch (const Error& error) {
    const std::string what = error.what();
    if (error.code() != ErrorCode::kInvalidArgument || what.starts_with("the rendezvous")) throw;
    refuse(options, what);
  }
  return page_of(options, answer);
}

std::string standby_text(const Page& page) {
  return page.leader.empty() ? "a standby" : "a standby of " + page.leader;
}

// Throws if the page is neither a JSON object nor a refusal.
Page fetch_object(const FetchOptions& options) {
  Page page = fetch(options);
  const bool is_object = page.body.starts_with('{');
  if (is_object || page.is_standby || page.status >= 300) return page;
  throw foreign_answer(page.from, quoted_begin(page.body));
}

Page fetch_one(const FetchOptions& options) {
  Page page = fetch_object(options);
  if (!page.is_standby) return page;
  throw_error(ErrorCode::kUnavailable, "the rendezvous at ", to_string(options.endpoint), " is ",
              standby_text(page), ", which has no ", options.target, ": name all endpoints");
}

// Turns a standby's own status page into an answer of a standby.
Page without_standbys_status(Page page) {
  const auto object = parse_object(page.body);
  const auto* role = object ? object->if_contains("role") : nullptr;
  if (role == nullptr || !role->is_string() || role->get_string() != "standby") return page;
  const auto* leader = object->if_contains("leader");
  const bool is_known = leader != nullptr && leader->is_string();
  return {"", 503, true, is_known ? std::string(leader->get_string()) : "", page.from};
}

}  // namespace

std::string quoted_begin(std::string_view words) {
  constexpr std::size_t kMostShown = 60;
  return concat("\"", one_line(words.substr(0, kMostShown)), "\"");
}

Error foreign_answer(const std::string& from, const std::string& what) {
  return {ErrorCode::kProtocol,
          concat(from, " answered with something that isn't ddprund's: ", what)};
}

Page fetch(const FetchOptions& options) {
  Page page = fetch_now(options, has_secrets(options));
  page.from = to_string(options.endpoint);
  return page;
}

// Each endpoint has at most options.timeout, and at most an even share of the time left for all.
Page ask_leader(FetchOptions options, const std::vector<Endpoint>& endpoints) {
  if (endpoints.size() == 1) {
    options.endpoint = endpoints.front();
    return fetch_one(options);
  }
  options.is_patient = false;
  std::string answers;
  const std::chrono::milliseconds most = options.timeout;
  auto num_left = static_cast<int>(endpoints.size());
  const Deadline deadline =
      Deadline::after(options.limit.count() > 0 ? options.limit : most * num_left);
  for (const Endpoint& endpoint : endpoints) {
    options.endpoint = endpoint;
    const auto share =
        std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()) / num_left--;
    options.timeout = std::min(most, share);
    std::string what;
    try {
      Page page = without_standbys_status(fetch_object(options));
      if (!page.is_standby) return page;
      what = concat(to_string(endpoint), " is ", standby_text(page));
    } catch (const Error& error) {
      const bool is_away =
          error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kTimeout ||
          error.code() == ErrorCode::kConnectionLost || error.code() == ErrorCode::kProtocol;
      if (!is_away) throw;
      what = error.what();
    }
    answers += (answers.empty() ? "" : "; ") + what;
  }
  throw_error(ErrorCode::kUnavailable, "no rendezvous leads: ", answers);
}

std::string fetch_from_leader(const FetchOptions& options, const std::vector<Endpoint>& endpoints) {
  return ask_leader(options, endpoints).body;
}

}  // namespace ddprun::pages
