// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/request.h"

namespace ddprun::store {
namespace {

template <typename Integer>
void append_integer(Integer value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_keys(const Request& request, std::string* out) {
  append_u64(request.keys.size(), out);
  for (std::string_view key : request.keys) append_vector(key, out);
}

}  // namespace

std::string_view opcode_name(Opcode opcode) {
  static constexpr std::string_view kNames[kNumOpcodes] = {
      "VALIDATE",   "SET",        "COMPARE_SET", "GET",       "ADD",       "CHECK",       "WAIT",
      "GETNUMKEYS", "DELETE_KEY", "APPEND",      "MULTI_GET", "MULTI_SET", "CANCEL_WAIT", "PING",
      "QUEUE_PUSH", "QUEUE_POP",  "QUEUE_LEN",   "LIST_KEYS", "BARRIER"};
  const auto index = static_cast<std::size_t>(opcode);
  return index < kNumOpcodes ? kNames[index] : "unknown operation";
}

void append_u64(std::uint64_t value, std::string* out) { append_integer(value, out); }

void append_vector(std::string_view bytes, std::string* out) {
  append_u64(bytes.size(), out);
  out->append(bytes);
}

void encode_request(const Request& request, std::string* out) {
  out->push_back(static_cast<char>(request.opcode));
  switch (request.opcode) {
    case Opcode::kValidate:
    case Opcode::kPing:
      append_integer(request.word, out);
      return;
    case Opcode::kSet:
    case Opcode::kAppend:
    case Opcode::kQueuePush:
      append_vector(request.key, out);
      append_vector(request.value, out);
      return;
    case Opcode::kCompareSet:
      append_vector(request.key, out);
      append_vector(request.expected, out);
      append_vector(request.value, out);
      return;
    case Opcode::kGet:
    case Opcode::kDeleteKey:
    case Opcode::kQueuePop:
    case Opcode::kQueueLen:
      append_vector(request.key, out);
      return;
    case Opcode::kAdd:
    case Opcode::kBarrier:
      append_vector(request.key, out);
      append_integer(request.number, out);
      return;
    case Opcode::kCheck:
    case Opcode::kWait:
    case Opcode::kMultiGet:
      append_keys(request, out);
      return;
    case Opcode::kMultiSet:
      append_u64(request.keys.size(), out);
      for (std::size_t i = 0; i < request.keys.size(); ++i) {
        append_vector(request.keys[i], out);
        append_vector(request.values[i], out);
      }
      return;
    case Opcode::kGetNumKeys:
    case Opcode::kCancelWait:
    case Opcode::kListKeys:
      return;
  }
}

std::string encoded(const Request& request) {
  std::string bytes;
  encode_request(request, &bytes);
  return bytes;
}

}  // namespace ddprun::store
