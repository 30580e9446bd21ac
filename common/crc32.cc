// SPDX-License-Identifier: Apache-2.0
#include "common/crc32.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

namespace ddprun {
namespace {

static_assert(std::endian::native == std::endian::little, "eight bytes are read as one number");

constexpr std::uint32_t kPolynomial = 0xedb88320;
constexpr std::size_t kNumSlices = 8;

using Tables = std::array<std::array<std::uint32_t, 256>, kNumSlices>;

// tables[k][b] is the effect of byte b when k more bytes follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (std::size_t slice = 1; slice < kNumSlices; ++slice) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32(std::uint32_t checksum, std::string_view bytes) {
  std::uint32_t state = ~checksum;
  while (bytes.size() >= kNumSlices) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    word ^= state;
    state = 0;
    for (std::size_t i = 0; i < kNumSlices; ++i) {
      state ^= kTables[kNumSlices - 1 - i][(word >> (8 * i)) & 0xff];
    }
    bytes.remove_prefix(kNumSlices);
  }
  for (const char each : bytes) {
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<unsigned char>(each)) & 0xff];
  }
  return ~state;
}

}  // namespace ddprun
