// SPDX-License-Identifier: Apache-2.0
// A byte stream that outlives the connections it goes over. Each byte has a position. The receiver
// says up to which position it has all bytes, and the rest is sent again on the next connection. So
// each byte arrives once and in order, as within one TCP connection. Pure.
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
  // At most so many sent bytes may be unacknowledged; further written bytes wait here.
  static constexpr std::size_t kWindowBytes = std::size_t{1} << 20;
  static constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};

  void write(std::string_view bytes);
  void write(SharedValue value);  // copied only when it is sent

  // Returns the next bytes that were not sent on this connection: at most `max_bytes`, all before
  // position `end`. Empty: there are none, or the window is full.
  std::string take(std::size_t max_bytes, std::uint64_t end = kNoEnd);
  // The position of the byte that take() gives next.
  std::uint64_t position() const { return next_; }
  // The position of the byte that write() adds next.
  std::uint64_t end() const { return end_; }

  // Records that the receiver has all bytes before `position`. Returns false if so many were never
  // written.
  bool acknowledge(std::uint64_t position);

  // Called on a new connection: take() returns all unacknowledged bytes again.
  void rewind() { move_to(acknowledged_); }

  std::size_t unacknowledged_bytes() const {
    return static_cast<std::size_t>(end_ - acknowledged_);
  }
  std::uint64_t acknowledged() const { return acknowledged_; }
  // The number of kept bytes that are not in values.
  std::size_t own_bytes() const { return own_bytes_; }

  // The kept pieces, from position begin() on. Each is `bytes` or a whole `value`.
  std::uint64_t begin() const { return begin_; }
  using EachPiece = std::function<void(std::string_view bytes, const SharedValue& value)>;
  void each_piece(const EachPiece& each) const {
    for (const Piece& piece : pieces_) each(piece.bytes, piece.value);
  }
  // Starts as if so many bytes had been written and acknowledged. Called before the first write().
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
  std::uint64_t begin_ = 0;  // position of the first kept byte, at most acknowledged_
  std::uint64_t acknowledged_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t end_ = 0;
  std::size_t piece_ = 0;            // index of next_'s piece, …
  std::size_t offset_in_piece_ = 0;  // … and bytes before it in the piece; all only in the last one
};

class IncomingBytes {
 public:
  // Takes `bytes`, which begin at `position`, and returns the new ones. nullopt: earlier bytes are
  // missing.
  std::optional<std::string_view> receive(std::uint64_t position, std::string_view bytes);

  // The position to acknowledge: all bytes before it have arrived.
  std::uint64_t received() const { return received_; }
  void acknowledged(std::uint64_t position) { said_ = position; }  // the acknowledgement was sent
  // Called on a new connection: the last acknowledgement may be lost.
  void rewind() { said_.reset(); }
  // Returns whether the acknowledgement needs a frame of its own, so that the sender's window does
  // not fill.
  bool owes_acknowledgement(std::uint64_t position) const {
    return !said_ || position - *said_ >= OutgoingBytes::kWindowBytes / 4;
  }
  // Starts as if so many bytes had been received.
  void start_at(std::uint64_t position) { received_ = position; }

 private:
  std::uint64_t received_ = 0;
  std::optional<std::uint64_t> said_;  // last acknowledged; nullopt: nothing on this connection
};

// One end of the two byte streams of a node and a round. It makes the frames to send. Pure.
struct StreamEnd {
  OutgoingBytes out;
  IncomingBytes in;
  // True when the other end has said on this connection which bytes it has. Until then nothing of
  // `out` is sent: the other end may have it already.
  bool is_heard = false;

  // Called on a new connection.
  void reconnect();

  // Returns the next frame of `round`. It acknowledges all before `received` and has bytes of `out`
  // before `end`. nullopt: there is nothing to send now.
  std::optional<std::string> next_frame(std::uint64_t round, std::uint64_t received,
                                        std::uint64_t end = OutgoingBytes::kNoEnd);
};

// The messages between a node's store proxy and the round's store in the rendezvous. They are
// frames of two byte streams, which carry items. docs/internals/store-proxy.md has the grammar.
// Pure.

// One binary message. Views point into the bytes that it was read from.
struct ProxyFrame {
  std::uint64_t round = 0;
  std::uint64_t position = 0;  // of the first of `bytes` in the sender's stream
  std::uint64_t received = 0;  // the sender has all earlier bytes of the other stream
  std::string_view bytes;
};
inline constexpr std::size_t kMaxFrameBytes = std::size_t{256} << 10;  // limit of ProxyFrame::bytes

std::string encode_frame(const ProxyFrame& frame);
// Throws Error(kProtocol).
ProxyFrame decode_frame(std::string_view message);

// An item is one connection's share of a stream.
enum class ItemKind : std::uint8_t {
  kData = 0,  // node → rendezvous: whole requests; rendezvous → node: bytes of replies
  // node → rendezvous: the connection ended; rendezvous → node: it is refused, for the reason in
  // the content.
  kClose = 1,
};
struct ItemHead {
  std::uint32_t connection = 0;  // the node's number for it; not reused after kClose
  ItemKind kind = ItemKind::kData;
  std::uint64_t size_bytes = 0;
};
inline constexpr std::size_t kItemHeadBytes = 4 + 1 + 8;
// Appends the head; the caller then appends the content.
void append_item_head(const ItemHead& head, std::string* out);
// Takes a head from `bytes`; nullopt: it isn't complete. Throws Error(kProtocol) at an unknown
// kind.
std::optional<ItemHead> read_item_head(std::string_view* bytes);

// Cuts a stream's bytes into items, as they come.
class ItemReader {
 public:
  // Calls `part` for each piece of an item's content as it arrives, at least once per item.
  // `is_last` says that the item is complete. Throws Error(kProtocol) at an unknown kind.
  using Part = std::function<void(const ItemHead& head, std::string_view content, bool is_last)>;
  void read(std::string_view bytes, const Part& part);

 private:
  std::string head_bytes_;  // of an incomplete head
  ItemHead head_;
  std::uint64_t missing_ = 0;  // bytes of the item's content
  bool in_item_ = false;
};

}  // namespace ddprun::store
