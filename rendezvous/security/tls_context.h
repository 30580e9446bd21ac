// SPDX-License-Identifier: Apache-2.0
// Defines TlsContext, and other things that the .cc files of this folder share.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509_vfy.h>

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "rendezvous/security/tls.h"

namespace ddprun::security {

// Frees an object of OpenSSL with its owner.
template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* thing) const {
    kFree(thing);
  }
};

using Key = std::unique_ptr<EVP_PKEY, Freer<::EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, Freer<::BIO_free_all>>;

struct FlaggedContext : boost::asio::ssl::context {
  using context::context;
  std::string flags;  // see TlsFiles
};

// Requires a certificate for `host`, a name or an address. Returns false if OpenSSL takes no such
// name.
bool expect_host(X509_VERIFY_PARAM* param, const std::string& host);

// Returns the fault that OpenSSL's verdict X509_V_… means for a certificate of `host`, and what to
// do about it; empty: none. `flags` is TlsFiles::flags.
std::string certificate_trouble(long verdict, const std::string& host, const std::string& flags);

}  // namespace ddprun::security
