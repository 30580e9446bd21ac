// SPDX-License-Identifier: Apache-2.0
// The checksum of gzip, PNG and Python's zlib.crc32. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddprun {

// Continues the CRC `checksum` (0: no bytes so far) over `bytes`, at about 2 GB/s.
std::uint32_t crc32(std::uint32_t checksum, std::string_view bytes);

}  // namespace ddprun
