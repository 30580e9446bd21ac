// SPDX-License-Identifier: Apache-2.0
// Fuzzes the store's parser and key space. The input is two bytes that choose the segmentation and
// the connections, then a stream. Beyond "no crash" this must hold:
//  - in one piece and in random pieces the stream has the same requests and the same end;
//  - the requests, encoded again, are the bytes that were read;
//  - a WAIT ends exactly when CHECK says that its keys exist (streams without queues and barriers);
//  - the memory cap holds, and when everybody has gone and all is deleted nothing is accounted.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/check.h"
#include "rendezvous/store/request_parser.h"
#include "rendezvous/store/store_state.h"

namespace {

using namespace ddprun::store;

constexpr std::size_t kMaxTotalBytes = 1 << 16;
constexpr ConnectionId kNumConnections = 3;
constexpr ConnectionId kProbe = 99;

struct Parsed {
  std::vector<std::string> requests;  // encoded
  ParseStatus status = ParseStatus::kNeedMore;
  std::string error;

  friend bool operator==(const Parsed&, const Parsed&) = default;
};

RequestLimits small_limits() {
  RequestLimits limits;
  limits.max_key_bytes = 64;
  limits.max_value_bytes = 1024;
  limits.max_keys_per_request = 32;
  return limits;
}

// `segment_of(left)`: the size of the next segment, 1…left.
template <typename SegmentOf>
Parsed parse(std::string_view stream, SegmentOf segment_of) {
  const RequestLimits limits = small_limits();
  RequestParser parser(limits);
  Parsed parsed;
  std::string pending;
  while (!stream.empty() && parsed.status != ParseStatus::kMalformed) {
    const std::size_t size = segment_of(stream.size());
    pending.append(stream.substr(0, size));
    stream.remove_prefix(size);
    for (;;) {
      const std::string exact = pending;  // A copy of its own size: reads beyond it are caught.
      Request request;
      parsed.status = parser.parse(exact, &request);
      if (parsed.status != ParseStatus::kRequest) break;
      std::string again = encoded(request);
      DDPRUN_CHECK(again == exact.substr(0, parser.request_bytes()));
      parsed.requests.push_back(std::move(again));
      pending.erase(0, parser.request_bytes());
    }
    if (parsed.status == ParseStatus::kNeedMore) {
      DDPRUN_CHECK(parser.needed_bytes() > pending.size());
    }
  }
  parsed.error = parser.error();
  return parsed;
}

Request decode(const std::string& bytes) {
  const RequestLimits limits = small_limits();
  RequestParser parser(limits);
  Request request;
  if (static_cast<Opcode>(bytes.front()) != Opcode::kValidate) {
    const std::string handshake = encoded({.opcode = Opcode::kValidate, .word = kValidateMagic});
    DDPRUN_CHECK(parser.parse(handshake, &request) == ParseStatus::kRequest);
  }
  DDPRUN_CHECK(parser.parse(bytes, &request) == ParseStatus::kRequest);
  return request;
}

bool is_queue_or_barrier(const std::string& request) {
  const auto opcode = static_cast<Opcode>(request.front());
  return opcode == Opcode::kQueuePush || opcode == Opcode::kBarrier;
}

// The waits as they should be, found by asking CHECK after every request.
class WaitModel {
 public:
  explicit WaitModel(StoreState* state) : state_(state) {}

  void before(ConnectionId from, const Request& request) {
    if (request.opcode == Opcode::kCancelWait) waits_.erase(from);
    if (request.opcode == Opcode::kWait) {
      waits_[from].emplace_back(request.keys.begin(), request.keys.end());
    }
  }

  void after() {
    std::size_t num_waits = 0;
    for (auto& [connection, waits] : waits_) {
      std::erase_if(waits, [this](const std::vector<std::string>& keys) { return exist(keys); });
      num_waits += waits.size();
    }
    DDPRUN_CHECK(num_waits == state_->num_waits());
  }

 private:
  bool exist(const std::vector<std::string>& keys) {
    Request check;
    check.opcode = Opcode::kCheck;
    check.keys.assign(keys.begin(), keys.end());
    return state_->step(kProbe, check).replies.at(0).bytes[0] == kReady;
  }

  StoreState* state_;
  std::map<ConnectionId, std::vector<std::vector<std::string>>> waits_;
};

void run(const std::vector<std::string>& requests, std::minstd_rand* random) {
  StoreState state(kMaxTotalBytes);
  WaitModel model(&state);
  bool model_holds = std::none_of(requests.begin(), requests.end(), is_queue_or_barrier);
  std::map<std::string, bool> keys, queues;  // that may exist
  for (const std::string& bytes : requests) {
    const ConnectionId from = (*random)() % kNumConnections;
    const Request request = decode(bytes);
    keys[std::string(request.key)];
    for (std::string_view key : request.keys) keys[std::string(key)];
    queues[std::string(request.key)];
    model.before(from, request);
    const Outcome& outcome = state.step(from, request);
    for (const Reply& reply : outcome.replies) {
      DDPRUN_CHECK(reply.to < kNumConnections);
      DDPRUN_CHECK(!reply.bytes.empty() || reply.body);
    }
    DDPRUN_CHECK(state.total_bytes() <= kMaxTotalBytes);
    // A refused WAIT was not taken in; its connection would be closed.
    model_holds = model_holds && outcome.close_reason.empty();
    if (model_holds) model.after();
  }
  for (ConnectionId connection = 0; connection < kNumConnections; ++connection) {
    state.disconnect(connection);
  }
  DDPRUN_CHECK(state.num_waits() == 0);
  for (const auto& [key, unused] : keys) {
    Request erase;
    erase.opcode = Opcode::kDeleteKey;
    erase.key = key;
    state.step(kProbe, erase);
  }
  DDPRUN_CHECK(state.num_keys() == 0);
  for (const auto& [queue, unused] : queues) {
    Request pop;
    pop.opcode = Opcode::kQueuePop;
    pop.key = queue;
    const std::string empty(sizeof(std::int64_t), '\0');
    while (state.step(kProbe, pop).replies.at(0).bytes != empty) {
    }
  }
  DDPRUN_CHECK(state.total_bytes() == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  std::minstd_rand random(data[0] * 256U + data[1] + 1);
  const std::string_view stream(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Parsed whole = parse(stream, [](std::size_t left) { return left; });
  const Parsed pieces = parse(stream, [&](std::size_t left) {
    return std::min<std::size_t>(left, 1 + random() % (random() % 4 == 0 ? 64 : 4));
  });
  // A malformed request may be noticed before its last byte: both streams end there.
  DDPRUN_CHECK(whole == pieces);
  run(whole.requests, &random);
  return 0;
}
