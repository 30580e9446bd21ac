// SPDX-License-Identifier: Apache-2.0
// `ddprunctl top` at a terminal: what the rendezvous pushes, keys and the terminal's size in, a
// picture out, until the user has enough. One thread.
#pragma once

#include <string>
#include <vector>

#include "common/endpoint.h"
#include "ctl/top/terminal.h"
#include "rendezvous/membership/link_security.h"

namespace ddprun::top {

struct SessionOptions {
  std::vector<Endpoint> endpoints;
  membership::LinkSecurity security;
  std::string name;    // of the endpoints, as the user gave them
  std::string wanted;  // a job's run id; empty: the first one
  Look look;
};

// The exit code: 0, or 128 and the signal that ended it. Throws Error where the rendezvous refuses
// this side. The terminal is then as it was.
int run_session(const SessionOptions& options);

}  // namespace ddprun::top
