// SPDX-License-Identifier: Apache-2.0
// --ha=etcd://HOST:PORT,…/PREFIX. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/endpoint.h"

namespace ddprun::ha {

struct HaUrl {
  std::vector<Endpoint> endpoints;  // members of one etcd cluster; default port 2379
  std::string prefix;               // "/ddprun" by default; begins with "/", ends with none
};

// Throws Error(kInvalidArgument): "etcd: …", what is wrong with `text`.
HaUrl parse_ha_url(std::string_view text);

}  // namespace ddprun::ha
