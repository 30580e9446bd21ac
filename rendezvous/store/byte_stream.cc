// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/byte_stream.h"

#include <algorithm>
#include <utility>

namespace ddprun::store {
namespace {

constexpr std::size_t kPieceBytes = 64 << 10;  // small writes are gathered up to this

}  // namespace

void OutgoingBytes::write(std::string_view bytes) {
  if (bytes.empty()) return;
  if (pieces_.empty() || pieces_.back().value || pieces_.back().bytes.size() >= kPieceBytes) {
    pieces_.emplace_back();
  }
  pieces_.back().bytes += bytes;
  own_bytes_ += bytes.size();
  end_ += bytes.size();
}

void OutgoingBytes::write(SharedValue value) {
  if (value->empty()) return;
  end_ += value->size();
  pieces_.push_back({{}, std::move(value)});
}

std::string OutgoingBytes::take(std::size_t max_bytes, std::uint64_t end) {
  const std::uint64_t limit = std::min({end_, acknowledged_ + kWindowBytes, end});
  std::string taken;
  while (next_ < limit && taken.size() < max_bytes) {
    if (offset_in_piece_ == pieces_[piece_].view().size()) {
      ++piece_;
      offset_in_piece_ = 0;
    }
    const std::string_view rest = pieces_[piece_].view().substr(offset_in_piece_);
    const std::size_t size =
        std::min({rest.size(), max_bytes - taken.size(), static_cast<std::size_t>(limit - next_)});
    taken += rest.substr(0, size);
    offset_in_piece_ += size;
    next_ += size;
  }
  return taken;
}

bool OutgoingBytes::acknowledge(std::uint64_t position) {
  if (position > end_) return false;
  if (position <= acknowledged_) return true;
  acknowledged_ = position;
  if (position > next_) move_to(position);
  while (!pieces_.empty() && begin_ + pieces_.front().view().size() <= position) {
    begin_ += pieces_.front().view().size();
    own_bytes_ -= pieces_.front().bytes.size();
    pieces_.pop_front();
    if (piece_ > 0) {
      --piece_;
    } else {
      offset_in_piece_ = 0;  // it was at its end
    }
  }
  return true;
}

void OutgoingBytes::rewind() { move_to(acknowledged_); }

void OutgoingBytes::move_to(std::uint64_t position) {
  next_ = position;
  std::uint64_t before = begin_;
  piece_ = 0;
  while (piece_ + 1 < pieces_.size() && before + pieces_[piece_].view().size() <= position) {
    before += pieces_[piece_++].view().size();
  }
  offset_in_piece_ = static_cast<std::size_t>(position - before);
}

std::optional<std::string_view> IncomingBytes::receive(std::uint64_t position,
                                                       std::string_view bytes) {
  if (position > received_) return std::nullopt;
  const std::uint64_t known = received_ - position;
  if (known >= bytes.size()) return std::string_view();
  bytes.remove_prefix(static_cast<std::size_t>(known));
  received_ += bytes.size();
  return bytes;
}

}  // namespace ddprun::store
