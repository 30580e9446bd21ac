// SPDX-License-Identifier: Apache-2.0
// Why an attempt to connect to one endpoint of the rendezvous came to nothing.
#pragma once

#include <string>

namespace ddprun::membership {

struct ConnectFailure {
  enum class Kind {
    kAway,          // `what` is a sentence: "connection refused (nothing listens there)"
    kStandby,       // `what` is where the leader is as far as it knows, HOST:PORT, or empty
    kNoRendezvous,  // `what` is what something else answered: "it answered HTTP 404"
    kUntrusted,     // `what` completes "the rendezvous at HOST:PORT …"
  };
  Kind kind = Kind::kAway;
  std::string what;
  bool sign_of_life = false;     // the rendezvous' host is there
  bool nothing_listens = false;  // kAway: the host is there, and says so
  bool no_tls = false;           // kUntrusted: it speaks none, so may be anybody
};

}  // namespace ddprun::membership
