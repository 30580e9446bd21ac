// SPDX-License-Identifier: Apache-2.0
// How much header an HTTP message may have, of a client or of a server: Beast's own limit is one of
// what it has not parsed yet, and it makes many bytes of memory of each byte in small fields.
#pragma once

#include <cstddef>
#include <iterator>

namespace ddprun::security {

inline constexpr std::size_t kMaxHeaderBytes = 8192;
inline constexpr std::ptrdiff_t kMaxHeaderFields = 100;  // with those behind a chunked body

// Of a Beast parser that was given `num_read` bytes.
template <typename Parser>
bool is_header_too_long(const Parser& parser, std::size_t num_read) {
  const auto& fields = parser.get();
  return (!parser.is_header_done() && num_read > kMaxHeaderBytes) ||
         std::distance(fields.begin(), fields.end()) > kMaxHeaderFields;
}

}  // namespace ddprun::security
