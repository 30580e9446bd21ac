// SPDX-License-Identifier: Apache-2.0
// A ProxiedStore as bytes and back: a version, the next client's number, the proxies, and the
// requests that make the key space.
#include <cstring>
#include <type_traits>

#include "common/error.h"
#include "rendezvous/store/proxied_store.h"

namespace ddprun::store {
namespace {

constexpr std::uint64_t kVersion = 1;

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t integer() {
    const std::string_view field = take(sizeof(std::uint64_t));
    std::uint64_t value = 0;
    std::memcpy(&value, field.data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(integer()); }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size()) {
      throw Error(ErrorCode::kProtocol, "the snapshot of a store ends too early");
    }
    const std::string_view field = bytes_.substr(0, static_cast<std::size_t>(size));
    bytes_.remove_prefix(static_cast<std::size_t>(size));
    return field;
  }

  std::string_view bytes_;
};

}  // namespace

std::string ProxiedStore::snapshot() const {
  std::string out;
  append_u64(kVersion, &out);
  append_u64(next_connection_, &out);
  append_u64(proxies_.size(), &out);
  for (const auto& [node, proxy] : proxies_) {
    append_u64(node, &out);
    append_u64(proxy.in.received(), &out);
    const ItemReader::Place& place = proxy.items.place();
    append_vector(place.head_bytes, &out);
    append_u64(place.head.connection, &out);
    append_u64(static_cast<std::uint64_t>(place.head.kind), &out);
    append_u64(place.head.size_bytes, &out);
    append_u64(place.missing, &out);
    append_u64(place.in_item ? 1 : 0, &out);
    append_u64(proxy.is_broken ? 1 : 0, &out);
    append_vector(proxy.request, &out);
    append_u64(proxy.out.acknowledged(), &out);
    append_vector(proxy.out.unacknowledged(), &out);
    append_u64(proxy.connections.size(), &out);
    for (const auto& [name, client] : proxy.connections) {
      append_u64(name, &out);
      append_u64(client, &out);
    }
  }
  std::string bytes;
  state_.each_request([&](ConnectionId from, const Request& request) {
    append_u64(from, &out);
    bytes.clear();
    encode_request(request, &bytes);
    append_vector(bytes, &out);
  });
  return out;
}

void ProxiedStore::restore(std::string_view snapshot) {
  Reader in(snapshot);
  if (const std::uint64_t version = in.integer(); version != kVersion) {
    throw Error(ErrorCode::kProtocol, "the snapshot of a store has another version");
  }
  next_connection_ = static_cast<ConnectionId>(in.integer());
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    const Node node = in.integer();
    Proxy& proxy = proxies_[node];
    proxy.in.start_at(in.integer());
    ItemReader::Place place;
    place.head_bytes = in.text();
    place.head.connection = static_cast<std::uint32_t>(in.integer());
    place.head.kind = static_cast<ItemKind>(in.integer());
    place.head.size_bytes = in.integer();
    place.missing = in.integer();
    place.in_item = in.integer() != 0;
    proxy.items.go_to(std::move(place));
    proxy.is_broken = in.integer() != 0;
    proxy.request = in.text();
    proxy.out.start_at(in.integer());
    proxy.out.write(in.text());
    for (std::uint64_t clients = in.integer(); clients > 0; --clients) {
      const auto name = static_cast<std::uint32_t>(in.integer());
      const auto client = static_cast<ConnectionId>(in.integer());
      proxy.connections[name] = client;
      if (client != kRefused) clients_[client] = {node, name};
    }
    ready_.insert(node);
  }
  while (!in.at_end()) {
    const auto from = static_cast<ConnectionId>(in.integer());
    const std::string_view bytes = in.text();
    if (parser_.parse(bytes, &request_) != ParseStatus::kRequest) {
      throw Error(ErrorCode::kProtocol, "the snapshot of a store has what is no request");
    }
    state_.step(from, request_);  // the replies are in the proxies' bytes
  }
}

}  // namespace ddprun::store
