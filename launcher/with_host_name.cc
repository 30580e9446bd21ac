// SPDX-License-Identifier: Apache-2.0
#include "launcher/with_host_name.h"

#include <string_view>

#include "common/process_facts.h"

namespace ddprun::launcher {

std::string with_host_name(std::string path) {
  constexpr std::string_view kHostname = "${hostname}";
  const std::string name = host_name();
  for (std::size_t at = 0; (at = path.find(kHostname, at)) != std::string::npos;
       at += name.size()) {
    path.replace(at, kHostname.size(), name);
  }
  return path;
}

}  // namespace ddprun::launcher
