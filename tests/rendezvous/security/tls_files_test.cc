// SPDX-License-Identifier: Apache-2.0
// The files of TLS that are believed: nobody else can change them.
#include <unistd.h>

#include <string>

#include "rendezvous/security/certificates.h"
#include "rendezvous/security/tls.h"
#include "tests/support/catch.h"
#include "tests/support/secret_file.h"

namespace ddprun::security {
namespace {

using test::Contains;

TEST_CASE("TLS files: an authority or a certificate that others can change is refused") {
  const test::TempDirectory directory;
  const Certificate authority = make_authority("a lab", Days(1));
  const Certificate own = issue(authority, "server", {"head"}, Days(1));
  TlsFiles files;
  files.ca = directory.path("ca");
  files.cert = directory.path("cert");
  test::write_secret_file(files.key = directory.path("key"), own.key);
  const auto write = [&](mode_t ca_mode, mode_t cert_mode) {
    test::write_secret_file(files.ca, authority.cert, ca_mode);
    test::write_secret_file(files.cert, own.cert, cert_mode);
  };
  for (const mode_t mode : {0600, 0640, 0644}) {
    write(mode, mode);
    CHECK_NOTHROW(make_client_context(files));
  }
  for (const mode_t mode : {0666, 0664, 0622}) {
    write(mode, 0644);
    CHECK_THROWS_WITH(make_client_context(files),
                      Contains("--tls-ca=" + files.ca + ": others may change it (mode 0") &&
                          Contains("chmod go-w " + files.ca));
    write(0644, mode);
    CHECK_THROWS_WITH(make_client_context(files),
                      Contains("--tls-cert=" + files.cert + ": others may change it"));
    CHECK_THROWS_WITH(make_server_context(files),
                      Contains("--tls-cert=" + files.cert + ": others may change it"));
  }
  if (::geteuid() != 0) DDPRUN_SKIP("only root can give files to another user");
  write(0644, 0644);
  REQUIRE(::chown(files.ca.c_str(), 1234, 1234) == 0);
  CHECK_THROWS_WITH(make_client_context(files), Contains("it belongs to user 1234"));
}

}  // namespace
}  // namespace ddprun::security
