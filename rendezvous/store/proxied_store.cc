// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/proxied_store.h"

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun::store {

ProxiedStore::ProxiedStore(std::uint64_t round, const RequestLimits& limits,
                           std::size_t max_total_bytes)
    : round_(round), parser_(limits), state_(max_total_bytes) {
  // The clients have shaken hands with their proxy.
  std::string handshake;
  request_.opcode = Opcode::kValidate;
  request_.word = kValidateMagic;
  encode_request(request_, &handshake);
  parser_.parse(handshake, &request_);
}

void ProxiedStore::receive(Node from, const ProxyFrame& frame) {
  fresh_ = {};
  if (frame.round != round_) return;
  Proxy& proxy = proxies_[from];
  if (proxy.is_broken) throw Error(ErrorCode::kProtocol, "a store proxy said what makes no sense");
  ready_.insert(from);
  if (!proxy.out.acknowledge(frame.received)) {
    throw Error(ErrorCode::kProtocol, "a store proxy acknowledges what was never said");
  }
  proxy.is_heard = true;
  const std::uint64_t position = proxy.in.received();
  const auto bytes = proxy.in.receive(frame.position, frame.bytes);
  if (!bytes) throw Error(ErrorCode::kProtocol, "bytes of a store proxy are missing");
  fresh_ = {round_, position, 0, *bytes};
  take_items(from, proxy, *bytes);
}

void ProxiedStore::replay(Node from, const ProxyFrame& fresh) {
  Proxy& proxy = proxies_[from];
  ready_.insert(from);
  const auto bytes = proxy.in.receive(fresh.position, fresh.bytes);
  if (!bytes) throw Error(ErrorCode::kProtocol, "bytes of a store proxy are missing");
  try {
    take_items(from, proxy, *bytes);
  } catch (const Error&) {  // as then
  }
}

void ProxiedStore::take_items(Node from, Proxy& proxy, std::string_view bytes) {
  proxy.is_broken = true;  // until all of it made sense
  proxy.items.read(bytes, [&](const ItemHead& head, std::string_view content, bool is_last) {
    if (head.kind == ItemKind::kClose) {
      if (is_last) disconnect(proxy, head.connection);
    } else if (is_last && proxy.request.empty()) {
      carry_out(from, proxy, head.connection, content);
    } else {
      proxy.request += content;
      if (!is_last) return;
      carry_out(from, proxy, head.connection, proxy.request);
      proxy.request = std::string();
    }
  });
  proxy.is_broken = false;
}

void ProxiedStore::carry_out(Node from, Proxy& proxy, std::uint32_t connection,
                             std::string_view requests) {
  while (!requests.empty()) {
    if (parser_.parse(requests, &request_) != ParseStatus::kRequest) {
      throw Error(ErrorCode::kProtocol,
                  concat("a store proxy passes on what is no request: ", parser_.error()));
    }
    requests.remove_prefix(parser_.request_bytes());
    const ConnectionId client = connection_of(from, proxy, connection);
    if (client == kRefused) return;
    const Outcome& outcome = state_.step(client, request_);
    const std::string refusal = outcome.close_reason.empty() ? ""
                                                             : concat(opcode_name(request_.opcode),
                                                                      ": ", outcome.close_reason);
    deliver(outcome);
    if (refusal.empty()) continue;
    disconnect(proxy, connection);
    proxy.connections[connection] = kRefused;  // until its proxy has closed it
    return refuse(from, connection, refusal);
  }
}

ConnectionId ProxiedStore::connection_of(Node node, Proxy& proxy, std::uint32_t connection) {
  const auto [entry, is_new] = proxy.connections.try_emplace(connection, next_connection_);
  if (is_new) clients_[next_connection_++] = {node, connection};
  return entry->second;
}

void ProxiedStore::disconnect(Proxy& proxy, std::uint32_t connection) {
  const auto found = proxy.connections.find(connection);
  if (found == proxy.connections.end()) return;  // it never asked for anything
  const ConnectionId gone = found->second;
  proxy.connections.erase(found);
  if (gone == kRefused) return;
  clients_.erase(gone);
  deliver(state_.disconnect(gone));
}

void ProxiedStore::deliver(const Outcome& outcome) {
  for (const Reply& reply : outcome.replies) {
    const auto found = clients_.find(reply.to);
    if (found == clients_.end()) continue;
    const auto [node, connection] = found->second;
    OutgoingBytes& out = proxies_[node].out;
    const std::size_t size = reply.bytes.size() + (reply.body ? reply.body->size() : 0);
    std::string head;
    append_item_head({connection, ItemKind::kData, size}, &head);
    out.write(head + reply.bytes);
    if (reply.body) out.write(reply.body);
    ready_.insert(node);
  }
}

void ProxiedStore::refuse(Node node, std::uint32_t connection, std::string_view reason) {
  std::string item;
  append_item_head({connection, ItemKind::kClose, reason.size()}, &item);
  proxies_[node].out.write(item.append(reason));
  ready_.insert(node);
}

void ProxiedStore::reconnected(Node node) {
  Proxy& proxy = proxies_[node];
  proxy.out.rewind();
  proxy.in.rewind();
  proxy.is_heard = false;
  ready_.insert(node);
}

std::vector<ProxiedStore::Mark> ProxiedStore::take_marks() {
  std::vector<Mark> marks;
  for (const Node node : std::exchange(ready_, {})) {
    const Proxy& proxy = proxies_[node];
    marks.push_back({node, proxy.out.end(), proxy.in.received()});
  }
  return marks;
}

void ProxiedStore::release(const std::vector<Mark>& marks) {
  for (const Mark& mark : marks) {
    Proxy& proxy = proxies_[mark.node];
    proxy.released_out = std::max(proxy.released_out, mark.said);
    proxy.released_in = std::max(proxy.released_in, mark.received);
  }
}

std::optional<std::string> ProxiedStore::next_frame(Node to) {
  Proxy& proxy = proxies_[to];
  const std::uint64_t position = proxy.out.position();
  const std::string bytes =
      proxy.is_heard ? proxy.out.take(kMaxFrameBytes, proxy.released_out) : std::string();
  if (bytes.empty() && !proxy.in.owes_acknowledgement(proxy.released_in)) return std::nullopt;
  proxy.in.acknowledged(proxy.released_in);
  return encode_frame({round_, position, proxy.released_in, bytes});
}

std::size_t ProxiedStore::total_bytes() const {
  std::size_t total = state_.total_bytes();
  for (const auto& [node, proxy] : proxies_) {
    total += proxy.request.size() + proxy.out.unacknowledged_bytes();
  }
  return total;
}

}  // namespace ddprun::store
