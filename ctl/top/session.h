// SPDX-License-Identifier: Apache-2.0
// Runs `ddprunctl top` at a terminal. Takes what the rendezvous pushes (docs/status-page.md), keys
// and size changes, and draws, until the user quits. One thread.
#pragma once

#include <string>
#include <vector>

#include "common/endpoint.h"
#include "rendezvous/wire/link_security.h"

namespace ddprun::top {

struct SessionOptions {
  std::vector<Endpoint> endpoints;  // the leader of these is followed
  membership::LinkSecurity security;
  std::string name;          // the endpoints as the user gave them
  std::string wanted;        // a job's run id; empty: the first one
  bool has_unicode = false;  // false: characters are replaced by ASCII ones
  bool has_color = false;    // false: bold, dim and reversed only
};

// Returns the exit code: 0, or 128 and the signal that ended it. Throws Error if the rendezvous
// refuses this side, or stdin and stdout can't be used as a terminal. The terminal is restored at
// every end but SIGKILL.
int run_session(const SessionOptions& options);

}  // namespace ddprun::top
