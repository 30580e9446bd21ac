// SPDX-License-Identifier: Apache-2.0
// Fuzzes what nodes' store proxies say to a round's store. The first byte of the input chooses a
// kind:
//  - odd: the rest is read as a frame, and as a snapshot. Each is refused with Error(kProtocol), or
//    taken;
//  - even: a course of events of two nodes, whose streams have the input's bytes. Beyond "no crash"
//    this must hold. A store that replays the turns, and one that is made from a snapshot, have the
//    same keys, waits and connections. Frames that are said can be read, and follow on those
//    before.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/error.h"
#include "rendezvous/store/proxied_store.h"

namespace {

using namespace ddprun;
using namespace ddprun::store;

constexpr std::uint64_t kRound = 3;

const RequestLimits& small_limits() {
  static const RequestLimits limits = [] {
    RequestLimits made;
    made.max_key_bytes = 64;
    made.max_value_bytes = 1024;
    made.max_keys_per_request = 32;
    return made;
  }();
  return limits;
}

template <typename Call>
bool is_refused(Call&& call) {
  try {
    call();
    return false;
  } catch (const Error& error) {
    DDPRUN_CHECK(error.code() == ErrorCode::kProtocol);
    return true;
  }
}

void check_same(const ProxiedStore& one, const ProxiedStore& other) {
  DDPRUN_CHECK(one.num_keys() == other.num_keys());
  DDPRUN_CHECK(one.num_waits() == other.num_waits());
  DDPRUN_CHECK(one.num_clients() == other.num_clients());
}

class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}
  bool is_over() const { return bytes_.empty(); }
  unsigned byte() {
    if (bytes_.empty()) return 0;
    const auto value = static_cast<unsigned char>(bytes_.front());
    bytes_.remove_prefix(1);
    return value;
  }
  std::string_view take(std::size_t size) {
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view bytes_;
};

// A node's end of the streams.
struct Node {
  std::string said;             // all that it ever said
  std::uint64_t received = 0;   // of what it was told
  std::uint64_t confirmed = 0;  // of what it said
  bool is_out = false;          // its message was refused
};

class Course {
 public:
  void go(Input input) {
    while (!input.is_over()) {
      const unsigned what = input.byte();
      const std::uint64_t number = what & 1;
      switch (what >> 1 & 7) {
        case 0:
        case 1:
        case 2:
          say(number, input.take(1 + input.byte()), input.byte());
          break;
        case 3:
        case 4:
          run(number, 1 + input.byte() % 8, input.byte());
          break;
        case 5:
          hear(number);
          break;
        case 6:
          store_->reconnected(number);
          break;
        case 7:
          restart();
          break;
      }
    }
    check_same(*store_, *twin_);
  }

 private:
  // `how`: the frame's claims beside its bytes; 0, as in most frames, is the truth.
  void say(std::uint64_t number, std::string_view bytes, unsigned how) {
    Node& node = nodes_[number];
    if (node.is_out) return;
    node.said += bytes;
    std::uint64_t position = node.said.size() - bytes.size(), received = node.received;
    // Bytes that were not confirmed may come again.
    const bool is_again = (how & 1) != 0, is_gap = (how & 2) != 0, is_forged = (how & 4) != 0;
    if (is_again) position = node.confirmed;
    const std::string_view all = std::string_view(node.said).substr(position);
    if (is_gap) position += how;
    if (is_forged) received += how;
    const ProxyFrame frame{kRound, position, received, all};
    const std::string message = encode_frame(frame);
    node.is_out =
        is_refused([&] { store_->receive(number, decode_frame(message)); }) || is_gap || is_forged;
  }

  void run(std::uint64_t number, std::size_t most, unsigned refusals) {
    const auto turn = store_->run(number, most,
                                  {(refusals & 15) == 1 ? "nothing may grow" : "",
                                   (refusals & 15) == 2 ? "nobody may come" : ""});
    DDPRUN_CHECK(turn.num_requests <= most);
    if (!turn.trouble.empty()) nodes_[number].is_out = true;
    if (!turn.bytes.empty()) twin_->replay(turn);
    check_same(*store_, *twin_);
  }

  void hear(std::uint64_t number) {
    store_->release(store_->take_marks());
    Node& node = nodes_[number];
    while (const auto message = store_->next_frame(number)) {
      const ProxyFrame frame = decode_frame(*message);
      if (node.is_out) continue;  // it may have claimed bytes that it doesn't have
      DDPRUN_CHECK(frame.round == kRound && frame.position <= node.received);
      node.received = std::max(node.received, frame.position + frame.bytes.size());
      DDPRUN_CHECK(frame.received <= node.said.size());
      node.confirmed = std::max(node.confirmed, frame.received);
    }
  }

  // Requests that waited for their turn are lost with the process; nodes say them again.
  void restart() {
    auto next = std::make_unique<ProxiedStore>(kRound, small_limits());
    next->restore(store_->snapshot());
    next->restored();
    check_same(*store_, *next);
    store_ = std::move(next);
    twin_ = std::make_unique<ProxiedStore>(kRound, small_limits());
    twin_->restore(store_->snapshot());
    for (std::uint64_t number = 0; number < nodes_.size(); ++number) {
      Node& node = nodes_[number];
      if (node.is_out) continue;
      store_->reconnected(number);
      const std::string_view again = std::string_view(node.said).substr(node.confirmed);
      node.is_out = is_refused([&] {
        store_->receive(number, {kRound, node.confirmed, node.received, again});
      });
    }
  }

  std::unique_ptr<ProxiedStore> store_ = std::make_unique<ProxiedStore>(kRound, small_limits());
  // Replays the turns that the other one carried out.
  std::unique_ptr<ProxiedStore> twin_ = std::make_unique<ProxiedStore>(kRound, small_limits());
  std::array<Node, 2> nodes_;
};

void check_bytes(std::string_view bytes) {
  const std::string exact(bytes);  // a copy of its own size: reads beyond it are caught
  ProxiedStore store(kRound, small_limits());
  is_refused([&] { store.receive(0, decode_frame(exact)); });
  ProxiedStore restored(kRound, small_limits());
  if (is_refused([&] { restored.restore(exact); })) return;
  restored.restored();
  for (std::uint64_t node = 0; node < 4; ++node) {
    restored.run(node, 8, {});
    while (restored.next_frame(node)) {
    }
  }
  ProxiedStore again(kRound, small_limits());
  again.restore(restored.snapshot());
  check_same(restored, again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) {
    check_bytes(bytes);
  } else {
    Course().go(Input(bytes));
  }
  return 0;
}
