// SPDX-License-Identifier: Apache-2.0
// What two nodes say to each other while they measure the way between them. Pure. A connection
// carries one request:
//
//   request  = token (32 hex digits)  kind (1 byte)  num_bytes (u64)  nanoseconds (u64)
//   kGreet   → node rank (u32)  when it came (i64)  when this is sent (i64): ns since 1970
//   kEcho    → each byte that comes, back
//   kReceive → takes bytes until it has num_bytes or nanoseconds have passed since the first one,
//              then says how many (u64) in how long (u64, ns), and closes
//   kSend    → sends until nanoseconds have passed, or num_bytes are sent, and closes
//
// A datagram to the same port number that begins with the token is answered by its size (u32). All
// numbers are big-endian. What doesn't begin with the token has no answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::doctor {

enum class PeerRequestKind : char { kGreet = 'g', kEcho = 'e', kReceive = 'r', kSend = 's' };

struct PeerRequest {
  PeerRequestKind kind = PeerRequestKind::kGreet;
  std::uint64_t num_bytes = 0, nanoseconds = 0;
};

inline constexpr std::size_t kTokenBytes = 32;
inline constexpr std::size_t kRequestBytes = kTokenBytes + 1 + 8 + 8;
inline constexpr std::size_t kGreetingBytes = 4 + 8 + 8;
inline constexpr std::size_t kReceivedBytes = 8 + 8;

inline void put_number(std::string& text, std::uint64_t value, std::size_t num_bytes) {
  for (std::size_t i = num_bytes; i-- > 0;) {
    text.push_back(static_cast<char>(static_cast<unsigned char>(value >> (8 * i))));
  }
}

inline std::uint64_t number_at(std::string_view text, std::size_t at, std::size_t num_bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < num_bytes; ++i) {
    value = value << 8 | static_cast<unsigned char>(text[at + i]);
  }
  return value;
}

inline std::string to_bytes(const std::string& token, const PeerRequest& request) {
  std::string text = token;
  text.push_back(static_cast<char>(request.kind));
  put_number(text, request.num_bytes, 8);
  put_number(text, request.nanoseconds, 8);
  return text;
}

}  // namespace ddprun::doctor
