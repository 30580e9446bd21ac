// SPDX-License-Identifier: Apache-2.0
// Tensors and what belongs to them as the bytes of one file: the safetensors format, with a
// checksum of its own among the metadata. Pure: no I/O, clock or thread.
//
//   8 bytes   length of the header, little-endian
//   header    JSON: {"__metadata__":{"crc32":"…",…},"fc1.weight":{"dtype":"F32","shape":[128,9216],
//             "data_offsets":[0,4718592]},…}, spaces at its end up to a multiple of 8 bytes
//   the rest  the tensors' elements, in the header's order, without gaps
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

using Metadata = std::map<std::string, std::string>;

// Elements are contiguous, little-endian, on the host, and somebody else's.
struct TensorBytes {
  std::string name;   // not empty; no two alike
  std::string dtype;  // as safetensors has it: "F32", "I64", …
  std::vector<std::int64_t> shape;
  std::string_view bytes;
};

// Why a file of these could not be read again ("two tensors are named fc1.weight"); empty: it
// could. `names` are the tensors'.
std::string encoding_problem(const Metadata& metadata, const std::vector<std::string>& names);

// Length and header of the file; the tensors' bytes follow it. There is no encoding_problem().
std::string encode_header(const Metadata& metadata, const std::vector<TensorBytes>& tensors);

// For who reads a file: whether it has the size that its header says, before there is memory for
// it. `beginning`: at least the first kLengthBytes; returns where the header ends. Each throws as
// decode_safetensors() does.
inline constexpr std::size_t kLengthBytes = 8;
std::size_t header_end(std::string_view beginning, std::uint64_t file_size);
// `beginning`: up to there.
void check_size(std::string_view beginning, std::uint64_t file_size);

struct Safetensors {
  Metadata metadata;                 // without the checksum
  std::vector<TensorBytes> tensors;  // over the file's bytes, in their order there
  bool has_checksum = false;         // and it is right; false: a file of another program
};

// `file` must outlive the result. Throws Error(kProtocol) that says why it is no whole file of this
// kind ("it is cut off: …"); believes nothing that it reads.
Safetensors decode_safetensors(std::string_view file);

}  // namespace ddprun
