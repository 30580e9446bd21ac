// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/store_proxy.h"

#include <boost/asio/post.hpp>

#include "common/error.h"

namespace ddprun::store {

StoreProxy::StoreProxy(boost::asio::io_context& io, StoreServerOptions options,
                       std::function<void(std::string)> send)
    : io_(io),
      send_(std::move(send)),
      end_({[this](ConnectionId to, std::string_view bytes) { server_.reply(to, bytes); },
            [this](ConnectionId of, const std::string& reason) { server_.refuse(of, reason); }}),
      server_(io, std::move(options), this) {}

void StoreProxy::serve(std::uint64_t round, UniqueFd listener) {
  round_ = round;
  server_.listen(std::move(listener));
}

void StoreProxy::linked() {
  linked_ = true;
  end_.reconnect();
  flush_later();
}

void StoreProxy::received(std::string_view message) {
  const ProxyFrame frame = decode_frame(message);
  if (frame.round != round_) return;
  const bool was_full = !has_room();
  end_.received(frame);
  if (was_full && has_room()) server_.resume();
  flush_later();
}

const Outcome& StoreProxy::step(ConnectionId from, const Request& request, std::string_view bytes) {
  if (request.opcode == Opcode::kValidate) return nothing_;
  end_.request(from, bytes);
  flush_later();
  return nothing_;
}

const Outcome& StoreProxy::disconnect(ConnectionId connection) {
  if (end_.gone(connection)) flush_later();
  return nothing_;
}

// Sends later, so that all requests of one wake-up share a message.
void StoreProxy::flush_later() {
  if (!linked_ || std::exchange(flushing_, true)) return;
  boost::asio::post(io_, [this, weak = std::weak_ptr<int>(alive_)] {
    if (weak.expired()) return;
    flushing_ = false;
    const auto send = send_;  // the call may destroy this proxy
    while (!weak.expired() && linked_) {
      auto frame = end_.next_frame(round_);
      if (!frame) return;
      send(std::move(*frame));
    }
  });
}

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
  if (found == connections_.end()) return;  // the connection has ended
  if (head.kind == ItemKind::kData) return handlers_.reply(found->second, content);
  refusal_ += content;
  if (is_last) handlers_.refuse(found->second, std::exchange(refusal_, {}));
}

}  // namespace ddprun::store
