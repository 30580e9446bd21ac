// SPDX-License-Identifier: Apache-2.0
// The token and TLS with which an agent and the rendezvous authenticate each other.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/secret.h"
#include "rendezvous/security/tls.h"

namespace ddprun::membership {

// A null token or tls: without it.
struct LinkSecurity {
  std::shared_ptr<const Secret> token;  // shared with its other users
  security::TlsContext tls;
  // The host that the certificate must name; empty: the endpoint's.
  std::string certificate_host = {};
  // The program in messages like "give this ddprun --tls-ca".
  std::string program = "ddprun";
  // Returns whether a connected socket's other end is in this process. Then TLS isn't used.
  std::function<bool(int socket)> leads_here = {};
  // The other end sends commands to run. Without a token and TLS it must be on this machine.
  bool obeys_commands = false;
  // The token is this run's alone. A rendezvous that has another one is an earlier run's, which
  // frees the port soon: the attempt fails as if nothing was there.
  bool token_is_of_one_run = false;
};

}  // namespace ddprun::membership
