// SPDX-License-Identifier: Apache-2.0
// The proofs that an agent gives the rendezvous, and those that it wants.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/secret.h"
#include "rendezvous/security/tls.h"

namespace ddprun::membership {

// Null: without.
struct LinkSecurity {
  std::shared_ptr<const Secret> token;  // second owners: its other users
  security::TlsContext tls;
  std::string certificate_host =
      {};  // what the certificate must be for; empty: the endpoint's host
  // If the other side wants one of these, users are told to give it to this program.
  std::string program = "ddprun";
  // Whether the other end of a connected socket is in this process: then without TLS.
  std::function<bool(int socket)> leads_here = {};
  // The other end says what to run: without a token and TLS it must be on this machine.
  bool obeys_commands = false;
};

}  // namespace ddprun::membership
