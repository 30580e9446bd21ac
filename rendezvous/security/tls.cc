// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/tls.h"

#include <fcntl.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ssl/context.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/error.h"
#include "common/log.h"
#include "common/secret.h"
#include "common/unique_fd.h"
#include "rendezvous/security/openssl_handles.h"

namespace ddprun::security {

void wipe_what_is_freed() {
  const auto release = [](void* memory, const char*, int) {
    if (memory == nullptr) return;
    ::explicit_bzero(memory, ::malloc_usable_size(memory));
    std::free(memory);
  };
  const auto resize = [](void* memory, std::size_t size, const char*, int) -> void* {
    void* larger = std::malloc(size);
    if (memory == nullptr || larger == nullptr) return larger;
    const std::size_t before = ::malloc_usable_size(memory);
    std::memcpy(larger, memory, std::min(before, size));
    ::explicit_bzero(memory, before);
    std::free(memory);
    return larger;
  };
  const auto get = [](std::size_t size, const char*, int) -> void* { return std::malloc(size); };
  ::CRYPTO_set_mem_functions(get, resize, release);
}

namespace ssl = boost::asio::ssl;

namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

std::string last_reason() {
  const unsigned long code = ::ERR_peek_error();  // the cause; what follows says where
  const char* reason = ::ERR_reason_error_string(code);
  std::string text = reason != nullptr ? reason : "it can't be read";
  if (ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE) {
    text = "there is nothing of the kind in it (PEM)";
  }
  ::ERR_clear_error();
  return text;
}

// Nobody is asked at the terminal.
int give_no_password(char*, int, int, void* was_asked) {
  *static_cast<bool*>(was_asked) = true;
  return -1;
}

TlsContext make_context(ssl::context::method method) {
  auto context = std::make_shared<ssl::context>(method);
  ::SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_3_VERSION);
  return context;
}

// OpenSSL keeps private numbers there: locked, and left out of core dumps. Too late where something
// else has begun with it, and not everywhere: then they are where other memory is.
void set_up_secure_memory() {
  constexpr std::size_t kBytes = 64 << 10, kSmallest = 32;
  if (::CRYPTO_secure_malloc_initialized() == 0) ::CRYPTO_secure_malloc_init(kBytes, kSmallest);
}

// Its text and its numbers are in secure memory alone.
Key read_key(const std::string& path) {
  set_up_secure_memory();
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) {
    refuse(concat("--tls-key=", path, ": ", errno_text(errno)));
  }
  constexpr std::size_t kMaxKeyBytes = 32 << 10;
  const auto size = static_cast<std::size_t>(info.st_size);
  if (!S_ISREG(info.st_mode) || size > kMaxKeyBytes) {
    refuse(concat("--tls-key=", path, ": there is nothing of the kind in it (PEM)"));
  }
  const Bio text(::BIO_new(::BIO_s_secmem()));
  auto* bytes = static_cast<char*>(::OPENSSL_secure_zalloc(size + 1));
  const ssize_t got = ::read(file.get(), bytes, size);
  if (got > 0) ::BIO_write(text.get(), bytes, static_cast<int>(got));
  ::OPENSSL_secure_clear_free(bytes, size + 1);
  bool was_asked = false;
  Key key(::PEM_read_bio_PrivateKey(text.get(), nullptr, give_no_password, &was_asked));
  if (key) return key;
  const std::string reason = last_reason();
  if (was_asked) {
    refuse(concat("--tls-key=", path, ": is encrypted, and nobody is asked for its password: ",
                  "openssl pkey -in ", path, " -out PLAIN makes one that isn't"));
  }
  refuse(concat("--tls-key=", path, ": ", reason));
}

void load_own(SSL_CTX* context, const TlsFiles& files) {
  if (files.key.empty()) refuse("--tls-cert=" + files.cert + ": its key is missing (--tls-key)");
  check_is_hidden("--tls-key", files.key);
  if (::SSL_CTX_use_certificate_chain_file(context, files.cert.c_str()) != 1) {
    refuse(concat("--tls-cert=", files.cert, ": ", last_reason()));
  }
  const Key key = read_key(files.key);
  if (::SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    const int why = ERR_GET_REASON(::ERR_peek_last_error());
    const std::string reason = last_reason();
    if (why == X509_R_KEY_VALUES_MISMATCH || why == X509_R_KEY_TYPE_MISMATCH) {
      refuse(concat("--tls-key=", files.key, ": is not the key of ", files.cert));
    }
    refuse(concat("--tls-key=", files.key, ": ", reason));
  }
}

void load_authorities(SSL_CTX* context, const TlsFiles& files) {
  if (::SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr) != 1) {
    refuse(concat("--tls-ca=", files.ca, ": ", last_reason()));
  }
}

}  // namespace

TlsContext make_server_context(const TlsFiles& files) {
  if (files.cert.empty()) refuse("TLS: the rendezvous needs --tls-cert and --tls-key");
  if (files.verify_client && files.ca.empty()) {
    refuse("--tls-verify-client: needs --tls-ca, the authority of the clients' certificates");
  }
  TlsContext context = make_context(ssl::context::tls_server);
  SSL_CTX* native = context->native_handle();
  load_own(native, files);
  ::SSL_CTX_set_num_tickets(native, 0);  // who resumed a session would not show a certificate again
  if (files.verify_client) {
    load_authorities(native, files);
    ::SSL_CTX_set_verify(native, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    static constexpr unsigned char kSessions[] = "ddprun";
    ::SSL_CTX_set_session_id_context(native, kSessions, sizeof(kSessions) - 1);
  }
  return context;
}

TlsContext make_client_context(const TlsFiles& files) {
  if (files.ca.empty()) refuse("--tls-cert: the rendezvous' authority is missing (--tls-ca)");
  if (files.cert.empty() && !files.key.empty()) {
    refuse("--tls-key=" + files.key + ": its certificate is missing (--tls-cert)");
  }
  TlsContext context = make_context(ssl::context::tls_client);
  load_authorities(context->native_handle(), files);
  if (!files.cert.empty()) load_own(context->native_handle(), files);
  ::SSL_CTX_set_verify(context->native_handle(), SSL_VERIFY_PEER, nullptr);
  return context;
}

}  // namespace ddprun::security
