// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/safetensors.h"

#include <boost/json.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/core/checkpoint/crc32.h"

namespace ddprun {
namespace {

namespace json = boost::json;
static_assert(std::endian::native == std::endian::little, "the file's numbers are little-endian");

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxHeaderBytes = 100'000'000;  // as safetensors has it
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kChecksumKey = "crc32";

[[noreturn]] void reject(const std::string& why) { throw Error(ErrorCode::kProtocol, why); }

// Bytes of one element; 0: not known.
std::size_t element_size(std::string_view dtype) {
  if (dtype == "C64" || dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL" || dtype.starts_with("F8_")) return 1;
  return 0;
}

std::uint32_t checksum_of(const Metadata& metadata) {
  std::uint32_t checksum = 0;
  for (const auto& [key, value] : metadata) {
    checksum = crc32(checksum, {key.c_str(), key.size() + 1});
    checksum = crc32(checksum, {value.c_str(), value.size() + 1});
  }
  return checksum;
}

std::uint64_t number(const json::value& value, const char* what) {
  boost::system::error_code error;
  const auto result = value.to_number<std::uint64_t>(error);
  if (error) reject(concat("its header has a bad ", what));
  return result;
}

const json::value& field(const json::object& object, const char* key) {
  const json::value* found = object.if_contains(key);
  if (!found) reject(concat("its header lacks ", key));
  return *found;
}

std::string text(const json::value& value, const char* what) {
  const json::string* found = value.if_string();
  if (!found) reject(concat("its header has a bad ", what));
  return {found->data(), found->size()};
}

const json::array& list(const json::value& value, const char* what) {
  const json::array* found = value.if_array();
  if (!found) reject(concat("its header has a bad ", what));
  return *found;
}

Metadata read_metadata(const json::value& value) {
  const json::object* object = value.if_object();
  if (!object) reject("its metadata are no object");
  Metadata metadata;
  for (const auto& item : *object) metadata[item.key()] = text(item.value(), "metadata value");
  return metadata;
}

// Bytes that `shape` and `dtype` mean.
std::uint64_t size_of(const TensorBytes& tensor) {
  std::uint64_t size = element_size(tensor.dtype);
  if (size == 0) reject("its header has an unknown dtype");
  for (const std::int64_t extent : tensor.shape) {
    const auto factor = static_cast<std::uint64_t>(extent);
    if (factor != 0 && size > std::numeric_limits<std::uint64_t>::max() / factor) {
      reject("its header has a shape beyond all memory");
    }
    size *= factor;
  }
  return size;
}

TensorBytes read_tensor(std::string name, const json::value& value, std::string_view data) {
  const json::object* object = value.if_object();
  if (!object) reject("its header has an entry that is no tensor");
  TensorBytes tensor;
  tensor.name = std::move(name);
  tensor.dtype = text(field(*object, "dtype"), "dtype");
  for (const json::value& extent : list(field(*object, "shape"), "shape")) {
    const std::uint64_t known = number(extent, "shape");
    if (known > std::numeric_limits<std::int64_t>::max()) reject("its header has a bad shape");
    tensor.shape.push_back(static_cast<std::int64_t>(known));
  }
  const json::array& offsets = list(field(*object, "data_offsets"), "data_offsets");
  if (offsets.size() != 2) reject("its header has bad data_offsets");
  const std::uint64_t begin = number(offsets[0], "data_offsets");
  const std::uint64_t end = number(offsets[1], "data_offsets");
  if (end < begin || end - begin != size_of(tensor)) reject("its header has bad data_offsets");
  if (end > data.size()) {
    reject(concat("it is cut off: ", end, " bytes of tensors, ", data.size(), " are there"));
  }
  tensor.bytes = data.substr(begin, end - begin);
  return tensor;
}

// Sorted by place; none overlap and none is missing.
void check_places(std::vector<TensorBytes>& tensors, std::string_view data) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) { return a.bytes.data() < b.bytes.data(); });
  std::size_t expected = 0;
  for (const TensorBytes& tensor : tensors) {
    if (tensor.bytes.data() != data.data() + expected) reject("its tensors overlap or have gaps");
    expected += tensor.bytes.size();
  }
  if (expected != data.size()) reject("it has bytes that belong to no tensor");
}

}  // namespace

std::string encode_header(const Metadata& metadata, const std::vector<TensorBytes>& tensors) {
  std::uint32_t checksum = checksum_of(metadata);
  for (const TensorBytes& tensor : tensors) checksum = crc32(checksum, tensor.bytes);
  json::object words;
  for (const auto& [key, value] : metadata) words[key] = value;
  words[kChecksumKey] = std::to_string(checksum);

  json::object header{{kMetadataKey, std::move(words)}};
  std::size_t offset = 0;
  for (const TensorBytes& tensor : tensors) {
    const std::size_t end = offset + tensor.bytes.size();
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", json::value_from(tensor.shape)},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string body = json::serialize(header);
  body.resize((body.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = body.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + body;
}

Safetensors decode_safetensors(std::string_view file) {
  if (file.size() < kLengthBytes) reject(concat("it has ", file.size(), " bytes"));
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  file.remove_prefix(kLengthBytes);
  if (length > kMaxHeaderBytes) reject("it is no safetensors file");
  if (length > file.size()) reject("it is cut off in its header, or no safetensors file");

  boost::system::error_code error;
  const json::value parsed = json::parse(json::string_view(file.data(), length), error);
  const json::object* header = parsed.if_object();
  if (error || !header) reject("its header is no JSON object");
  const std::string_view data = file.substr(length);

  Safetensors read;
  for (const auto& item : *header) {
    if (item.key() == kMetadataKey) {
      read.metadata = read_metadata(item.value());
    } else {
      read.tensors.push_back(read_tensor(item.key(), item.value(), data));
    }
  }
  check_places(read.tensors, data);
  const auto stored = read.metadata.extract(kChecksumKey);
  if (stored.empty()) return read;
  if (stored.mapped() != std::to_string(crc32(checksum_of(read.metadata), data))) {
    reject("its checksum is wrong");
  }
  read.has_checksum = true;
  return read;
}

}  // namespace ddprun
