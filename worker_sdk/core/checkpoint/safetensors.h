// SPDX-License-Identifier: Apache-2.0
// Tensors and their metadata as the bytes of one file: the safetensors format, with a checksum that
// ddprun adds to the metadata. Pure: no I/O, clock or thread.
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

// The elements are contiguous, little-endian, in host memory that another object owns.
struct TensorBytes {
  std::string name;   // not empty; no two alike
  std::string dtype;  // as safetensors has it: "F32", "I64", …
  std::vector<std::int64_t> shape;
  std::string_view bytes;
};

// Returns why a file of these could not be read again ("two tensors are named fc1.weight"), or ""
// if it could. `names` are the tensors' names.
std::string encoding_problem(const Metadata& metadata, const std::vector<std::string>& names);

// Returns the file's length field and header; the tensors' bytes follow them. encoding_problem()
// must be empty.
std::string encode_header(const Metadata& metadata, const std::vector<TensorBytes>& tensors);

// header_end() and check_size() tell a reader whether the file has the size that its header says,
// before it allocates memory for it. Both throw as decode_safetensors() does. header_end() needs at
// least the first kLengthBytes, and returns where the header ends.
inline constexpr std::size_t kLengthBytes = 8;
std::size_t header_end(std::string_view beginning, std::uint64_t file_size);
// `beginning` is the file up to header_end().
void check_size(std::string_view beginning, std::uint64_t file_size);

struct Safetensors {
  Metadata metadata;                 // without the checksum
  std::vector<TensorBytes> tensors;  // over the file's bytes, in the file's order
  bool has_checksum = false;         // and it was right; false: another program's file
};

// `file` must outlive the result. Throws Error(kProtocol), which says why it is no whole file of
// this kind ("it is cut off: …"). Trusts nothing that it reads.
Safetensors decode_safetensors(std::string_view file);

}  // namespace ddprun
