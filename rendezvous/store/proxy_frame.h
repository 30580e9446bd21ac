// SPDX-License-Identifier: Apache-2.0
// What goes between a node's store proxy and the round's store in the rendezvous: frames of two
// byte streams, which carry items. Grammar: docs/store-proxy.md. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::store {

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
// Takes a head from the beginning of `bytes`; nullopt: not all of it is there. Throws
// Error(kProtocol): an unknown kind.
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
