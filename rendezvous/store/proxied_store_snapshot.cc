// SPDX-License-Identifier: Apache-2.0
// A ProxiedStore as bytes and back: a version, the next client's number, the values that replies
// share, the proxies, the key space.
#include "common/error.h"
#include "rendezvous/store/proxied_store.h"

namespace ddprun::store {
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr std::uint64_t kNoValue = ~std::uint64_t{0};

}  // namespace

std::string ProxiedStore::snapshot() const {
  std::string out;
  out.reserve(total_bytes());  // it grows by copying else
  append_u64(kVersion, &out);
  append_u64(next_connection_, &out);
  // A thousand nodes may wait for one large value.
  std::unordered_map<SharedValue, std::uint64_t> values;
  std::vector<SharedValue> in_order;
  for (const auto& [node, proxy] : proxies_) {
    proxy.out.each_piece([&](std::string_view, const SharedValue& value) {
      if (value && values.try_emplace(value, values.size()).second) in_order.push_back(value);
    });
  }
  append_u64(in_order.size(), &out);
  for (const SharedValue& value : in_order) append_vector(*value, &out);
  append_u64(proxies_.size(), &out);
  for (const auto& [node, proxy] : proxies_) {
    append_u64(node, &out);
    append_u64(proxy.taken, &out);
    append_u64(proxy.connection, &out);
    append_u64(proxy.missing, &out);
    append_vector(proxy.request, &out);
    append_u64(proxy.is_broken ? 1 : 0, &out);
    append_u64(proxy.out.begin(), &out);
    std::uint64_t num_pieces = 0;
    std::string pieces;
    proxy.out.each_piece([&](std::string_view bytes, const SharedValue& value) {
      ++num_pieces;
      append_u64(value ? values.at(value) : kNoValue, &pieces);
      if (!value) append_vector(bytes, &pieces);
    });
    append_u64(num_pieces, &out);
    out += pieces;
    append_u64(proxy.out.acknowledged(), &out);
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
  std::vector<SharedValue> values;
  for (std::uint64_t left = in.integer(); left > 0; --left)
    values.push_back(state_.hold(in.text()));
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    const Node node = in.integer();
    Proxy& proxy = proxy_of(node);
    proxy.taken = in.integer();
    proxy.in.start_at(proxy.taken);
    proxy.connection = static_cast<std::uint32_t>(in.integer());
    proxy.missing = in.integer();
    gather(proxy, in.text());
    if (!proxy.request.empty()) proxy.parser.parse(proxy.request, &request_);  // to where it was
    proxy.is_broken = in.integer() != 0;
    proxy.out.start_at(in.integer());
    for (std::uint64_t pieces = in.integer(); pieces > 0; --pieces) {
      const std::uint64_t value = in.integer();
      if (value == kNoValue) {
        write(proxy, in.text());
      } else if (value < values.size()) {
        proxy.out.write(values[static_cast<std::size_t>(value)]);
      } else {
        throw Error(ErrorCode::kProtocol, "what was kept of a store lacks a value");
      }
    }
    if (!acknowledge(proxy, in.integer())) {
      throw Error(ErrorCode::kProtocol, "what was kept of a store has too few replies");
    }
    for (std::uint64_t clients = in.integer(); clients > 0; --clients) {
      const auto name = static_cast<std::uint32_t>(in.integer());
      const auto client = static_cast<ConnectionId>(in.integer());
      proxy.connections[name] = client;
      ++num_names_;
      if (client == kRefused) ++proxy.num_refused;
      if (client != kRefused) clients_[client] = {node, name};
    }
    touched_.insert(node);
  }
  state_.load(in);
  if (!in.at_end()) throw Error(ErrorCode::kProtocol, "what was kept of a store is too long");
}

}  // namespace ddprun::store
