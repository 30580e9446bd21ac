// SPDX-License-Identifier: Apache-2.0
// The numbers of PyTorch's c10d TCPStore protocol. The grammar is in docs/store.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddprun::store {

// First byte of a request.
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

// "SET", …, for messages.
std::string_view opcode_name(Opcode opcode);

// What follows the VALIDATE opcode, in native byte order like every integer of the protocol.
inline constexpr std::uint32_t kValidateMagic = 0x3C85F7CE;

// One-byte replies.
inline constexpr char kReady = 0;         // CHECK: all keys exist
inline constexpr char kNotReady = 1;      // CHECK
inline constexpr char kStopWaiting = 0;   // WAIT, BARRIER
inline constexpr char kWaitCanceled = 1;  // CANCEL_WAIT, always

// Every user key travels with this in front; the join counter is the one key without it.
inline constexpr char kKeyPrefix = '/';
inline constexpr std::string_view kJoinCounterKey = "init/";

// What a server accepts in one request. Checked as soon as a length is read.
struct RequestLimits {
  std::size_t max_key_bytes = 8192;                     // as PyTorch's, the "/" included
  std::size_t max_value_bytes = std::size_t{64} << 20;  // per value; PyTorch's server: 8 MiB
  std::size_t max_keys_per_request = 131072;
};

}  // namespace ddprun::store
