// SPDX-License-Identifier: Apache-2.0
// One request of the store protocol, and its bytes. Pure: no I/O, clock or thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::store {

// First byte of a request of PyTorch's c10d TCPStore protocol (docs/internals/store.md has the
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

// Each one's fields. m: magic, w: u32, i: i64, k: key, v: value, x: expected, l: keys, e: (k, v)s.
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

// "SET", …, for messages.
std::string_view opcode_name(Opcode opcode);

// Follows the VALIDATE opcode, in native byte order like every integer of the protocol.
inline constexpr std::uint32_t kValidateMagic = 0x3C85F7CE;

// One-byte replies.
inline constexpr char kReady = 0;         // CHECK: all keys exist
inline constexpr char kNotReady = 1;      // CHECK
inline constexpr char kStopWaiting = 0;   // WAIT, BARRIER
inline constexpr char kWaitCanceled = 1;  // CANCEL_WAIT, always

// In front of every user key; only the join counter of PyTorch's workers, "init/", has it not.
inline constexpr char kKeyPrefix = '/';

// Limits of one request to a server. Checked as soon as a length is read.
struct RequestLimits {
  std::size_t max_key_bytes = 8192;                     // as PyTorch's, the "/" included
  std::size_t max_value_bytes = std::size_t{64} << 20;  // per value; PyTorch's server: 8 MiB
  std::size_t max_keys_per_request = 131072;
  std::size_t max_request_bytes = std::size_t{256} << 20;
};

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
