// SPDX-License-Identifier: Apache-2.0
#include "ctl/endpoint_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/endpoint_list.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "ctl/fetch.h"
#include "ctl/wait_notice.h"

namespace ddprun::ctl {

namespace {

constexpr std::chrono::milliseconds kEachOfSeveral{3'000};

std::string standby_text(const Page& page) {
  return page.leader.empty() ? "a standby" : "a standby of " + page.leader;
}

std::string fetch_one(const FetchOptions& options) {
  Page page = fetch(options);
  if (!page.is_standby) return std::move(page.body);
  throw Error(ErrorCode::kUnavailable,
              concat("the rendezvous at ", to_string(options.endpoint), " is ", standby_text(page),
                     ", which has no ", options.target, ": name all endpoints"));
}

// A standby has a status of its own.
Page without_standbys_status(Page page) {
  boost::system::error_code error;
  const boost::json::value all = boost::json::parse(page.body, error);
  const auto* object = error ? nullptr : all.if_object();
  const auto* role = object == nullptr ? nullptr : object->if_contains("role");
  if (role == nullptr || !role->is_string() || role->get_string() != "standby") return page;
  const auto* leader = object->if_contains("leader");
  const bool is_known = leader != nullptr && leader->is_string();
  return {"", true, is_known ? std::string(leader->get_string()) : ""};
}

// Each has options.timeout at most, and an even share of what is left of the time of all.
std::string fetch_from_leader(FetchOptions options, const std::vector<Endpoint>& endpoints,
                              Deadline deadline) {
  options.is_patient = false;
  std::string answers;
  const std::chrono::milliseconds most = options.timeout;
  auto num_left = static_cast<int>(endpoints.size());
  for (const Endpoint& endpoint : endpoints) {
    options.endpoint = endpoint;
    const auto share =
        std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()) / num_left--;
    options.timeout = std::min(most, share);
    std::string what;
    try {
      Page page = without_standbys_status(fetch(options));
      if (!page.is_standby) return std::move(page.body);
      what = concat(to_string(endpoint), " is ", standby_text(page));
    } catch (const Error& error) {
      const bool is_away = error.code() == ErrorCode::kUnavailable ||
                           error.code() == ErrorCode::kTimeout ||
                           error.code() == ErrorCode::kConnectionLost;
      if (!is_away) throw;
      what = error.what();
    }
    answers += (answers.empty() ? "" : "; ") + what;
  }
  throw Error(ErrorCode::kUnavailable, "no rendezvous leads: " + answers);
}

}  // namespace

EndpointFlags::EndpointFlags(CLI::App& command, Fallback fallback)
    : endpoint_(fallback == Fallback::kThisHost ? "127.0.0.1:29400" : "") {
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

FetchOptions EndpointFlags::options_for(const std::string& target) const {
  FetchOptions options;
  options.target = target;
  if (!token_file_.empty()) options.token = Secret::from_file(token_file_);
  if (tls_.any()) options.tls = security::make_client_context(tls_);
  return options;
}

std::vector<Endpoint> EndpointFlags::endpoints() const {
  if (const std::string wrong = problem(); !wrong.empty()) {
    throw Error(ErrorCode::kInvalidArgument, wrong);
  }
  return parse_endpoints(endpoint_, kDefaultRendezvousPort).endpoints;
}

std::string EndpointFlags::fetch_page(const std::string& target) const {
  const auto all = endpoints();
  FetchOptions options = options_for(target);
  options.endpoint = all.front();
  const bool is_one = all.size() == 1;
  if (!is_one) options.timeout = kEachOfSeveral;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count();
  const WaitNotice notice(concat("waiting for an answer of ", endpoint_, ", ", seconds,
                                 is_one ? " s at most" : " s at most for each"));
  const auto for_all = options.timeout * static_cast<int>(all.size());
  return is_one ? fetch_one(options) : fetch_from_leader(options, all, Deadline::after(for_all));
}

std::string EndpointFlags::fetch_page_within(std::chrono::milliseconds limit,
                                             const std::string& target) const {
  const auto all = endpoints();
  FetchOptions options = options_for(target);
  options.timeout = limit;
  options.is_patient = false;
  options.endpoint = all.front();
  return all.size() == 1 ? fetch_one(options)
                         : fetch_from_leader(options, all, Deadline::after(limit));
}

}  // namespace ddprun::ctl
