// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/store_proxy.h"

#include <boost/asio/post.hpp>
#include <unordered_map>
#include <utility>

#include "common/error.h"
#include "rendezvous/store/byte_stream.h"
#include "rendezvous/store/proxy_frame.h"

namespace ddprun::store {

class StoreProxy::Impl final : public Backend, public std::enable_shared_from_this<Impl> {
 public:
  Impl(boost::asio::io_context& io, StoreServerOptions options,
       std::function<void(std::string)> send)
      : io_(io), send_(std::move(send)), server_(io, std::move(options), *this) {}

  StoreServer& server() { return server_; }

  void serve(std::uint64_t round, UniqueFd listener) {
    round_ = round;
    server_.listen(std::move(listener));
  }

  void linked() {
    linked_ = true;
    out_.rewind();
    in_.rewind();  // the rendezvous learns what it is to send again
    is_heard_ = false;
    flush_later();
  }

  void unlinked() { linked_ = false; }

  void received(std::string_view message) {
    const ProxyFrame frame = decode_frame(message);
    if (frame.round != round_) return;
    const bool was_full = !has_room();
    if (!out_.acknowledge(frame.received)) {
      throw Error(ErrorCode::kProtocol, "the rendezvous acknowledges what no worker said");
    }
    is_heard_ = true;
    const auto bytes = in_.receive(frame.position, frame.bytes);
    if (!bytes) throw Error(ErrorCode::kProtocol, "bytes of the round's store are missing");
    items_.read(*bytes, [this](const ItemHead& head, std::string_view content, bool is_last) {
      take(head, content, is_last);
    });
    if (was_full && has_room()) server_.resume();
    flush_later();
  }

  // ---- Backend ----

  const Outcome& step(ConnectionId from, const Request& request, std::string_view bytes) override {
    if (request.opcode == Opcode::kValidate) return nothing_;
    const auto [entry, is_new] = names_.try_emplace(from, next_name_);
    if (is_new) connections_[next_name_++] = from;
    std::string head;
    append_item_head({entry->second, ItemKind::kData, bytes.size()}, &head);
    out_.write(head);
    out_.write(bytes);
    flush_later();
    return nothing_;
  }

  const Outcome& disconnect(ConnectionId connection) override {
    const auto found = names_.find(connection);
    if (found == names_.end()) return nothing_;
    std::string item;
    append_item_head({found->second, ItemKind::kClose, 0}, &item);
    out_.write(item);
    connections_.erase(found->second);
    names_.erase(found);
    flush_later();
    return nothing_;
  }

  bool has_room() const override {
    return out_.unacknowledged_bytes() < OutgoingBytes::kWindowBytes;
  }
  std::size_t num_keys() const override { return 0; }
  std::size_t content_bytes() const override { return 0; }
  std::size_t total_bytes() const override { return out_.unacknowledged_bytes(); }

 private:
  void take(const ItemHead& head, std::string_view content, bool is_last) {
    const auto found = connections_.find(head.connection);
    if (found == connections_.end()) return;  // it has gone
    if (head.kind == ItemKind::kData) return server_.reply(found->second, content);
    refusal_ += content;
    if (is_last) server_.refuse(found->second, std::exchange(refusal_, {}));
  }

  // What one wake-up brought goes in one message.
  void flush_later() {
    if (!linked_ || std::exchange(flushing_, true)) return;
    boost::asio::post(io_, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->flush();
    });
  }

  void flush() {
    flushing_ = false;
    while (linked_) {
      const std::uint64_t position = out_.position();
      const std::string bytes = is_heard_ ? out_.take(kMaxFrameBytes) : std::string();
      if (bytes.empty() && !in_.owes_acknowledgement(in_.received())) return;
      in_.acknowledged(in_.received());
      send_(encode_frame({round_, position, in_.received(), bytes}));
    }
  }

  boost::asio::io_context& io_;
  std::uint64_t round_ = 0;
  const std::function<void(std::string)> send_;
  const Outcome nothing_;
  OutgoingBytes out_;
  IncomingBytes in_;
  ItemReader items_;
  std::string refusal_;  // as far as it has come
  // A descriptor is used again; a name never is.
  std::unordered_map<ConnectionId, std::uint32_t> names_;
  std::unordered_map<std::uint32_t, ConnectionId> connections_;
  std::uint32_t next_name_ = 1;
  bool linked_ = false;
  bool is_heard_ = false;  // the rendezvous, on this connection: it has said what it has
  bool flushing_ = false;
  StoreServer server_;  // last: its end calls disconnect()
};

StoreProxy::StoreProxy(boost::asio::io_context& io, StoreServerOptions options,
                       std::function<void(std::string)> send)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(send))) {}

StoreProxy::~StoreProxy() = default;
void StoreProxy::serve(std::uint64_t round, UniqueFd listener) {
  impl_->serve(round, std::move(listener));
}
StoreServerStats StoreProxy::stats() const { return impl_->server().stats(); }
void StoreProxy::when_unused(std::function<void()> unused) {
  impl_->server().when_unused(std::move(unused));
}
void StoreProxy::linked() { impl_->linked(); }
void StoreProxy::unlinked() { impl_->unlinked(); }
void StoreProxy::received(std::string_view message) { impl_->received(message); }

}  // namespace ddprun::store
