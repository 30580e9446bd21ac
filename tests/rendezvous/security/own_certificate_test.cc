// SPDX-License-Identifier: Apache-2.0
// A ddprun that serves its job's rendezvous: other programs' judgement of its certificate, and the
// certificate and key that both sides use.
#include <string>

#include "rendezvous/security/certificates.h"
#include "rendezvous/security/tls.h"
#include "tests/support/catch.h"
#include "tests/support/secret_file.h"
#include "tests/support/temp_directory.h"

namespace ddprun::security {
namespace {

struct Lab {
  TlsContext client(const Certificate& trusted, const Certificate& own) const {
    TlsFiles files;
    test::write_secret_file(files.ca = directory.path("ca"), trusted.cert);
    test::write_secret_file(files.cert = directory.path("cert"), own.cert);
    test::write_secret_file(files.key = directory.path("key"), own.key);
    return make_client_context(files);
  }
  test::TempDirectory directory;
  Certificate authority = make_authority("a lab", Days(1));
  Certificate other_authority = make_authority("another", Days(1));
};

TEST_CASE("Own certificate: nothing is wrong for its names and addresses") {
  const Lab lab;
  const auto own = issue(lab.authority, "server", {"head", "10.0.0.1", "fe80::1"}, Days(1));
  const TlsContext client = lab.client(lab.authority, own);
  for (const char* host : {"head", "10.0.0.1", "fe80::1%eth0"}) {
    INFO(host);
    CHECK(own_certificate_trouble(client, host) == "");
  }
}

TEST_CASE("Own certificate: another name, another authority and an expired one are named") {
  const Lab lab;
  const auto own = issue(lab.authority, "server", {"head"}, Days(1));
  const TlsContext client = lab.client(lab.authority, own);
  for (const char* host : {"other", "10.0.0.1"}) {
    CHECK(own_certificate_trouble(client, host).find("is not for " + std::string(host)) !=
          std::string::npos);
  }
  const TlsContext stranger = lab.client(lab.other_authority, own);
  CHECK(
      own_certificate_trouble(stranger, "head").find("an authority that --tls-ca does not have") !=
      std::string::npos);
  const auto over = issue(lab.authority, "server", {"head"}, Days(-1));
  CHECK(own_certificate_trouble(lab.client(lab.authority, over), "head").find("has expired") !=
        std::string::npos);
}

TEST_CASE("Own certificate: nothing can be served without one") {
  const Lab lab;
  TlsFiles files;
  test::write_secret_file(files.ca = lab.directory.path("ca"), lab.authority.cert);
  CHECK(make_server_context(make_client_context(files)) == nullptr);
  const auto own = issue(lab.authority, "server", {"head"}, Days(1));
  CHECK(make_server_context(lab.client(lab.authority, own)) != nullptr);
}

}  // namespace
}  // namespace ddprun::security
