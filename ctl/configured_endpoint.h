// SPDX-License-Identifier: Apache-2.0
// Says which rendezvous is meant, and with what this side proves itself. Flags say so, else
// ddprun.toml. So ddprun and ddprunctl on one node mean the same one. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/config_texts.h"

namespace ddprun::ctl {

// Empty: nobody says it.
struct ConfiguredEndpoint {
  std::string rdzv_endpoint = {}, token_file = {}, tls_ca = {}, tls_cert = {}, tls_key = {};
};

// Fills each empty field of `given` from the strongest file that has it. Other keys in the files
// are ddprun's affair. Throws Error(kInvalidArgument), "path:line: what is wrong": not TOML, one of
// these keys of another type.
ConfiguredEndpoint configured_endpoint(const std::vector<ConfigText>& files,
                                       ConfiguredEndpoint given = {});

}  // namespace ddprun::ctl
