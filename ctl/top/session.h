// SPDX-License-Identifier: Apache-2.0
// `ddprunctl top` at a terminal: what the rendezvous pushes (docs/status-page.md), keys and the
// terminal's size in, a picture out, until the user has enough. One thread.
#pragma once

#include <string>
#include <vector>

#include "common/endpoint.h"
#include "rendezvous/wire/link_security.h"

namespace ddprun::top {

struct SessionOptions {
  std::vector<Endpoint> endpoints;  // of several the one that leads is followed
  membership::LinkSecurity security;
  std::string name;          // of the endpoints, as the user gave them
  std::string wanted;        // a job's run id; empty: the first one
  bool has_unicode = false;  // the terminal has it; else each character becomes one of ASCII
  bool has_color = false;    // else bold, dim and reversed alone
};

// The exit code: 0, or 128 and the signal that ended it. Throws Error where the rendezvous refuses
// this side, or stdin and stdout can't be used as a terminal. That is then as it was, as after
// every end but SIGKILL.
int run_session(const SessionOptions& options);

}  // namespace ddprun::top
