// SPDX-License-Identifier: Apache-2.0
// The queue of a ddprund as a client uses it (docs/nodes.md). Blocking, each call with a deadline.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "common/secret.h"
#include "rendezvous/gangs/gang_json.h"
#include "rendezvous/pages/fetch.h"
#include "rendezvous/security/wire.h"

namespace ddprun::pages {

struct GangClientOptions {
  std::vector<Endpoint> endpoints;                      // of several: the one that leads
  std::shared_ptr<const Secret> token;                  // second owners: other users; null: none
  security::TlsContext tls;                             // likewise
  std::chrono::milliseconds timeout{10'000}, limit{0};  // as FetchOptions has them
  bool is_patient = true;                               // as FetchOptions has it
};

// Throws as fetch(), and Error(kInvalidArgument) with what the queue said where it refuses.
// nullopt: the queue knows no such gang.
class GangClient {
 public:
  explicit GangClient(GangClientOptions options) : options_(std::move(options)) {}

  // Again and again with the same one: it is submitted once.
  gangs::GangNews submit(const gangs::GangSpec& spec) const;
  std::optional<gangs::GangNews> status(const std::string& id) const;
  std::vector<gangs::GangNews> list() const;
  std::optional<gangs::GangNews> cancel(const std::string& id) const;
  // As soon as there is more than `from` and `seen` have, within `wait`.
  std::optional<gangs::GangNews> logs(const std::string& id,
                                      const std::vector<gangs::OutputPlace>& from,
                                      std::optional<std::uint64_t> seen,
                                      std::chrono::milliseconds wait) const;

  // What is to be said of a gang that was there, and isn't any more.
  static std::string forgotten_text(const std::string& id);

 private:
  Page ask(const std::string& method, const std::string& target, const std::string& body) const;
  Page ask_or_throw(const std::string& method, const std::string& target,
                    const std::string& body) const;
  std::optional<gangs::GangNews> ask_of(const std::string& id, const std::string& method,
                                        const std::string& target) const;

  const GangClientOptions options_;
};

}  // namespace ddprun::pages
