// SPDX-License-Identifier: Apache-2.0
#include "common/name_lookup.h"

#include <arpa/inet.h>

#include <future>
#include <memory>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"

namespace ddprun {
namespace {

NameLookup look_up_now(const Endpoint& endpoint) {
  try {
    return {resolve(endpoint), {}};
  } catch (const Error& error) {
    return {{}, error.what()};
  }
}

bool is_numeric(const std::string& host) {
  in6_addr address;
  return host.empty() || ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

void look_up_in_background(const Endpoint& endpoint, std::function<void(NameLookup)> done) {
  start_quiet_thread("ddprun-names", [endpoint, done = std::move(done)] {
    done(look_up_now(endpoint));
  }).detach();
}

NameLookup look_up(const Endpoint& endpoint, Deadline deadline) {
  if (is_numeric(endpoint.host)) return look_up_now(endpoint);
  // Second owner: the look-up's thread.
  const auto answer = std::make_shared<std::promise<NameLookup>>();
  std::future<NameLookup> waiting = answer->get_future();
  look_up_in_background(endpoint,
                        [answer](NameLookup found) { answer->set_value(std::move(found)); });
  if (waiting.wait_until(deadline.at()) == std::future_status::ready) return waiting.get();
  return {{}, concat("can't resolve host name \"", endpoint.host, "\": no answer in time")};
}

}  // namespace ddprun
