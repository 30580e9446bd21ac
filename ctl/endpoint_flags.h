// SPDX-License-Identifier: Apache-2.0
// Flags that name the rendezvous to ask, and the token and certificates that prove who asks. Values
// that no flag gives come from ddprun.toml (ctl/configured_endpoint.h).
#pragma once

#include <CLI/App.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "common/error.h"
#include "ctl/configured_endpoint.h"
#include "rendezvous/pages/fetch.h"
#include "rendezvous/pages/gang_client.h"
#include "rendezvous/wire/link_security.h"

namespace ddprun::ctl {

class EndpointFlags {
 public:
  // The endpoint if neither a flag nor a file gives one: this host's. With kNone there is none, and
  // files are not read.
  enum class Fallback { kThisHost, kNone };
  explicit EndpointFlags(CLI::App& command, Fallback fallback = Fallback::kThisHost);

  // All functions below throw Error(kInvalidArgument) for a wrong flag or a file that can't be
  // read.

  // The endpoint as it was given; empty: none.
  const std::string& text() const { return asked().rdzv_endpoint; }
  // Says why the endpoint, or the token's variable, is wrong; empty: both are right.
  std::string problem() const;

  // The queue's address and proof, as in a job file's [to.nodes]; what that leaves out comes from
  // the flags.
  pages::GangClientOptions queue_of(const ConfiguredEndpoint& keys) const;
  // Returns flags that mean the same on another command line. Leaves out defaults and values from
  // files.
  std::vector<std::string> flags_of(const ConfiguredEndpoint& keys) const;

  // Returns the body of the page "/v1/jobs", …. Asks several endpoints one after the other; the
  // leader's page counts. Throws as fetch() and Secret::from_file(). Also throws
  // Error(kInvalidArgument) for a wrong endpoint, and Error(kUnavailable) with all answers if none
  // leads. `use`: whether the page is only shown, or this machine is changed by what it says. A
  // page that is acted on may not come from another user here, who has taken the port.
  enum class Use { kShown, kActedOn };
  std::string fetch_page(const std::string& target, Use use = Use::kShown) const;
  // As fetch_page(), within `limit`, which all endpoints share. Tries once, and prints nothing
  // while it waits.
  std::string fetch_page_within(std::chrono::milliseconds limit, const std::string& target) const;
  // Returns `read(page)`; if that throws Error(kProtocol), throws pages::foreign_answer().
  template <typename Read>
  auto read_page(const std::string& page, const Read& read) const {
    try {
      return read(page);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kProtocol) throw;
      throw pages::foreign_answer(text(), error.what());
    }
  }

  // Returns the leader's page for browsers, and its policy. Each endpoint has 2 s to answer. Throws
  // Error(kInvalidArgument) if a flag or the token is wrong, else Error(kUnavailable).
  pages::Page fetch_document() const;

  // The endpoints to follow, and the proof that a connection sends. Both throw
  // Error(kInvalidArgument) if a flag or its file is wrong.
  std::vector<Endpoint> endpoints() const;
  membership::LinkSecurity security() const;

 private:
  // Files are read when this is first called, so that a wrong file can't stop commands that don't
  // need it.
  const ConfiguredEndpoint& asked() const;
  pages::FetchOptions options_for(const std::string& target) const;

  const Fallback fallback_;
  ConfiguredEndpoint given_;  // by flags and variables
  mutable std::optional<ConfiguredEndpoint> asked_;
  mutable bool is_default_ = false;  // no flag, variable or file gives the endpoint in asked_
};

}  // namespace ddprun::ctl
