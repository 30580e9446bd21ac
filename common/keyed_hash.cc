// SPDX-License-Identifier: Apache-2.0
#include "common/keyed_hash.h"

#include <bit>
#include <cstring>

#include "common/random_id.h"

namespace ddprun {
namespace {

// The names are those of the paper.
class SipState {
 public:
  explicit SipState(const SipKey& key)
      : v0_(key.low ^ 0x736f6d6570736575),
        v1_(key.high ^ 0x646f72616e646f6d),
        v2_(key.low ^ 0x6c7967656e657261),
        v3_(key.high ^ 0x7465646279746573) {}

  void add(std::uint64_t word) {
    v3_ ^= word;
    round();
    v0_ ^= word;
  }
  std::uint64_t end() {
    v2_ ^= 0xff;
    for (int i = 0; i < 3; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void round() {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

SipKey drawn_key() {
  const RandomBytes bytes = random_bytes();
  SipKey key;
  static_assert(sizeof key == sizeof bytes);
  std::memcpy(&key, bytes.data(), sizeof key);
  return key;
}

}  // namespace

std::uint64_t sip_hash(std::string_view bytes, const SipKey& key) {
  SipState state(key);
  // The last word has the remaining bytes and, in its highest byte, the size.
  const std::uint64_t last = std::uint64_t{bytes.size()} << 56;
  for (; bytes.size() >= sizeof(std::uint64_t); bytes.remove_prefix(sizeof(std::uint64_t))) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    state.add(word);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, bytes.data(), bytes.size());
  state.add(last | rest);
  return state.end();
}

std::size_t KeyedHash::operator()(std::string_view text) const {
  static const SipKey key = drawn_key();
  return static_cast<std::size_t>(sip_hash(text, key));
}

}  // namespace ddprun
