// SPDX-License-Identifier: Apache-2.0
// One request of each operation, for tests that must cover all of them.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/store/request.h"

namespace ddprun::store::testing {

inline Request request_of(Opcode opcode, std::string_view key = {}, std::string_view value = {}) {
  Request request;
  request.opcode = opcode;
  request.key = key;
  request.value = value;
  return request;
}

inline Request request_of_number(Opcode opcode, std::string_view key, std::int64_t number) {
  Request request = request_of(opcode, key);
  request.number = number;
  return request;
}

inline Request request_of_keys(Opcode opcode, std::vector<std::string_view> keys,
                               std::vector<std::string_view> values = {}) {
  Request request = request_of(opcode);
  request.keys = std::move(keys);
  request.values = std::move(values);
  return request;
}

inline Request validate_request() {
  Request request = request_of(Opcode::kValidate);
  request.word = kValidateMagic;
  return request;
}

inline Request ping_request(std::uint32_t nonce) {
  Request request = request_of(Opcode::kPing);
  request.word = nonce;
  return request;
}

inline Request compare_set_request(std::string_view key, std::string_view expected,
                                   std::string_view desired) {
  Request request = request_of(Opcode::kCompareSet, key, desired);
  request.expected = expected;
  return request;
}

// The first one is the handshake, as in each stream.
inline std::vector<Request> all_requests() {
  return {
      validate_request(),
      ping_request(12345),
      request_of(Opcode::kSet, "/k", "value"),
      request_of(Opcode::kSet, "", ""),
      compare_set_request("/c", "old", "new"),
      request_of(Opcode::kGet, "/k"),
      request_of_number(Opcode::kAdd, "/n", -7),
      request_of_keys(Opcode::kCheck, {}),
      request_of_keys(Opcode::kCheck, {"/a", "/b", ""}),
      request_of_keys(Opcode::kWait, {"/a"}),
      request_of(Opcode::kGetNumKeys),
      request_of(Opcode::kDeleteKey, "/k"),
      request_of(Opcode::kAppend, "/k", std::string_view("\0\1", 2)),
      request_of_keys(Opcode::kMultiGet, {"/a", "/b"}),
      request_of_keys(Opcode::kMultiSet, {"/a", "/b"}, {"1", "22"}),
      request_of(Opcode::kCancelWait),
      request_of(Opcode::kQueuePush, "/q", "element"),
      request_of(Opcode::kQueuePop, "/q"),
      request_of(Opcode::kQueueLen, "/q"),
      request_of(Opcode::kListKeys),
      request_of_number(Opcode::kBarrier, "/b", 2),
  };
}

inline std::string encoded(const std::vector<Request>& requests) {
  std::string bytes;
  for (const Request& request : requests) encode_request(request, &bytes);
  return bytes;
}

}  // namespace ddprun::store::testing
