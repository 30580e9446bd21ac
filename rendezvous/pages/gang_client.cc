// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/pages/gang_client.h"

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/pages/fetch.h"

namespace ddprun::pages {
namespace {

constexpr unsigned kNotFound = 404, kTooMany = 429;

std::string first_line(const Page& page) { return page.body.substr(0, page.body.find('\n')); }

template <typename Parse>
auto parsed(const Page& page, Parse parse) {
  try {
    return parse(page.body);
  } catch (const Error& error) {
    throw foreign_answer(page.from, error.what());
  }
}

[[noreturn]] void throw_refusal(const Page& page) {
  std::string why = first_line(page);
  const bool is_none = page.status == kNotFound;
  const bool is_without_queue = is_none && why.starts_with("try /");
  if (is_none && !is_without_queue) {
    throw foreign_answer(page.from, concat("HTTP 404, ", quoted_begin(why)));
  }
  if (is_without_queue) why = "it has no queue for standing agents";
  throw Error(page.status == kTooMany ? ErrorCode::kResourceExhausted : ErrorCode::kInvalidArgument,
              concat("the ddprund refused: ", one_line(why)));
}

}  // namespace

Page GangClient::ask(const std::string& method, const std::string& target,
                     const std::string& body) const {
  FetchOptions options;
  options.target = target;
  options.method = method;
  options.body = body;
  options.wants_refusals = true;
  options.token = options_.token;
  options.tls = options_.tls;
  options.timeout = options_.timeout;
  options.limit = options_.limit;
  options.is_patient = options_.is_patient;
  return ask_leader(std::move(options), options_.endpoints);
}

Page GangClient::ask_or_throw(const std::string& method, const std::string& target,
                              const std::string& body) const {
  Page page = ask(method, target, body);
  if (page.status >= 300) throw_refusal(page);
  return page;
}

std::optional<gangs::GangNews> GangClient::ask_of(const std::string& id, const std::string& method,
                                                  const std::string& target) const {
  const Page page = ask(method, target, "");
  if (page.status < 300) return parsed(page, gangs::parse_gang_page);
  if (page.status == kNotFound && first_line(page) == gangs::no_gang_text(id)) return std::nullopt;
  throw_refusal(page);
}

gangs::GangNews GangClient::submit(const gangs::GangSpec& spec) const {
  return parsed(ask_or_throw("POST", gangs::kGangsPath, gangs::gang_to_json(spec)),
                gangs::parse_gang_page);
}

std::optional<gangs::GangNews> GangClient::status(const std::string& id) const {
  return ask_of(id, "GET", concat(gangs::kGangsPath, "/", id));
}

std::vector<gangs::GangNews> GangClient::list() const {
  return parsed(ask_or_throw("GET", gangs::kGangsPath, ""), gangs::parse_gangs_page);
}

std::optional<gangs::GangNews> GangClient::cancel(const std::string& id) const {
  return ask_of(id, "DELETE", concat(gangs::kGangsPath, "/", id));
}

std::optional<gangs::GangNews> GangClient::logs(const std::string& id,
                                                const std::vector<gangs::OutputPlace>& from,
                                                std::optional<std::uint64_t> seen,
                                                std::chrono::milliseconds wait) const {
  return ask_of(id, "GET", gangs::logs_target(id, from, seen, wait.count()));
}

std::string GangClient::forgotten_text(const std::string& id) {
  return concat("the ddprund knows no gang ", id,
                " any more: it began anew without what it had kept (--state-dir), and its agents "
                "end the gang's processes; or the gang ended longer ago than --keep-finished");
}

}  // namespace ddprun::pages
