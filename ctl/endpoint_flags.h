// SPDX-License-Identifier: Apache-2.0
// Flags for the rendezvous that a command asks, and for the proof of who it is: token,
// certificates. Values that no flag gives come from ddprun.toml (ctl/configured_endpoint.h).
#pragma once

#include <CLI/App.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "ctl/configured_endpoint.h"
#include "rendezvous/pages/fetch.h"
#include "rendezvous/pages/gang_client.h"
#include "rendezvous/security/tls.h"
#include "rendezvous/wire/link_security.h"

namespace ddprun::ctl {

class EndpointFlags {
 public:
  // The endpoint if neither a flag nor a file gives one: this host's. kNone: none, whatever files
  // say.
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
  // Flags that mean the same on another command line. Leaves out defaults and values from files.
  std::vector<std::string> flags_of(const std::string& endpoint, const std::string& token_file,
                                    const security::TlsFiles& tls) const;

  // The body of the page "/v1/jobs", …. Several endpoints are asked one after the other, and the
  // leader's page counts. Throws as fetch() and Secret::from_file(). Also Error(kInvalidArgument)
  // for an endpoint that is none, and Error(kUnavailable) if none leads: what each of them said.
  std::string fetch_page(const std::string& target) const;
  // The same within `limit`, which all endpoints share. Makes no second attempt, and says nothing
  // meanwhile.
  std::string fetch_page_within(std::chrono::milliseconds limit, const std::string& target) const;

  // The page for browsers of who leads, and its policy. Each endpoint has 2 s to answer. Throws
  // Error(kInvalidArgument) where a flag or the token is wrong, else Error(kUnavailable).
  pages::Page fetch_document() const;

  // The endpoints to follow, and a connection's proof of who it is. Both throw
  // Error(kInvalidArgument) as fetch_page() does, if a flag or its file is wrong.
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
