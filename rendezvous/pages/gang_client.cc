// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/pages/gang_client.h"

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/pages/fetch.h"

namespace ddprun::pages {

std::string GangClient::ask(const std::string& method, const std::string& target,
                            const std::string& body) const {
  FetchOptions options;
  options.target = target;
  options.method = method;
  options.body = body;
  options.wants_refusals = true;
  options.token = options_.token;
  options.tls = options_.tls;
  options.timeout = options_.timeout;
  options.is_patient = options_.is_patient;
  Page page = ask_leader(std::move(options), options_.endpoints);
  if (page.status < 300) return std::move(page.body);
  std::string why = page.body.substr(0, page.body.find('\n'));
  if (page.status == 404 && why.starts_with("try /")) why = "it has no queue for standing agents";
  constexpr unsigned kTooMany = 429;
  throw Error(page.status == kTooMany ? ErrorCode::kResourceExhausted : ErrorCode::kInvalidArgument,
              concat("the ddprund refused: ", one_line(why)));
}

gangs::GangNews GangClient::submit(const gangs::GangSpec& spec) const {
  return gangs::parse_gang_page(ask("POST", gangs::kGangsPath, gangs::gang_to_json(spec)));
}

gangs::GangNews GangClient::status(const std::string& id) const {
  return gangs::parse_gang_page(ask("GET", concat(gangs::kGangsPath, "/", id)));
}

std::vector<gangs::GangNews> GangClient::list() const {
  return gangs::parse_gangs_page(ask("GET", gangs::kGangsPath));
}

gangs::GangNews GangClient::cancel(const std::string& id) const {
  return gangs::parse_gang_page(ask("DELETE", concat(gangs::kGangsPath, "/", id)));
}

gangs::GangNews GangClient::logs(const std::string& id, const std::vector<gangs::OutputPlace>& from,
                                 std::optional<std::uint64_t> seen,
                                 std::chrono::milliseconds wait) const {
  return gangs::parse_gang_page(ask("GET", gangs::logs_target(id, from, seen, wait.count())));
}

}  // namespace ddprun::pages
