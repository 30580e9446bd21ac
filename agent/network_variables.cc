// SPDX-License-Identifier: Apache-2.0
#include "agent/network_variables.h"

#include <algorithm>
#include <map>

#include "common/env_names.h"

namespace ddprun::agent {

Environment network_variables(const std::string& node_addr,
                              const std::vector<InterfaceAddress>& addresses) {
  std::map<std::string, std::string> first_address;  // by interface
  std::string own;
  bool has_infiniband = false;
  std::vector<std::string> ruled_out{"docker", "lo"};  // NCCL leaves these out by itself
  const std::size_t num_known = ruled_out.size();
  for (const InterfaceAddress& each : addresses) {
    const std::string address = each.address.host_text();
    first_address.emplace(each.interface, address);
    if (address == node_addr) own = each.interface;
    if (!each.is_up) continue;
    has_infiniband = has_infiniband || each.interface.starts_with("ib");
    const std::string kind = virtual_kind(each.interface);
    const bool is_new = std::find(ruled_out.begin(), ruled_out.end(), kind) == ruled_out.end();
    if (!kind.empty() && is_new) ruled_out.push_back(kind);
  }
  Environment variables;
  if (own.empty()) return variables;
  if (first_address[own] == node_addr) {
    variables[env::kGlooInterface] = variables[env::kTensorPipeInterface] = own;
  }
  const bool takes_virtual_ones = ruled_out.size() > num_known && !has_infiniband;
  if (!takes_virtual_ones || is_virtual_interface(own)) return variables;
  std::string others = "^";
  for (const std::string& each : ruled_out) others += (others.size() > 1 ? "," : "") + each;
  variables[env::kNcclInterface] = others;
  return variables;
}

Environment network_variables(const std::string& node_addr) {
  return network_variables(node_addr, interface_addresses());
}

}  // namespace ddprun::agent
