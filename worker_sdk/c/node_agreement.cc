// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/c/node_agreement.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <optional>

#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/socket.h"
#include "common/text.h"
#include "common/unique_fd.h"

namespace ddprun::c {
namespace {

std::string variable_of(const EnvLookup& environment, const char* name) {
  const char* value = environment(name);
  return value ? value : "";
}

std::string own_identity(const EnvLookup& environment) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network {};
  ::stat("/proc/self/ns/net", &network);
  return concat(boot, " ", network.st_ino, " ", variable_of(environment, env::kGroupRank));
}

// The address from which MASTER_ADDR is reached. Nothing is sent.
std::string own_address(const EnvLookup& environment) {
  const std::string given = variable_of(environment, env::kNodeAddr);
  if (!given.empty()) return given;
  const std::string master = variable_of(environment, env::kMasterAddr);
  if (master.empty()) return "";
  try {
    for (const SocketAddress& address : resolve({.host = master, .port = kDefaultMasterPort})) {
      const UniqueFd fd(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      const auto* peer = reinterpret_cast<const sockaddr*>(&address.storage);
      if (fd && ::connect(fd.get(), peer, address.length) == 0) {
        return local_address(fd.get()).host_text();
      }
    }
  } catch (const Error&) {  // no such host
  }
  return "";
}

}  // namespace

NodePlace agree_on_nodes(store::Store& store, const std::string& key_prefix, int rank, int size,
                         const EnvLookup& environment) {
  std::vector<std::string> keys;
  for (int other = 0; other < size; ++other) keys.push_back(concat(key_prefix, "node/", other));
  store.set(keys[static_cast<std::size_t>(rank)], own_identity(environment));
  std::map<std::string, int> nodes;  // numbered by their first ranks
  NodePlace place{.node_rank = 0, .address = own_address(environment)};
  try {
    const std::vector<std::string> identities = store.multi_get(keys);
    for (int other = 0; other < size; ++other) {
      const auto& identity = identities[static_cast<std::size_t>(other)];
      const int node = nodes.emplace(identity, static_cast<int>(nodes.size())).first->second;
      if (other == rank) place.node_rank = node;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    std::string missing;
    for (int other = 0; other < size; ++other) {
      if (store.check({keys[static_cast<std::size_t>(other)]})) continue;
      missing += concat(missing.empty() ? "" : ", ", other);
    }
    throw Error(ErrorCode::kTimeout,
                concat("the start of the communicator timed out after ", store.timeout().count(),
                       " ms: ranks that did not come: ", missing));
  }
  return place;
}

}  // namespace ddprun::c
