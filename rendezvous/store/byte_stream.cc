// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/byte_stream.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/throw_error.h"

namespace ddprun::store {
namespace {

constexpr std::size_t kPieceBytes = 64 << 10;  // small writes join a piece up to this size

static_assert(std::endian::native == std::endian::little);  // as in the store's own protocol

constexpr std::string_view kMagic{"dps\1", 4};
constexpr std::size_t kFrameHeadBytes = 4 + 3 * 8;

template <typename Integer>
void append(Integer value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename Integer>
Integer read_at(std::string_view bytes, std::size_t offset) {
  Integer value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

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
      offset_in_piece_ = 0;  // it was at the piece's end
    }
  }
  return true;
}

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

void StreamEnd::reconnect() {
  out.rewind();
  in.rewind();
  is_heard = false;
}

std::optional<std::string> StreamEnd::next_frame(std::uint64_t round, std::uint64_t received,
                                                 std::uint64_t end) {
  const std::uint64_t position = out.position();
  const std::string bytes = is_heard ? out.take(kMaxFrameBytes, end) : std::string();
  if (bytes.empty() && !in.owes_acknowledgement(received)) return std::nullopt;
  in.acknowledged(received);
  return encode_frame({round, position, received, bytes});
}

std::string encode_frame(const ProxyFrame& frame) {
  std::string message;
  message.reserve(kFrameHeadBytes + frame.bytes.size());
  message += kMagic;
  append(frame.round, &message);
  append(frame.position, &message);
  append(frame.received, &message);
  message += frame.bytes;
  return message;
}

ProxyFrame decode_frame(std::string_view message) {
  if (message.size() < kFrameHeadBytes || !message.starts_with(kMagic)) {
    throw Error(ErrorCode::kProtocol, "a binary message is no frame of a store proxy");
  }
  ProxyFrame frame;
  frame.round = read_at<std::uint64_t>(message, 4);
  frame.position = read_at<std::uint64_t>(message, 12);
  frame.received = read_at<std::uint64_t>(message, 20);
  frame.bytes = message.substr(kFrameHeadBytes);
  if (frame.bytes.size() > kMaxFrameBytes) {
    throw_error(ErrorCode::kProtocol, "a frame of a store proxy has ", frame.bytes.size(),
                " bytes, the limit is ", kMaxFrameBytes);
  }
  return frame;
}

void append_item_head(const ItemHead& head, std::string* out) {
  append(head.connection, out);
  append(head.kind, out);
  append(head.size_bytes, out);
}

std::optional<ItemHead> read_item_head(std::string_view* bytes) {
  if (bytes->size() < kItemHeadBytes) return std::nullopt;
  ItemHead head;
  head.connection = read_at<std::uint32_t>(*bytes, 0);
  head.kind = read_at<ItemKind>(*bytes, 4);
  head.size_bytes = read_at<std::uint64_t>(*bytes, 5);
  if (head.kind != ItemKind::kData && head.kind != ItemKind::kClose) {
    throw_error(ErrorCode::kProtocol, "a store proxy's item has kind ",
                static_cast<int>(head.kind));
  }
  bytes->remove_prefix(kItemHeadBytes);
  return head;
}

void ItemReader::read(std::string_view bytes, const Part& part) {
  while (!bytes.empty()) {
    if (!in_item_) {
      const std::size_t more = std::min(kItemHeadBytes - head_bytes_.size(), bytes.size());
      head_bytes_ += bytes.substr(0, more);
      bytes.remove_prefix(more);
      std::string_view whole = head_bytes_;
      const auto head = read_item_head(&whole);
      if (!head) return;
      head_ = *head;
      missing_ = head->size_bytes;
      head_bytes_.clear();
      in_item_ = true;
      if (missing_ > 0) continue;
    }
    const std::string_view content =
        bytes.substr(0, std::min<std::uint64_t>(missing_, bytes.size()));
    bytes.remove_prefix(content.size());
    missing_ -= content.size();
    in_item_ = missing_ > 0;
    part(head_, content, !in_item_);
  }
}

}  // namespace ddprun::store
