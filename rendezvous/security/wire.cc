// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/wire.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <optional>

#include "common/random_id.h"
#include "common/text.h"
#include "rendezvous/security/tls_context.h"

namespace ddprun::security {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr char kBindingLabel[] = "EXPORTER-Channel-Binding";
constexpr std::size_t kBindingBytes = 32;

// Returns a text for the alert with which the other side ended the handshake.
std::string alert_trouble(unsigned long code, const std::string& flags) {
  switch (ERR_GET_REASON(code)) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return concat("it wants a certificate of this side: ", flags, "-cert and ", flags, "-key");
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return concat("it does not know the authority of this side's certificate (", flags, "-cert)");
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return concat("this side's certificate (", flags, "-cert) has expired");
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
      return concat("it refused this side's certificate (", flags, "-cert)");
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_UNSUPPORTED_PROTOCOL:
      return concat("it speaks no TLS 1.3 there: is TLS on at both sides (--tls-cert there, ",
                    flags, "-ca here)?");
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return "it has no certificate, and --tls-verify-client wants one";
    default:
      return "";
  }
}

bool expect_certificate_for(SSL* ssl, const std::string& host) {
  error_code not_numeric;
  asio::ip::make_address(host, not_numeric);
  if (not_numeric && ::SSL_set_tlsext_host_name(ssl, host.c_str()) != 1) return false;
  return expect_host(::SSL_get0_param(ssl), host);
}

}  // namespace

struct Wire::State {
  explicit State(asio::ip::tcp::socket its) : socket(std::move(its)) {}
  asio::ip::tcp::socket socket;
  TlsContext context;
  std::optional<asio::ssl::stream<asio::ip::tcp::socket&>> tls;
  std::string host;  // see async_connect_tls()
};

Wire::Wire(asio::ip::tcp::socket socket) : state_(std::make_unique<State>(std::move(socket))) {}
Wire::Wire(Wire&&) noexcept = default;
Wire& Wire::operator=(Wire&&) noexcept = default;
Wire::~Wire() = default;

asio::ip::tcp::socket& Wire::socket() { return state_->socket; }
bool Wire::is_tls() const { return state_->tls.has_value(); }

void Wire::begin_read(const FewBuffers<asio::mutable_buffer>& into, Moved done) {
  state_->tls ? state_->tls->async_read_some(into, std::move(done))
              : state_->socket.async_read_some(into, std::move(done));
}

void Wire::begin_write(const FewBuffers<asio::const_buffer>& from, Moved done) {
  state_->tls ? state_->tls->async_write_some(from, std::move(done))
              : state_->socket.async_write_some(from, std::move(done));
}

void Wire::async_accept_tls(const TlsContext& context, Handshaken done) {
  state_->context = context;
  state_->tls.emplace(state_->socket, *context);
  state_->tls->async_handshake(asio::ssl::stream_base::server, std::move(done));
}

void Wire::async_connect_tls(const TlsContext& context, const std::string& host, Handshaken done) {
  state_->context = context;
  state_->host = host;
  state_->tls.emplace(state_->socket, *context);
  SSL* ssl = state_->tls->native_handle();
  if (!expect_certificate_for(ssl, host)) {  // else any host's certificate would be accepted
    asio::post(state_->socket.get_executor(), [done = std::move(done)]() mutable {
      done(asio::error::make_error_code(asio::error::invalid_argument));
    });
    return;
  }
  state_->tls->async_handshake(asio::ssl::stream_base::client, std::move(done));
}

std::string Wire::binding() const {
  if (!is_tls()) return {};
  std::string bytes(kBindingBytes, '\0');
  const int made = ::SSL_export_keying_material(
      state_->tls->native_handle(), reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(),
      kBindingLabel, sizeof(kBindingLabel) - 1, nullptr, 0, 1);
  // Without the binding a proof would not be bound to the session. A random one makes the proof
  // fail.
  return made == 1 ? bytes : random_id();
}

std::string Wire::tls_trouble(const error_code& error) const {
  if (!error || !state_ || !is_tls()) return {};
  if (error.category() != asio::error::get_ssl_category()) return {};
  SSL* ssl = state_->tls->native_handle();
  const std::string& flags = state_->context->flags;
  std::string trouble = certificate_trouble(::SSL_get_verify_result(ssl), state_->host, flags);
  if (trouble.empty()) trouble = alert_trouble(static_cast<unsigned long>(error.value()), flags);
  return trouble.empty() ? concat("TLS failed: ", error.message()) : trouble;
}

void Wire::close() {
  if (!state_) return;
  error_code ignored;
  state_->socket.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  state_->socket.close(ignored);
}

bool is_no_tls(const boost::system::error_code& error) {
  if (error.category() != boost::asio::error::get_ssl_category()) return false;
  switch (ERR_GET_REASON(static_cast<unsigned long>(error.value()))) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_BAD_RECORD_TYPE:
      return true;
    default:
      return false;
  }
}

}  // namespace ddprun::security
