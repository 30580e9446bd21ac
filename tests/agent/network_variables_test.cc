// SPDX-License-Identifier: Apache-2.0
#include "agent/worker_environment.h"

#include "common/env_names.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

InterfaceAddress interface(const std::string& name, const std::string& address, bool is_up = true) {
  return {name, resolve({.host = address, .port = 1}).front(), is_up};
}

}  // namespace

TEST_CASE("network_variables: Gloo and TensorPipe get the interface of the node's address") {
  const std::vector<InterfaceAddress> all{
      interface("lo", "127.0.0.1"), interface("eth0", "10.0.0.2"), interface("eth1", "10.1.0.2"),
      interface("docker0", "172.17.0.1")};
  CHECK(network_variables("10.1.0.2", all) ==
        Environment{{env::kGlooInterface, "eth1"}, {env::kTensorPipeInterface, "eth1"}});
  CHECK(network_variables("127.0.0.1", all) ==
        Environment{{env::kGlooInterface, "lo"}, {env::kTensorPipeInterface, "lo"}});
  std::vector<InterfaceAddress> two = all;  // Gloo takes an interface's first address
  two.push_back(interface("eth1", "10.1.0.3"));
  two.push_back(interface("lo", "10.7.7.7"));
  CHECK(network_variables("10.1.0.3", two).empty());
  CHECK(network_variables("10.7.7.7", two).empty());
  // The host is behind a translation of addresses.
  CHECK(network_variables("10.9.9.9", all).empty());
  CHECK(network_variables("node-2.example", all).empty());
  CHECK(network_variables("fd00::2", {interface("eth0", "fd00::2")}).at(env::kGlooInterface) ==
        "eth0");
}

TEST_CASE("network_variables: NCCL is kept off interfaces that lead to no other host") {
  std::vector<InterfaceAddress> all{interface("eth0", "10.0.0.2"), interface("eth1", "10.1.0.2"),
                                    interface("virbr0", "192.168.122.1"),
                                    interface("cni0", "10.244.0.1"), interface("cni0", "fd00::1")};
  CHECK(network_variables("10.0.0.2", all).at(env::kNcclInterface) == "^docker,lo,virbr,cni");
  CHECK_FALSE(
      // The nodes meet on cni0.
      network_variables("10.244.0.1", all).contains(env::kNcclInterface));
  all.push_back(interface("ib0", "10.2.0.2"));  // NCCL takes only this one by itself
  CHECK_FALSE(network_variables("10.0.0.2", all).contains(env::kNcclInterface));
  all.resize(2);
  all.push_back(interface("virbr0", "192.168.122.1", /*is_up=*/false));  // NCCL leaves it out
  CHECK_FALSE(network_variables("10.0.0.2", all).contains(env::kNcclInterface));
}
