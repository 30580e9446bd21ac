// SPDX-License-Identifier: Apache-2.0
// An authority, and a certificate of 127.0.0.1, for daemons and agents with TLS.
#pragma once

#include "rendezvous/security/certificates.h"
#include "rendezvous/security/tls.h"
#include "tests/support/secret_file.h"
#include "tests/support/temp_directory.h"

namespace ddprun::rendezvous::testing {

struct Certificates {
  Certificates() {
    const auto authority = security::make_authority("a lab", security::Days(1));
    const auto server = security::issue(authority, "server", {"127.0.0.1"}, security::Days(1));
    test::write_secret_file(files.ca = directory.path("ca"), authority.cert);
    test::write_secret_file(files.cert = directory.path("cert"), server.cert);
    test::write_secret_file(files.key = directory.path("key"), server.key);
  }
  security::TlsContext server() const {
    security::TlsFiles own;
    own.cert = files.cert;
    own.key = files.key;
    return security::make_server_context(own);
  }
  security::TlsContext client() const {
    security::TlsFiles trusted;
    trusted.ca = files.ca;
    return security::make_client_context(trusted);
  }

  test::TempDirectory directory;
  security::TlsFiles files;
};

}  // namespace ddprun::rendezvous::testing
