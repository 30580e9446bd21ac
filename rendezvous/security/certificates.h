// SPDX-License-Identifier: Apache-2.0
// Certificates for a lab: an authority of its own, and what it signs. EC P-256.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ddprun::security {

struct Certificate {
  std::string cert, key;  // PEM
};

using Days = std::chrono::duration<int, std::ratio<86400>>;

// Error(kSystem): the library refuses. Error(kInvalidArgument): no certificate can have that name.
Certificate make_authority(const std::string& name, Days valid);
// For a server that is reached by `hosts` (names, addresses), or, where there are none, for a
// client. A server's may be a client's too: a ddprun may serve the rendezvous of its job.
Certificate issue(const Certificate& authority, const std::string& name,
                  const std::vector<std::string>& hosts, Days valid);

}  // namespace ddprun::security
