// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/option_groups.h"

namespace ddprun::launcher {
namespace {

std::string set_binding(const std::string& value, LaunchConfig& config) {
  const auto mode = agent::parse_binding_mode(value);
  if (!mode) return "must be node, socket, exclusive, core-complex or none";
  config.binding = *mode;
  return {};
}

}  // namespace

std::vector<Option> placement_options() {
  constexpr char kGroup[] = "CPUs and GPUs of a worker";
  using C = LaunchConfig;
  return {
      {"numa-binding", "node|socket|exclusive|core-complex|none", "none",
       "a worker may use the CPUs near its GPU, or a fair part of them (docs/binding.md)", kGroup,
       set_binding},
      {"show-binding", "", "", "say which CPUs each worker may use", kGroup,
       switch_to(&C::show_binding)},
      {"virtual-local-rank", "", "", "each worker sees one GPU only, and is LOCAL_RANK 0", kGroup,
       switch_to(&C::virtual_local_rank)},
  };
}

}  // namespace ddprun::launcher
