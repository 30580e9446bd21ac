// SPDX-License-Identifier: Apache-2.0
// Parses --ha=etcd://HOST:PORT,…/PREFIX. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/endpoint.h"

namespace ddprun::ha {

struct HaUrl {
  std::vector<Endpoint> endpoints;  // members of one etcd cluster; default port 2379
  std::string prefix;               // begins with "/", doesn't end with it; by default "/ddprun"
};

// Throws Error(kInvalidArgument), which says what is wrong with `text`.
HaUrl parse_ha_url(std::string_view text);

}  // namespace ddprun::ha
