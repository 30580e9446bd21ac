// SPDX-License-Identifier: Apache-2.0
// Finds the rendezvous that the user means, and the files that prove who this side is. Flags come
// first, then ddprun.toml: so ddprun and ddprunctl on one node use the same one. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/config_texts.h"
#include "rendezvous/security/tls.h"

namespace ddprun::ctl {

// A field is empty if nothing sets it.
struct ConfiguredEndpoint {
  std::string rdzv_endpoint = {}, token_file = {};
  security::TlsFiles tls = {};
};

// Fills each empty field of `given` from the strongest file that has it. Ignores other keys, which
// are ddprun's. Throws Error(kInvalidArgument), "path:line: what is wrong", if a file is not TOML,
// one of these keys has another type, or a file's name is empty.
ConfiguredEndpoint configured_endpoint(const std::vector<ConfigText>& files,
                                       ConfiguredEndpoint given = {});

}  // namespace ddprun::ctl
