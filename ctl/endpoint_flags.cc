// SPDX-License-Identifier: Apache-2.0
#include "ctl/endpoint_flags.h"

#include <CLI/CLI.hpp>
#include <utility>
#include <vector>

#include "common/endpoint_list.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "ctl/wait_notice.h"

namespace ddprun::ctl {

namespace {
constexpr std::chrono::milliseconds kEachOfSeveral{3'000};
constexpr char kThisHost[] = "127.0.0.1:29400";
}  // namespace

EndpointFlags::EndpointFlags(CLI::App& command, Fallback fallback)
    : endpoint_(fallback == Fallback::kThisHost ? kThisHost : "") {
  command
      .add_option(
          "--rdzv-endpoint", endpoint_,
          "HOST:PORT of the rendezvous; of several, with commas between: the one that leads")
      ->envname(env::kRdzvEndpoint)
      ->capture_default_str();
  command.add_option("--token-file", token_file_, "The rendezvous' token; mode 600")
      ->envname(env::kTokenFile);
  command.add_option("--tls-ca", tls_.ca, "Authority of the rendezvous' certificate (PEM)");
  command.add_option("--tls-cert", tls_.cert, "This side's certificate (PEM), if it wants one");
  command.add_option("--tls-key", tls_.key, "Its key (PEM), mode 600");
}

std::string EndpointFlags::problem() const {
  const std::string problem = parse_endpoints(endpoint_, kDefaultRendezvousPort).problem;
  return problem.empty() ? "" : concat("--rdzv-endpoint=", endpoint_, ": ", problem);
}

pages::FetchOptions EndpointFlags::options_for(const std::string& target) const {
  pages::FetchOptions options;
  options.target = target;
  if (!token_file_.empty()) options.token = Secret::from_flag("--token-file", token_file_);
  if (tls_.any()) options.tls = security::make_client_context(tls_);
  return options;
}

membership::LinkSecurity EndpointFlags::security() const {
  const pages::FetchOptions options = options_for("");
  return {.token = options.token, .tls = options.tls, .program = "ddprunctl"};
}

std::vector<Endpoint> EndpointFlags::endpoints() const {
  if (const std::string wrong = problem(); !wrong.empty()) {
    throw Error(ErrorCode::kInvalidArgument, wrong);
  }
  return parse_endpoints(endpoint_, kDefaultRendezvousPort).endpoints;
}

pages::GangClientOptions EndpointFlags::queue_of(const std::string& endpoint,
                                                 const std::string& token_file,
                                                 const security::TlsFiles& tls) const {
  pages::GangClientOptions options;
  options.endpoints =
      endpoint.empty() ? endpoints() : parse_endpoints(endpoint, kDefaultRendezvousPort).endpoints;
  if (options.endpoints.empty()) {
    throw Error(ErrorCode::kInvalidArgument, concat("endpoint = \"", endpoint, "\": is none"));
  }
  const std::string& token = token_file.empty() ? token_file_ : token_file;
  const security::TlsFiles& files = tls.any() ? tls : tls_;
  const char* flag = token_file.empty() ? "--token-file" : "to.nodes.token_file";
  if (!token.empty()) options.token = Secret::from_flag(flag, token);
  if (files.any()) options.tls = security::make_client_context(files);
  return options;
}

std::vector<std::string> EndpointFlags::flags_of(const std::string& endpoint,
                                                 const std::string& token_file,
                                                 const security::TlsFiles& tls) const {
  std::vector<std::string> flags;
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) flags.push_back(concat(flag, "=", value));
  };
  const std::string& queue = endpoint.empty() ? endpoint_ : endpoint;
  if (!endpoint.empty() || queue != kThisHost) add("--rdzv-endpoint", queue);
  add("--token-file", token_file.empty() ? token_file_ : token_file);
  const security::TlsFiles& files = tls.any() ? tls : tls_;
  add("--tls-ca", files.ca);
  add("--tls-cert", files.cert);
  add("--tls-key", files.key);
  return flags;
}

std::string EndpointFlags::fetch_page(const std::string& target) const {
  const auto all = endpoints();
  pages::FetchOptions options = options_for(target);
  const bool is_one = all.size() == 1;
  if (!is_one) options.timeout = kEachOfSeveral;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count();
  const WaitNotice notice(concat("waiting for an answer of ", endpoint_, ", ", seconds,
                                 is_one ? " s at most" : " s at most for each"));
  return pages::fetch_from_leader(options, all);
}

std::string EndpointFlags::fetch_page_within(std::chrono::milliseconds limit,
                                             const std::string& target) const {
  const auto all = endpoints();
  pages::FetchOptions options = options_for(target);
  options.timeout = limit;
  options.is_patient = false;
  options.limit = limit;
  return pages::fetch_from_leader(options, all);
}

}  // namespace ddprun::ctl
