// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/child_input.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "common/error.h"
#include "launcher/hosts/channel_codec.h"

namespace ddprun::launcher {

ChildInput::ChildInput(boost::asio::io_context& io, std::function<void(std::size_t)> taken)
    : pipe_(io), taken_(std::move(taken)) {}

void ChildInput::open(UniqueFd pipe) {
  pipe_.assign(pipe.release());
  pipe_.non_blocking(true);
}

void ChildInput::feed(std::string_view bytes) {
  if (!pipe_.is_open() || ended_) return;
  ended_ = bytes.empty();
  if (bytes.size() + next_.size() + outgoing_.size() > channel::kMostInputBytes) {
    throw Error(ErrorCode::kProtocol, "more input than there is room for");
  }
  next_ += bytes;
  write_more();
}

void ChildInput::write_more() {
  if (!outgoing_.empty() || !pipe_.is_open()) return;
  if (next_.empty()) {
    if (ended_) close();
    return;
  }
  outgoing_.swap(next_);
  boost::asio::async_write(pipe_, boost::asio::buffer(outgoing_),
                           [this](const boost::system::error_code& error, std::size_t num_bytes) {
                             outgoing_.clear();
                             if (error) return close();
                             taken_(num_bytes);
                             write_more();
                           });
}

void ChildInput::close() {
  next_.clear();
  boost::system::error_code ignored;
  pipe_.close(ignored);
}

}  // namespace ddprun::launcher
