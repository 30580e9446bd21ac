// SPDX-License-Identifier: Apache-2.0
// The flags that say which rendezvous a command asks, and with what it proves itself. What none of
// them says is as ddprun.toml has it (ctl/configured_endpoint.h).
#pragma once

#include <CLI/App.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "ctl/configured_endpoint.h"
#include "rendezvous/membership/link_security.h"
#include "rendezvous/pages/fetch.h"
#include "rendezvous/pages/gang_client.h"
#include "rendezvous/security/tls.h"

namespace ddprun::ctl {

class EndpointFlags {
 public:
  // Where neither a flag nor a file gives one: that of this host. kNone: none, whatever files say.
  enum class Fallback { kThisHost, kNone };
  explicit EndpointFlags(CLI::App& command, Fallback fallback = Fallback::kThisHost);

  // All of these throw Error(kInvalidArgument), also for a file that can't be read.

  // As it was given; empty: none.
  const std::string& text() const { return asked().rdzv_endpoint; }
  // Why it is none; empty: it is one.
  std::string problem() const;

  // As a job file's [to.nodes] has them, where it says any of them; else the flags.
  pages::GangClientOptions queue_of(const std::string& endpoint, const std::string& token_file,
                                    const security::TlsFiles& tls) const;
  // What says the same on another command line, but for what is said by default, or by a file.
  std::vector<std::string> flags_of(const std::string& endpoint, const std::string& token_file,
                                    const security::TlsFiles& tls) const;

  // The body of the page "/v1/jobs", …. Of several endpoints, asked one after the other, that of
  // who leads. Throws as fetch() and Secret::from_file(), Error(kInvalidArgument) for an endpoint
  // that is none, Error(kUnavailable) where none leads: what each of them said.
  std::string fetch_page(const std::string& target) const;
  // Likewise, within `limit` for all of them, which share it, without a second attempt, and without
  // a word meanwhile.
  std::string fetch_page_within(std::chrono::milliseconds limit, const std::string& target) const;

  // The page for browsers of who leads, and its policy. Each endpoint has 2 s to answer. Throws
  // Error(kInvalidArgument) where a flag or the token is wrong, else Error(kUnavailable).
  pages::Page fetch_document() const;

  // Whom to follow, and with what a connection proves itself. Throw Error(kInvalidArgument) as
  // fetch_page() does where a flag or its file is wrong.
  std::vector<Endpoint> endpoints() const;
  membership::LinkSecurity security() const;

 private:
  // Files are read at the first question: no flag of another command may fail by them.
  const ConfiguredEndpoint& asked() const;
  pages::FetchOptions options_for(const std::string& target) const;
  static std::string fetch_of_this_host(pages::FetchOptions options,
                                        const std::vector<Endpoint>& endpoints);

  const Fallback fallback_;
  ConfiguredEndpoint given_;  // by flags and variables
  mutable std::optional<ConfiguredEndpoint> asked_;
  mutable bool is_default_ = false;  // of asked_: nobody says the endpoint
};

}  // namespace ddprun::ctl
