// SPDX-License-Identifier: Apache-2.0
// Makes certificates for a lab: an authority, and certificates that it signs. EC P-256.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ddprun::security {

struct Certificate {
  std::string cert, key;  // PEM
};

using Days = std::chrono::duration<int, std::ratio<86400>>;

// Both throw Error(kSystem) if OpenSSL fails, and Error(kInvalidArgument) if no certificate can
// have that name.
Certificate make_authority(const std::string& name, Days valid);
// Makes a certificate for a server that is reached by `hosts` (names, addresses) or, without hosts,
// for a client. A server's is valid for a client, too: a ddprun may serve its job's rendezvous.
Certificate issue(const Certificate& authority, const std::string& name,
                  const std::vector<std::string>& hosts, Days valid);

}  // namespace ddprun::security
