// SPDX-License-Identifier: Apache-2.0
// The flags that say which rendezvous a command asks, and with what it proves itself.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "rendezvous/security/tls.h"

namespace ddprun::ctl {

class EndpointFlags {
 public:
  explicit EndpointFlags(CLI::App& command);

  // The body of the page "/v1/jobs", …. Of several endpoints, asked one after the other, that of
  // who leads. Throws as fetch() and Secret::from_file(), Error(kInvalidArgument) for an endpoint
  // that is none, Error(kUnavailable) where none leads: what each of them said.
  std::string fetch_page(const std::string& target) const;

 private:
  std::string endpoint_ = "127.0.0.1:29400", token_file_;
  security::TlsFiles tls_;
};

}  // namespace ddprun::ctl
