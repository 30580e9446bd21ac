// SPDX-License-Identifier: Apache-2.0
// A byte stream that outlives the connections it goes over. Each byte has a position. The receiver
// says up to where it has them, and the rest is sent again on the next connection. So each byte
// arrives once and in order, as within one TCP connection. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/store/store_state.h"

namespace ddprun::store {

class OutgoingBytes {
 public:
  // So much may be under way; what was written beyond waits here.
  static constexpr std::size_t kWindowBytes = std::size_t{1} << 20;
  static constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};

  void write(std::string_view bytes);
  void write(SharedValue value);  // not copied before it is sent

  // The next bytes that were not sent on this connection, at most `max_bytes`, none from position
  // `end` on. Empty: none, or the window is full.
  std::string take(std::size_t max_bytes, std::uint64_t end = kNoEnd);
  // The position of the byte that take() gives next.
  std::uint64_t position() const { return next_; }
  // The position of the byte that write() adds next.
  std::uint64_t end() const { return end_; }

  // The receiver has all before `position`. False: it can't have, so much was never written.
  bool acknowledge(std::uint64_t position);

  // A new connection: all that is not acknowledged is to be sent again.
  void rewind() { move_to(acknowledged_); }

  std::size_t unacknowledged_bytes() const {
    return static_cast<std::size_t>(end_ - acknowledged_);
  }
  std::uint64_t acknowledged() const { return acknowledged_; }
  // Kept bytes that are not in values.
  std::size_t own_bytes() const { return own_bytes_; }

  // The kept pieces: from position begin() on, `bytes` or a whole `value`.
  std::uint64_t begin() const { return begin_; }
  using EachPiece = std::function<void(std::string_view bytes, const SharedValue& value)>;
  void each_piece(const EachPiece& each) const {
    for (const Piece& piece : pieces_) each(piece.bytes, piece.value);
  }
  // As one that wrote so much before, and all of it is acknowledged. Before the first write().
  void start_at(std::uint64_t position) { begin_ = acknowledged_ = next_ = end_ = position; }

 private:
  struct Piece {
    std::string bytes;
    SharedValue value;  // instead of bytes
    std::string_view view() const { return value ? std::string_view(*value) : bytes; }
  };
  void move_to(std::uint64_t position);

  std::deque<Piece> pieces_;  // from begin_ to end_
  std::size_t own_bytes_ = 0;
  std::uint64_t begin_ = 0;  // at most acknowledged_
  std::uint64_t acknowledged_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t end_ = 0;
  std::size_t piece_ = 0;            // of next_: index, …
  std::size_t offset_in_piece_ = 0;  // … and bytes before it; its size only in the last piece
};

class IncomingBytes {
 public:
  // The new ones of `bytes`, which begin at `position`. nullopt: some before are missing.
  std::optional<std::string_view> receive(std::uint64_t position, std::string_view bytes);

  // All before it is here: the acknowledgement.
  std::uint64_t received() const { return received_; }
  void acknowledged(std::uint64_t position) { said_ = position; }  // was sent on this connection
  // A new connection: the acknowledgement that was sent last may be lost.
  void rewind() { said_.reset(); }
  // Worth a frame of its own, so that the sender's window does not fill.
  bool owes_acknowledgement(std::uint64_t position) const {
    return !said_ || position - *said_ >= OutgoingBytes::kWindowBytes / 4;
  }
  // As one that has received so much before.
  void start_at(std::uint64_t position) { received_ = position; }

 private:
  std::uint64_t received_ = 0;
  std::optional<std::uint64_t> said_;  // nullopt: nothing on this connection
};

// One end of the two byte streams of a node and a round, and what it says in frames. Pure.
struct StreamEnd {
  OutgoingBytes out;
  IncomingBytes in;
  // The other end has said, on this connection, what it has: until then it is sent none of `out`,
  // for it may have that.
  bool is_heard = false;

  // A new connection.
  void reconnect();

  // The next frame of `round`, which acknowledges what came before `received` and has bytes of
  // `out` before `end`; nullopt: nothing is to be said now.
  std::optional<std::string> next_frame(std::uint64_t round, std::uint64_t received,
                                        std::uint64_t end = OutgoingBytes::kNoEnd);
};

// The messages between a node's store proxy and the round's store in the rendezvous: frames of two
// byte streams, which carry items. Grammar: docs/internals/store-proxy.md. Pure.

// One binary message. Views point into the bytes that it was read from.
struct ProxyFrame {
  std::uint64_t round = 0;
  std::uint64_t position = 0;  // of bytes' first one in the sender's stream
  std::uint64_t received = 0;  // the sender has all bytes of the other stream before it
  std::string_view bytes;
};
inline constexpr std::size_t kMaxFrameBytes = std::size_t{256} << 10;  // of ProxyFrame::bytes

std::string encode_frame(const ProxyFrame& frame);
// Throws Error(kProtocol).
ProxyFrame decode_frame(std::string_view message);

// One connection's share of a stream.
enum class ItemKind : std::uint8_t {
  kData = 0,   // node → rendezvous: whole requests; rendezvous → node: bytes of replies
  kClose = 1,  // node → rendezvous: the connection ended; back: it is refused, the content is why
};
struct ItemHead {
  std::uint32_t connection = 0;  // the node's name for it; never used again after kClose
  ItemKind kind = ItemKind::kData;
  std::uint64_t size_bytes = 0;
};
inline constexpr std::size_t kItemHeadBytes = 4 + 1 + 8;
// Appends the head; the content is to follow.
void append_item_head(const ItemHead& head, std::string* out);
// Takes a head from `bytes`; nullopt: not all of it is there. Error(kProtocol): an unknown kind.
std::optional<ItemHead> read_item_head(std::string_view* bytes);

// Cuts a stream's bytes into items, as they come.
class ItemReader {
 public:
  // `part` is called for each piece of an item's content as it arrives, at least once per item;
  // `is_last`: the item is complete. Throws Error(kProtocol): an unknown kind.
  using Part = std::function<void(const ItemHead& head, std::string_view content, bool is_last)>;
  void read(std::string_view bytes, const Part& part);

 private:
  std::string head_bytes_;  // of a head that is not complete
  ItemHead head_;
  std::uint64_t missing_ = 0;  // bytes of head_'s content
  bool in_item_ = false;
};

}  // namespace ddprun::store
