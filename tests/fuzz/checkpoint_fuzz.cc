// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of a checkpoint directory. The first byte of the input chooses a kind. The rest
// is a safetensors file, its header alone, or a file's name. A header alone gets its length before
// it and room for its tensors behind it. Beyond "no crash" this must hold:
//  - the only error of a file is Error(kProtocol);
//  - each tensor's bytes are inside the file, and each byte belongs to a tensor;
//  - a file that is decoded, encoded and decoded again stays the same, with a checksum;
//  - a name that is understood is written the same.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/error.h"
#include "worker_sdk/core/checkpoint/checkpoint_directory.h"
#include "worker_sdk/core/checkpoint/safetensors.h"

namespace {

using namespace ddprun;

std::string encode(const Safetensors& file) {
  std::string bytes = encode_header(file.metadata, file.tensors);
  for (const TensorBytes& tensor : file.tensors) bytes += tensor.bytes;
  return bytes;
}

void check_file(std::string_view bytes) {
  try {
    const Safetensors file = decode_safetensors(bytes);
    std::size_t num_bytes = 0;
    for (const TensorBytes& tensor : file.tensors) {
      num_bytes += tensor.bytes.size();
      if (tensor.bytes.empty()) continue;
      DDPRUN_CHECK(tensor.bytes.data() >= bytes.data() &&
                   tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size());
    }
    DDPRUN_CHECK(num_bytes <= bytes.size());
    const std::string again = encode(file);
    const Safetensors same = decode_safetensors(again);
    DDPRUN_CHECK(same.has_checksum && same.metadata == file.metadata);
    DDPRUN_CHECK(same.tensors.size() == file.tensors.size() && encode(same) == again);
  } catch (const Error& error) {
    DDPRUN_CHECK(error.code() == ErrorCode::kProtocol);
  }
}

void check_name(std::string_view name) {
  if (const auto step = parse_checkpoint_name(name)) DDPRUN_CHECK(checkpoint_name(*step) == name);
  if (const auto place = parse_shard_name(name)) DDPRUN_CHECK(shard_name(*place) == name);
  DDPRUN_CHECK(!is_temporary_name(name) || name.find(kTemporaryMark) != name.npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) {
    check_file(bytes);
  } else if (data[0] % 3 == 1) {
    constexpr std::size_t kRoomBytes = 16;
    const std::uint64_t length = bytes.size();
    std::string file(sizeof length, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    check_file(file + std::string(bytes) + std::string(kRoomBytes, 'x'));
  } else {
    check_name(bytes);
  }
  return 0;
}
