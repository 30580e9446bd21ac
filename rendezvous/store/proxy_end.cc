// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/proxy_end.h"

#include <utility>

#include "common/error.h"

namespace ddprun::store {

void ProxyEnd::request(ConnectionId from, std::string_view bytes) {
  const auto [entry, is_new] = names_.try_emplace(from, next_name_);
  if (is_new) connections_[next_name_++] = from;
  std::string head;
  append_item_head({entry->second, ItemKind::kData, bytes.size()}, &head);
  streams_.out.write(head);
  streams_.out.write(bytes);
}

bool ProxyEnd::gone(ConnectionId connection) {
  const auto found = names_.find(connection);
  if (found == names_.end()) return false;
  std::string item;
  append_item_head({found->second, ItemKind::kClose, 0}, &item);
  streams_.out.write(item);
  connections_.erase(found->second);
  names_.erase(found);
  return true;
}

void ProxyEnd::received(const ProxyFrame& frame) {
  if (!streams_.out.acknowledge(frame.received)) {
    throw Error(ErrorCode::kProtocol, "the rendezvous acknowledges what no worker said");
  }
  streams_.is_heard = true;
  const auto bytes = streams_.in.receive(frame.position, frame.bytes);
  if (!bytes) throw Error(ErrorCode::kProtocol, "bytes of the round's store are missing");
  items_.read(*bytes, [this](const ItemHead& head, std::string_view content, bool is_last) {
    take(head, content, is_last);
  });
}

void ProxyEnd::take(const ItemHead& head, std::string_view content, bool is_last) {
  const auto found = connections_.find(head.connection);
  if (found == connections_.end()) return;  // it has gone
  if (head.kind == ItemKind::kData) return handlers_.reply(found->second, content);
  refusal_ += content;
  if (is_last) handlers_.refuse(found->second, std::exchange(refusal_, {}));
}

}  // namespace ddprun::store
