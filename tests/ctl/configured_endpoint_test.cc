// SPDX-License-Identifier: Apache-2.0
#include "ctl/configured_endpoint.h"

#include <string>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::ctl {
namespace {

TEST_CASE("ConfiguredEndpoint: each key has the value of the strongest file") {
  const ConfiguredEndpoint all = configured_endpoint(
      {{.path = "hidden", .text = "rdzv_endpoint = 1", .is_hidden = true},
       {.path = "mine", .text = "token_file = 'mine'\nmax_restarts = 3\n"},
       {.path = "all's",
        .text = "rdzv_endpoint = 'a,b:1'\ntoken_file = 'theirs'\ntls_ca = 'ca'\ntls_cert = 'cert'\n"
                "tls_key = 'key'\nof_a_newer_ddprun = true\n"}});
  CHECK(all.rdzv_endpoint == "a,b:1");
  CHECK(all.token_file == "mine");
  CHECK(all.tls.ca == "ca");
  CHECK(all.tls.cert == "cert");
  CHECK(all.tls.key == "key");
  CHECK(configured_endpoint({}).rdzv_endpoint.empty());
  const ConfiguredEndpoint mine =
      configured_endpoint({{.path = "f", .text = "rdzv_endpoint = 'theirs'\ntls_ca = 'ca'\n"}},
                          {.rdzv_endpoint = "mine"});
  CHECK(mine.rdzv_endpoint == "mine");
  CHECK(mine.tls.ca == "ca");
}

TEST_CASE("ConfiguredEndpoint: an error is named with its line") {
  const auto said_of = [](const std::string& text) {
    const Error error = test::error_of([&] { configured_endpoint({{.path = "f", .text = text}}); });
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return std::string(error.what());
  };
  CHECK(said_of("\nrdzv_endpoint = 3") == "f:2: rdzv_endpoint wants a text");
  CHECK(said_of("token_file = [").starts_with("f:1: "));
}

}  // namespace
}  // namespace ddprun::ctl
