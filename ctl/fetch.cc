// SPDX-License-Identifier: Apache-2.0
#include "ctl/fetch.h"

#include <poll.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "common/error.h"
#include "common/log.h"
#include "common/socket.h"
#include "rendezvous/security/http_proof.h"

namespace ddprun::ctl {
namespace {

namespace http = boost::beast::http;

constexpr std::size_t kMaxAnswerBytes = std::size_t{64} << 20;

using Answer = http::response<http::string_body>;

// The rendezvous closes each connection after its answer.
std::string receive_to_the_end(int fd, Deadline deadline) {
  std::string all;
  std::array<char, 16384> part;
  for (;;) {
    const SocketStep step = receive_step(fd, part.data(), part.size());
    all.append(part.data(), step.num_bytes);
    if (!step.ended.empty()) return all;
    if (all.size() > kMaxAnswerBytes) throw Error(ErrorCode::kProtocol, "its answer is too large");
    if (step.num_bytes == 0 && !wait_ready(fd, POLLIN, deadline)) {
      throw Error(ErrorCode::kTimeout, "no answer in time");
    }
  }
}

Answer ask(const FetchOptions& options, const std::string& authorization, Deadline deadline) {
  const UniqueFd connection = connect_to(options.endpoint, deadline);
  const std::string request =
      concat("GET ", options.target, " HTTP/1.1\r\nHost: ", to_string(options.endpoint), "\r\n",
             authorization.empty() ? "" : concat("Authorization: ", authorization, "\r\n"), "\r\n");
  send_all(connection.get(), request.data(), request.size(), deadline);
  const std::string text = receive_to_the_end(connection.get(), deadline);
  http::response_parser<http::string_body> parser;
  parser.eager(true);
  parser.body_limit(kMaxAnswerBytes);
  boost::system::error_code error;
  parser.put(boost::asio::buffer(text), error);
  if (!error && !parser.is_done()) parser.put_eof(error);
  if (error || !parser.is_done()) {
    throw Error(ErrorCode::kProtocol, concat("what listens at ", to_string(options.endpoint),
                                             " is not a ddprun rendezvous"));
  }
  return parser.release();
}

std::string field(const Answer& answer, const char* name) {
  const auto value = answer[name];
  return {value.data(), value.size()};
}

[[noreturn]] void refuse(const FetchOptions& options, const std::string& what,
                         ErrorCode code = ErrorCode::kInvalidArgument) {
  throw Error(code, concat("the rendezvous at ", to_string(options.endpoint), " ", what));
}

std::string body_of(const FetchOptions& options, const Answer& answer) {
  if (answer.result() == http::status::ok) return answer.body();
  refuse(options, concat("answered HTTP ", answer.result_int()), ErrorCode::kProtocol);
}

}  // namespace

std::string fetch(const FetchOptions& options) {
  const Deadline deadline = Deadline::after(options.timeout);
  const Answer first = ask(options, "", deadline);
  if (first.result() != http::status::unauthorized) {
    if (options.token) refuse(options, "has no token, but this side has one (--token-file)");
    return body_of(options, first);
  }
  if (!options.token) refuse(options, "wants a token: give --token-file");
  security::HttpProof proof(options.token);
  Answer answer;
  try {
    const std::string given =
        proof.answer(field(first, "WWW-Authenticate"), {"GET", options.target, ""});
    answer = ask(options, given, deadline);
    if (answer.result() == http::status::unauthorized) {
      refuse(options,
             "refused this request: its token is another one (compare the --token-file of "
             "both)");
    }
    proof.check(field(answer, security::kAnswerHeader), answer.body());
  } catch (const Error& error) {
    const std::string what = error.what();
    if (error.code() != ErrorCode::kInvalidArgument || what.starts_with("the rendezvous")) throw;
    refuse(options, what);
  }
  return body_of(options, answer);
}

}  // namespace ddprun::ctl
