// SPDX-License-Identifier: Apache-2.0
// A request of the store protocol, and its encoding. Pure: no I/O, clock or thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/hashed_key.h"

namespace ddprun::store {

// The first byte of a request of PyTorch's c10d TCPStore protocol (docs/internals/store.md has the
// grammar).
enum class Opcode : std::uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kGetNumKeys = 7,
  kDeleteKey = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLen = 16,
  kListKeys = 17,
  kBarrier = 18,
};
inline constexpr int kNumOpcodes = 19;

// The fields of each request. m: magic, w: u32, i: i64, k: key, v: value, x: expected, l: keys, e:
// (k, v) pairs.
inline constexpr const char* kRequestFields[kNumOpcodes] = {
    "m",    // VALIDATE
    "kv",   // SET
    "kxv",  // COMPARE_SET
    "k",    // GET
    "ki",   // ADD
    "l",    // CHECK
    "l",    // WAIT
    "",     // GETNUMKEYS
    "k",    // DELETE_KEY
    "kv",   // APPEND
    "l",    // MULTI_GET
    "e",    // MULTI_SET
    "",     // CANCEL_WAIT
    "w",    // PING
    "kv",   // QUEUE_PUSH
    "k",    // QUEUE_POP
    "k",    // QUEUE_LEN
    "",     // LIST_KEYS
    "ki",   // BARRIER
};

// Returns "SET", …, for messages to people.
std::string_view opcode_name(Opcode opcode);

// Follows the VALIDATE opcode, in native byte order like every integer of the protocol.
inline constexpr std::uint32_t kValidateMagic = 0x3C85F7CE;

// One-byte replies.
inline constexpr char kReady = 0;         // CHECK: all keys exist
inline constexpr char kNotReady = 1;      // CHECK
inline constexpr char kStopWaiting = 0;   // WAIT, BARRIER
inline constexpr char kWaitCanceled = 1;  // CANCEL_WAIT, always

// The first byte of every user key. Only the join counter of PyTorch's workers, "init/", lacks it.
inline constexpr char kKeyPrefix = '/';

// Limits of one request to a server. They are checked as soon as a length is read.
struct RequestLimits {
  std::size_t max_key_bytes = 8192;                     // as in PyTorch, with the "/"
  std::size_t max_value_bytes = std::size_t{64} << 20;  // per value; PyTorch's server: 8 MiB
  std::size_t max_keys_per_request = 131072;
  std::size_t max_request_bytes = std::size_t{256} << 20;
};

// Fields that the opcode does not have are empty. Views point into the bytes that were parsed. In a
// request to send they point into the sender's memory, valid until it is encoded.
struct Request {
  Opcode opcode = Opcode::kPing;
  HashedKey key = {};
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
// Returns the request's bytes.
std::string encoded(const Request& request);

// Append a value in native byte order; a u64 length and the bytes.
void append_u64(std::uint64_t value, std::string* out);
void append_vector(std::string_view bytes, std::string* out);

}  // namespace ddprun::store
