// SPDX-License-Identifier: Apache-2.0
// What ddprun.toml says of the rendezvous, for who gives no flag: ddprun and ddprunctl on one node
// mean the same one. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/config_texts.h"

namespace ddprun::ctl {

// Empty: no file says it.
struct ConfiguredEndpoint {
  std::string rdzv_endpoint, token_file, tls_ca, tls_cert, tls_key;
};

// Of each key what the strongest file says that has it. What else is in them is ddprun's affair.
// Throws Error(kInvalidArgument), "path:line: what is wrong": not TOML, one of these keys of
// another type.
ConfiguredEndpoint configured_endpoint(const std::vector<ConfigText>& files);

}  // namespace ddprun::ctl
