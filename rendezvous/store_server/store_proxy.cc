// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/store_proxy.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "rendezvous/store/proxy_end.h"
#include "rendezvous/store/proxy_frame.h"

namespace ddprun::store {

class StoreProxy::Impl final : public Backend, public std::enable_shared_from_this<Impl> {
 public:
  Impl(boost::asio::io_context& io, StoreServerOptions options,
       std::function<void(std::string)> send)
      : io_(io),
        send_(std::move(send)),
        end_({[this](ConnectionId to, std::string_view bytes) { server_.reply(to, bytes); },
              [this](ConnectionId of, const std::string& reason) { server_.refuse(of, reason); }}),
        server_(io, std::move(options), *this) {}

  StoreServer& server() { return server_; }

  void serve(std::uint64_t round, UniqueFd listener) {
    round_ = round;
    server_.listen(std::move(listener));
  }

  void linked() {
    linked_ = true;
    end_.reconnect();
    flush_later();
  }

  void unlinked() { linked_ = false; }

  void received(std::string_view message) {
    const ProxyFrame frame = decode_frame(message);
    if (frame.round != round_) return;
    const bool was_full = !has_room();
    end_.received(frame);
    if (was_full && has_room()) server_.resume();
    flush_later();
  }

  // ---- Backend ----

  const Outcome& step(ConnectionId from, const Request& request, std::string_view bytes) override {
    if (request.opcode == Opcode::kValidate) return nothing_;
    end_.request(from, bytes);
    flush_later();
    return nothing_;
  }

  const Outcome& disconnect(ConnectionId connection) override {
    if (end_.gone(connection)) flush_later();
    return nothing_;
  }

  bool has_room() const override { return end_.has_room(); }
  std::size_t num_keys() const override { return 0; }
  std::size_t content_bytes() const override { return 0; }
  std::size_t total_bytes() const override { return end_.unacknowledged_bytes(); }

 private:
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
      auto frame = end_.next_frame(round_);
      if (!frame) return;
      send_(std::move(*frame));
    }
  }

  boost::asio::io_context& io_;
  std::uint64_t round_ = 0;
  const std::function<void(std::string)> send_;
  const Outcome nothing_;
  ProxyEnd end_;
  bool linked_ = false;
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
