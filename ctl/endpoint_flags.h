// SPDX-License-Identifier: Apache-2.0
// The flags that say which rendezvous a command asks, and with what it proves itself.
#pragma once

#include <CLI/App.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "rendezvous/membership/link_security.h"
#include "rendezvous/pages/fetch.h"
#include "rendezvous/pages/gang_client.h"
#include "rendezvous/security/tls.h"

namespace ddprun::ctl {

class EndpointFlags {
 public:
  // Where none is given: that of this host, or none.
  enum class Fallback { kThisHost, kNone };
  explicit EndpointFlags(CLI::App& command, Fallback fallback = Fallback::kThisHost);

  // As it was given; empty: none.
  const std::string& text() const { return endpoint_; }
  // Why it is none; empty: it is one.
  std::string problem() const;

  // As a job file's [to.nodes] has them, where it says any of them; else the flags.
  pages::GangClientOptions queue_of(const std::string& endpoint, const std::string& token_file,
                                    const security::TlsFiles& tls) const;
  // What says the same on another command line, but for what is said by default.
  std::vector<std::string> flags_of(const std::string& endpoint, const std::string& token_file,
                                    const security::TlsFiles& tls) const;

  // The body of the page "/v1/jobs", …. Of several endpoints, asked one after the other, that of
  // who leads. Throws as fetch() and Secret::from_file(), Error(kInvalidArgument) for an endpoint
  // that is none, Error(kUnavailable) where none leads: what each of them said.
  std::string fetch_page(const std::string& target) const;
  // Likewise, within `limit` for all of them, which share it, without a second attempt, and without
  // a word meanwhile.
  std::string fetch_page_within(std::chrono::milliseconds limit, const std::string& target) const;

  // Whom to follow, and with what a connection proves itself. Throw Error(kInvalidArgument) as
  // fetch_page() does where a flag or its file is wrong.
  std::vector<Endpoint> endpoints() const;
  membership::LinkSecurity security() const;

 private:
  pages::FetchOptions options_for(const std::string& target) const;

  std::string endpoint_, token_file_;
  security::TlsFiles tls_;
};

}  // namespace ddprun::ctl
