// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/tls.h"

#include <malloc.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>
#include <cstdlib>
#include <cstring>

#include "common/check.h"
#include "common/log.h"
#include "common/memory.h"
#include "common/regular_file.h"
#include "common/secret.h"
#include "common/throw_error.h"
#include "rendezvous/security/tls_context.h"

namespace ddprun::security {

void wipe_what_is_freed() {
  const auto release = [](void* memory, const char*, int) {
    if (memory == nullptr) return;
    wipe(memory, ::malloc_usable_size(memory));
    std::free(memory);
  };
  const auto resize = [](void* memory, std::size_t size, const char*, int) -> void* {
    void* larger = std::malloc(size);
    if (memory == nullptr || larger == nullptr) return larger;
    const std::size_t before = ::malloc_usable_size(memory);
    std::memcpy(larger, memory, std::min(before, size));
    wipe(memory, before);
    std::free(memory);
    return larger;
  };
  const auto get = [](std::size_t size, const char*, int) -> void* { return std::malloc(size); };
  ::CRYPTO_set_mem_functions(get, resize, release);
}

namespace ssl = boost::asio::ssl;

namespace {

constexpr char kNothingOfTheKind[] = "there is nothing of the kind in it (PEM)";

std::string last_reason() {
  const unsigned long code = ::ERR_peek_error();  // the cause; later errors tell only the place
  const char* reason = ::ERR_reason_error_string(code);
  std::string text = reason != nullptr ? reason : "it can't be read";
  const bool is_no_pem = ERR_GET_LIB(code) == ERR_LIB_PEM;
  if (is_no_pem && ERR_GET_REASON(code) == PEM_R_NO_START_LINE) text = kNothingOfTheKind;
  ::ERR_clear_error();
  return text;
}

// Never asks for a password at the terminal.
int give_no_password(char*, int, int, void* was_asked) {
  *static_cast<bool*>(was_asked) = true;
  return -1;
}

TlsContext make_context(ssl::context::method method, const std::string& flags) {
  auto context = std::make_shared<FlaggedContext>(method);
  context->flags = flags;
  ::SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_3_VERSION);
  return context;
}

TlsContext make_server(const std::string& flags) {
  TlsContext context = make_context(ssl::context::tls_server, flags);
  // No tickets: a client that resumes a session would not show its certificate again.
  ::SSL_CTX_set_num_tickets(context->native_handle(), 0);
  return context;
}

// A file, and the flag that gave it.
struct Given {
  std::string flag, path;

  [[noreturn]] void refuse_it(const std::string& why) const {
    throw_invalid(flag, "=", path, ": ", why);
  }
  RegularFile open(Others others) const {
    RegularFile file = open_regular_file(path);
    if (!file.fd) refuse_it(file.problem);
    const std::string problem = openness(path, file.info, others);
    if (!problem.empty()) refuse_it(problem);
    return file;
  }
};

// Returns a path to the open file: at the given path there may be another file by now.
std::string again(const RegularFile& file) { return concat("/proc/self/fd/", file.fd.get()); }

Given cert_of(const TlsFiles& files) { return {files.flags + "-cert", files.cert}; }
Given key_of(const TlsFiles& files) { return {files.flags + "-key", files.key}; }
Given ca_of(const TlsFiles& files) { return {files.flags + "-ca", files.ca}; }

// Sets up OpenSSL's memory for private numbers, which is locked and not in core dumps. If that is
// not possible, or other code has used OpenSSL before, the numbers are in normal memory.
void set_up_secure_memory() {
  constexpr std::size_t kBytes = 64 << 10, kSmallest = 32;
  if (::CRYPTO_secure_malloc_initialized() == 0) ::CRYPTO_secure_malloc_init(kBytes, kSmallest);
}

// Reads a key; its text and its numbers are only in secure memory.
Key read_key(const Given& given) {
  set_up_secure_memory();
  const RegularFile file = given.open(Others::kMayNothing);
  constexpr std::size_t kMaxKeyBytes = 32 << 10;
  const auto size = static_cast<std::size_t>(file.info.st_size);
  if (size > kMaxKeyBytes) given.refuse_it(kNothingOfTheKind);
  const Bio text(::BIO_new(::BIO_s_secmem()));
  auto* bytes = static_cast<char*>(::OPENSSL_secure_zalloc(size + 1));
  const ssize_t got = ::read(file.fd.get(), bytes, size);
  if (got > 0) ::BIO_write(text.get(), bytes, static_cast<int>(got));
  ::OPENSSL_secure_clear_free(bytes, size + 1);
  bool was_asked = false;
  Key key(::PEM_read_bio_PrivateKey(text.get(), nullptr, give_no_password, &was_asked));
  if (key) return key;
  const bool is_no_key = ERR_GET_REASON(::ERR_peek_error()) == ERR_R_UNSUPPORTED;
  const std::string reason = last_reason();
  if (was_asked) {
    given.refuse_it(concat("is encrypted, and nobody is asked for its password: openssl pkey -in ",
                           given.path, " -out PLAIN makes one that isn't"));
  }
  given.refuse_it(is_no_key ? "there is no private key in it (PEM); is it the certificate?"
                            : reason);
}

// Only warns about an expired or early certificate: this machine's clock may be wrong. Else peers
// will refuse it.
void warn_of_times(const Given& cert, const X509* own) {
  const bool is_over = ::X509_cmp_current_time(::X509_get0_notAfter(own)) < 0;
  const bool is_early = ::X509_cmp_current_time(::X509_get0_notBefore(own)) > 0;
  if (!is_over && !is_early) return;
  log_warning(cert.flag, "=", cert.path, ": ", is_over ? "has expired" : "is not valid yet",
              ", so the other side refuses it: make another one, or look at this machine's clock");
}

void load_own(SSL_CTX* context, const TlsFiles& files) {
  const Given cert = cert_of(files), its_key = key_of(files);
  if (its_key.path.empty()) cert.refuse_it(concat("its key is missing (", its_key.flag, ")"));
  const Key key = read_key(its_key);
  const RegularFile chain = cert.open(Others::kMayRead);
  if (::SSL_CTX_use_certificate_chain_file(context, again(chain).c_str()) != 1) {
    cert.refuse_it(last_reason());
  }
  // OpenSSL accepts a key of another type than the certificate's, since a certificate for it may
  // follow.
  if (::X509_check_private_key(::SSL_CTX_get0_certificate(context), key.get()) != 1) {
    ::ERR_clear_error();
    its_key.refuse_it(concat("is not the key of ", cert.flag, "=", cert.path));
  }
  if (::SSL_CTX_use_PrivateKey(context, key.get()) != 1) its_key.refuse_it(last_reason());
  warn_of_times(cert, ::SSL_CTX_get0_certificate(context));
}

void load_authorities(SSL_CTX* context, const TlsFiles& files) {
  const Given given = ca_of(files);
  const RegularFile authorities = given.open(Others::kMayRead);
  if (::SSL_CTX_load_verify_locations(context, again(authorities).c_str(), nullptr) != 1) {
    given.refuse_it(last_reason());
  }
}

}  // namespace

TlsContext make_server_context(const TlsFiles& files) {
  if (files.cert.empty()) {
    throw_invalid("TLS: the rendezvous needs ", cert_of(files).flag, " and ", key_of(files).flag);
  }
  if (files.verify_client && files.ca.empty()) {
    throw_invalid("--tls-verify-client: needs ", ca_of(files).flag,
                  ", the authority of the clients' certificates");
  }
  TlsContext context = make_server(files.flags);
  SSL_CTX* native = context->native_handle();
  load_own(native, files);
  if (files.verify_client) {
    load_authorities(native, files);
    ::SSL_CTX_set_verify(native, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    static constexpr unsigned char kSessions[] = "ddprun";
    ::SSL_CTX_set_session_id_context(native, kSessions, sizeof(kSessions) - 1);
  }
  return context;
}

TlsContext make_server_context(const TlsContext& client) {
  SSL_CTX* from = client->native_handle();
  if (::SSL_CTX_get0_certificate(from) == nullptr) return nullptr;
  TlsContext context = make_server(client->flags);
  STACK_OF(X509)* chain = nullptr;
  ::SSL_CTX_get0_chain_certs(from, &chain);
  if (::SSL_CTX_use_cert_and_key(context->native_handle(), ::SSL_CTX_get0_certificate(from),
                                 ::SSL_CTX_get0_privatekey(from), chain, 1) != 1) {
    throw_invalid("TLS: ", last_reason());
  }
  return context;
}

TlsContext make_client_context(const TlsFiles& files) {
  if (files.ca.empty()) {
    const Given given = files.cert.empty() ? key_of(files) : cert_of(files);
    given.refuse_it(concat("the other side's authority is missing (", ca_of(files).flag, ")"));
  }
  if (files.cert.empty() && !files.key.empty()) {
    key_of(files).refuse_it(concat("its certificate is missing (", cert_of(files).flag, ")"));
  }
  TlsContext context = make_context(ssl::context::tls_client, files.flags);
  load_authorities(context->native_handle(), files);
  if (!files.cert.empty()) load_own(context->native_handle(), files);
  ::SSL_CTX_set_verify(context->native_handle(), SSL_VERIFY_PEER, nullptr);
  return context;
}

bool expect_host(X509_VERIFY_PARAM* param, const std::string& host) {
  boost::system::error_code not_numeric;
  auto address = boost::asio::ip::make_address(host, not_numeric);
  if (not_numeric) return ::X509_VERIFY_PARAM_set1_host(param, host.c_str(), 0) == 1;
  if (address.is_v6()) {  // certificates have no interface ("fe80::1%eth0")
    boost::asio::ip::address_v6 plain = address.to_v6();
    plain.scope_id(0);
    address = plain;
  }
  return ::X509_VERIFY_PARAM_set1_ip_asc(param, address.to_string().c_str()) == 1;
}

std::string certificate_trouble(long verdict, const std::string& host, const std::string& flags) {
  switch (verdict) {
    case X509_V_OK:
      return "";
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "its certificate has expired: renew it (or this machine's clock is wrong)";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "its certificate is not valid yet: is this machine's clock right?";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return concat("its certificate is not for ", host,
                    ": make one that names it, or use a name that it has");
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return concat("its certificate is of an authority that ", flags, "-ca does not have");
    default:
      return concat("its certificate is refused: ", ::X509_verify_cert_error_string(verdict));
  }
}

std::string own_certificate_trouble(const TlsContext& client, const std::string& host) {
  SSL_CTX* from = client->native_handle();
  STACK_OF(X509)* chain = nullptr;
  ::SSL_CTX_get0_chain_certs(from, &chain);
  const std::unique_ptr<X509_STORE_CTX, decltype(&::X509_STORE_CTX_free)> check(
      ::X509_STORE_CTX_new(), &::X509_STORE_CTX_free);
  X509* own = ::SSL_CTX_get0_certificate(from);
  DDPRUN_CHECK(own != nullptr);
  const bool is_set_up =
      check &&
      ::X509_STORE_CTX_init(check.get(), ::SSL_CTX_get_cert_store(from), own, chain) == 1 &&
      ::X509_STORE_CTX_set_default(check.get(), "ssl_server") == 1 &&
      expect_host(::X509_STORE_CTX_get0_param(check.get()), host);
  if (!is_set_up) return certificate_trouble(X509_V_ERR_INVALID_CALL, host, client->flags);
  if (::X509_verify_cert(check.get()) == 1) return "";
  return certificate_trouble(::X509_STORE_CTX_get_error(check.get()), host, client->flags);
}

}  // namespace ddprun::security
