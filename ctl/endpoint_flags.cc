// SPDX-License-Identifier: Apache-2.0
#include "ctl/endpoint_flags.h"

#include <CLI/CLI.hpp>

#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/error.h"
#include "ctl/fetch.h"

namespace ddprun::ctl {

EndpointFlags::EndpointFlags(CLI::App& command) {
  command.add_option("--rdzv-endpoint", endpoint_, "HOST:PORT of the rendezvous")
      ->envname(env::kRdzvEndpoint)
      ->capture_default_str();
  command.add_option("--token-file", token_file_, "The rendezvous' token; mode 600")
      ->envname(env::kTokenFile);
  command.add_option("--tls-ca", tls_.ca, "Authority of the rendezvous' certificate (PEM)");
  command.add_option("--tls-cert", tls_.cert, "This side's certificate (PEM), if it wants one");
  command.add_option("--tls-key", tls_.key, "Its key (PEM), mode 600");
}

std::string EndpointFlags::fetch_page(const std::string& target) const {
  FetchOptions options;
  const auto endpoint = parse_endpoint(endpoint_, kDefaultRendezvousPort);
  if (!endpoint || endpoint->host.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--rdzv-endpoint=" + endpoint_ + ": wants HOST or HOST:PORT");
  }
  options.endpoint = *endpoint;
  options.target = target;
  if (!token_file_.empty()) options.token = Secret::from_file(token_file_);
  if (tls_.any()) options.tls = security::make_client_context(tls_);
  return fetch(options);
}

}  // namespace ddprun::ctl
