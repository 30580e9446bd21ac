// SPDX-License-Identifier: Apache-2.0
// A ProxiedStore as bytes and back: a version, the next client's number, the proxies, the key
// space.
#include "common/error.h"
#include "rendezvous/store/proxied_store.h"

namespace ddprun::store {
namespace {

constexpr std::uint64_t kVersion = 1;

}  // namespace

std::string ProxiedStore::snapshot() const {
  std::string out;
  append_u64(kVersion, &out);
  append_u64(next_connection_, &out);
  append_u64(proxies_.size(), &out);
  for (const auto& [node, proxy] : proxies_) {
    append_u64(node, &out);
    append_u64(proxy.taken, &out);
    append_u64(proxy.connection, &out);
    append_u64(proxy.missing, &out);
    append_vector(proxy.request, &out);
    append_u64(proxy.out.acknowledged(), &out);
    append_vector(proxy.out.unacknowledged(), &out);
    append_u64(proxy.connections.size(), &out);
    for (const auto& [name, client] : proxy.connections) {
      append_u64(name, &out);
      append_u64(client, &out);
    }
  }
  state_.save(&out);
  return out;
}

void ProxiedStore::restore(std::string_view snapshot) {
  SnapshotReader in(snapshot);
  if (const std::uint64_t version = in.integer(); version != kVersion) {
    throw Error(ErrorCode::kProtocol, "what was kept of a store is of another version");
  }
  next_connection_ = static_cast<ConnectionId>(in.integer());
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    const Node node = in.integer();
    Proxy& proxy = proxy_of(node);
    proxy.taken = in.integer();
    proxy.in.start_at(proxy.taken);
    proxy.connection = static_cast<std::uint32_t>(in.integer());
    proxy.missing = in.integer();
    gather(proxy, in.text());
    if (!proxy.request.empty()) proxy.parser.parse(proxy.request, &request_);  // to where it was
    proxy.out.start_at(in.integer());
    proxy.out.write(in.text());
    for (std::uint64_t clients = in.integer(); clients > 0; --clients) {
      const auto name = static_cast<std::uint32_t>(in.integer());
      const auto client = static_cast<ConnectionId>(in.integer());
      proxy.connections[name] = client;
      if (client != kRefused) clients_[client] = {node, name};
    }
    touched_.insert(node);
  }
  state_.load(in);
  if (!in.at_end()) throw Error(ErrorCode::kProtocol, "what was kept of a store is too long");
}

}  // namespace ddprun::store
