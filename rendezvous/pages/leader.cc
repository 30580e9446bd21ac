// SPDX-License-Identifier: Apache-2.0
// Of several rendezvous the one that leads.
#include <algorithm>
#include <boost/json/value.hpp>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/json.h"
#include "common/log.h"
#include "rendezvous/pages/fetch.h"

namespace ddprun::pages {
namespace {

std::string standby_text(const Page& page) {
  return page.leader.empty() ? "a standby" : "a standby of " + page.leader;
}

// What it says is an object; a refusal is a line.
Page fetch_object(const FetchOptions& options) {
  Page page = fetch(options);
  const bool is_object = page.body.starts_with('{');
  if (is_object || page.is_standby || page.status >= 300) return page;
  throw foreign_answer(page.from, quoted_begin(page.body));
}

Page fetch_one(const FetchOptions& options) {
  Page page = fetch_object(options);
  if (!page.is_standby) return page;
  throw Error(ErrorCode::kUnavailable,
              concat("the rendezvous at ", to_string(options.endpoint), " is ", standby_text(page),
                     ", which has no ", options.target, ": name all endpoints"));
}

// A standby has a status of its own.
Page without_standbys_status(Page page) {
  const auto object = parse_object(page.body);
  const auto* role = object ? object->if_contains("role") : nullptr;
  if (role == nullptr || !role->is_string() || role->get_string() != "standby") return page;
  const auto* leader = object->if_contains("leader");
  const bool is_known = leader != nullptr && leader->is_string();
  return {"", 503, true, is_known ? std::string(leader->get_string()) : "", page.from};
}

}  // namespace

// Each has options.timeout at most, and an even share of what is left of the time of all.
Page ask_leader(FetchOptions options, const std::vector<Endpoint>& endpoints) {
  if (endpoints.size() == 1) {
    options.endpoint = endpoints.front();
    return fetch_one(options);
  }
  options.is_patient = false;
  std::string answers;
  const std::chrono::milliseconds most = options.timeout;
  auto num_left = static_cast<int>(endpoints.size());
  const Deadline deadline =
      Deadline::after(options.limit.count() > 0 ? options.limit : most * num_left);
  for (const Endpoint& endpoint : endpoints) {
    options.endpoint = endpoint;
    const auto share =
        std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()) / num_left--;
    options.timeout = std::min(most, share);
    std::string what;
    try {
      Page page = without_standbys_status(fetch_object(options));
      if (!page.is_standby) return page;
      what = concat(to_string(endpoint), " is ", standby_text(page));
    } catch (const Error& error) {
      const bool is_away =
          error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kTimeout ||
          error.code() == ErrorCode::kConnectionLost || error.code() == ErrorCode::kProtocol;
      if (!is_away) throw;
      what = error.what();
    }
    answers += (answers.empty() ? "" : "; ") + what;
  }
  throw Error(ErrorCode::kUnavailable, "no rendezvous leads: " + answers);
}

std::string fetch_from_leader(const FetchOptions& options, const std::vector<Endpoint>& endpoints) {
  return ask_leader(options, endpoints).body;
}

}  // namespace ddprun::pages
