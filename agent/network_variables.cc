// SPDX-License-Identifier: Apache-2.0
#include "agent/network_variables.h"

#include <set>

#include "common/env_names.h"

namespace ddprun::agent {

Environment network_variables(const std::string& node_addr,
                              const std::vector<InterfaceAddress>& addresses) {
  std::string own;
  std::set<std::string> virtual_ones{"docker", "lo"};  // NCCL's own choice leaves these out
  const std::size_t num_known = virtual_ones.size();
  bool has_infiniband = false;
  for (const InterfaceAddress& each : addresses) {
    if (each.address.host_text() == node_addr) own = each.interface;
    has_infiniband = has_infiniband || (each.is_up && each.interface.starts_with("ib"));
    const bool is_known = each.interface == "lo" || each.interface.starts_with("docker");
    if (each.is_up && !is_known && is_virtual_interface(each.interface)) {
      virtual_ones.insert(each.interface);
    }
  }
  if (own.empty()) return {};
  Environment variables{{env::kGlooInterface, own}};
  const bool takes_virtual_ones = virtual_ones.size() > num_known && !has_infiniband;
  if (!takes_virtual_ones || is_virtual_interface(own)) return variables;
  std::string others = "^";
  for (const std::string& each : virtual_ones) others += (others.size() > 1 ? "," : "") + each;
  variables[env::kNcclInterface] = others;
  return variables;
}

Environment network_variables(const std::string& node_addr) {
  return network_variables(node_addr, interface_addresses());
}

}  // namespace ddprun::agent
