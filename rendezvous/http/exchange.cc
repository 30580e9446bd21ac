// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/http/exchange.h"

#include <boost/asio/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <iterator>
#include <optional>

#include "common/text.h"

namespace ddprun::http {

namespace beast = boost::beast;
using boost::system::error_code;

namespace {

constexpr std::ptrdiff_t kMaxHeaderFields = 100;  // with those after a chunked body
constexpr std::size_t kReadBytes = 2048;
constexpr std::size_t kMaxBufferedBytes = 128 << 10;  // of unparsed bytes

// `num_read` is the number of bytes that Beast's parser got.
template <typename Parser>
bool is_header_too_long(const Parser& parser, std::size_t num_read) {
  const auto& fields = parser.get();
  return (!parser.is_header_done() && num_read > kMaxHeaderBytes) ||
         std::distance(fields.begin(), fields.end()) > kMaxHeaderFields;
}

std::string_view std_view(beast::string_view text) { return {text.data(), text.size()}; }
beast::string_view beast_view(std::string_view text) { return {text.data(), text.size()}; }

Fields fields_of(const beast::http::fields& all) {
  Fields fields;
  for (const auto& each : all) fields.add(std_view(each.name_string()), std_view(each.value()));
  return fields;
}

}  // namespace

const std::string* Fields::find(std::string_view name) const {
  for (const auto& [own, value] : all_) {
    if (beast::iequals(beast_view(own), beast_view(name))) return &value;
  }
  return nullptr;
}

struct ServerExchange::Beast {
  beast::flat_buffer buffer;
  beast::http::request_parser<beast::http::string_body> parser;
  std::function<Limit(const Request&)> limit;
  std::size_t num_read = 0, max_received = kMaxHeaderBytes + kReadBytes;  // bytes
  beast::http::response<beast::http::string_body> response;
};

ServerExchange::ServerExchange(security::Wire its)
    : wire(std::move(its)), beast_(std::make_unique<Beast>()) {
  beast_->parser.header_limit(static_cast<std::uint32_t>(kMaxHeaderBytes));
  beast_->parser.body_limit(boost::none);  // `limit` decides
}
ServerExchange::~ServerExchange() = default;

bool ServerExchange::has_more() const { return beast_->buffer.size() != 0; }

void ServerExchange::async_read(std::function<Limit(const Request&)> limit, Done done) {
  beast_->limit = std::move(limit);
  read(std::move(done));
}

// Doesn't use Beast's async_read(), whose limit counts only unparsed bytes.
void ServerExchange::read(Done done) {
  wire.async_read_some(
      beast_->buffer.prepare(kReadBytes),
      [this, done = std::move(done)](error_code error, std::size_t num_bytes) mutable {
        beast_->buffer.commit(num_bytes);
        beast_->num_read += num_bytes;
        if (error == boost::asio::error::eof && beast_->num_read > 0) {
          error = beast::http::error::partial_message;
        }
        if (!error) parse(error);
        const auto& parser = beast_->parser;
        const bool is_done = beast_->limit ? parser.is_done() : parser.is_header_done();
        if (!error && !is_done) return read(std::move(done));
        request.body = std::move(beast_->parser.get().body());
        done(error);
      });
}

void ServerExchange::parse(error_code& error) {
  auto& parser = beast_->parser;
  const auto& message = parser.get();
  const auto put = [&] { beast_->buffer.consume(parser.put(beast_->buffer.data(), error)); };
  put();
  if (!error && parser.is_header_done() && request.method.empty()) {
    request = {std::string(std_view(message.method_string())),
               std::string(std_view(message.target())), fields_of(message), "",
               beast::websocket::is_upgrade(message)};
    if (beast_->limit) {
      const Limit limit = beast_->limit(request);
      beast_->max_received = limit.max_received;
      parser.eager(true);
      const auto length = parser.content_length();
      if (length && *length > limit.max_bytes) error = beast::http::error::body_limit;
      parser.body_limit(limit.max_bytes);
      if (!error && !parser.is_done()) put();
    }
  }
  if (error == beast::http::error::need_more) error = {};
  const bool is_too_long =
      beast_->num_read > beast_->max_received || is_header_too_long(parser, beast_->num_read);
  if (!error && is_too_long) error = beast::http::error::header_limit;
}

void ServerExchange::async_answer(Response response, Done done) {
  auto& message = beast_->response;
  message.result(response.status);
  message.version(11);
  for (const auto& [name, value] : response.fields)
    message.set(beast_view(name), beast_view(value));
  message.keep_alive(false);
  message.body() = std::move(response.body);
  message.prepare_payload();
  beast::http::async_write(
      wire, message, [done = std::move(done)](error_code error, std::size_t) { done(error); });
}

std::string request_text(std::string_view method, std::string_view target, std::string_view host,
                         const Fields& fields, std::string_view body) {
  std::string text = concat(method, " ", target, " HTTP/1.1\r\nHost: ", host, "\r\n");
  for (const auto& [name, value] : fields) text += concat(name, ": ", value, "\r\n");
  if (method != "GET") text += concat("Content-Length: ", body.size(), "\r\n");
  return text.append("\r\n").append(body);
}

struct AnswerReader::State {
  beast::flat_buffer buffer{kMaxBufferedBytes};
  std::size_t num_read = 0;  // bytes of the answer
  std::optional<beast::http::response_parser<beast::http::string_body>> parser;
};

AnswerReader::AnswerReader() : state_(std::make_unique<State>()) {}
AnswerReader::~AnswerReader() = default;

void AnswerReader::begin(std::uint64_t max_bytes) {
  state_->num_read = 0;
  state_->parser.emplace();
  state_->parser->body_limit(max_bytes);
}

// The parser isn't eager: an eager one would wait for a stream's next chunk before it shows this
// one.
void AnswerReader::async_read_some(security::Wire& wire, Done done) {
  const auto took = [this, done = std::move(done)](error_code error, std::size_t num_bytes) {
    state_->num_read += num_bytes;
    const bool is_too_long = is_header_too_long(*state_->parser, state_->num_read);
    if (!error && is_too_long) error = beast::http::error::header_limit;
    done(error);
  };
  beast::http::async_read_some(wire, state_->buffer, *state_->parser, took);
}

bool AnswerReader::has_header() const { return state_->parser->is_header_done(); }
bool AnswerReader::is_done() const { return state_->parser->is_done(); }
bool AnswerReader::keeps_alive() const { return state_->parser->keep_alive(); }
unsigned AnswerReader::status() const { return state_->parser->get().result_int(); }
std::string& AnswerReader::body() { return state_->parser->get().body(); }

Response AnswerReader::take() {
  return {status(), fields_of(state_->parser->get()), std::move(body())};
}

Trouble trouble_of(const error_code& error) {
  using beast::http::error::end_of_stream;
  if (error == end_of_stream) return Trouble::kEnded;
  if (error == beast::http::error::partial_message) return Trouble::kCut;
  if (error == beast::http::error::body_limit) return Trouble::kTooLong;
  const bool is_http = error.category() == beast::http::make_error_code(end_of_stream).category();
  return is_http ? Trouble::kNoHttp : Trouble::kOther;
}

}  // namespace ddprun::http
