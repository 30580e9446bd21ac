// SPDX-License-Identifier: Apache-2.0
// One request of the store protocol, and its bytes. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/protocol.h"

namespace ddprun::store {

// Fields that the opcode does not have are empty. Views point into the bytes it was parsed from, or
// into whatever the sender keeps alive until it is encoded.
struct Request {
  Opcode opcode = Opcode::kPing;
  std::string_view key = {};
  std::string_view value = {};     // SET, APPEND, QUEUE_PUSH; COMPARE_SET: the desired value
  std::string_view expected = {};  // COMPARE_SET
  std::int64_t number = 0;         // ADD: the summand; BARRIER: the world size
  std::uint32_t word = 0;          // VALIDATE: the magic; PING: the nonce
  std::vector<std::string_view> keys = {};    // CHECK, WAIT, MULTI_GET, MULTI_SET
  std::vector<std::string_view> values = {};  // MULTI_SET: values[i] belongs to keys[i]

  friend bool operator==(const Request&, const Request&) = default;
};

// Appends the request's bytes to `out`.
void encode_request(const Request& request, std::string* out);
// They alone.
std::string encoded(const Request& request);

// Appends a value in native byte order; a u64 length and the bytes.
void append_u64(std::uint64_t value, std::string* out);
void append_vector(std::string_view bytes, std::string* out);

}  // namespace ddprun::store
