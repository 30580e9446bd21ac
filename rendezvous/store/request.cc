// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/request.h"

namespace ddprun::store {
namespace {

template <typename Integer>
void append_integer(Integer value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
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
  for (const char* field = kRequestFields[static_cast<int>(request.opcode)]; *field; ++field) {
    switch (*field) {
      case 'm':
      case 'w':
        append_integer(request.word, out);
        break;
      case 'i':
        append_integer(request.number, out);
        break;
      case 'k':
        append_vector(request.key.text(), out);
        break;
      case 'v':
        append_vector(request.value, out);
        break;
      case 'x':
        append_vector(request.expected, out);
        break;
      default:
        append_u64(request.keys.size(), out);
        for (std::size_t i = 0; i < request.keys.size(); ++i) {
          append_vector(request.keys[i], out);
          if (*field == 'e') append_vector(request.values[i], out);
        }
    }
  }
}

std::string encoded(const Request& request) {
  std::string bytes;
  encode_request(request, &bytes);
  return bytes;
}

}  // namespace ddprun::store
