// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "common/crc32.h"
#include "common/error.h"
#include "common/text.h"
#include "common/utf8.h"
#include "worker_sdk/core/checkpoint/json.h"

namespace ddprun {
namespace {

using Kind = JsonValue::Kind;
static_assert(std::endian::native == std::endian::little, "the file's numbers are little-endian");

constexpr std::size_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kChecksumKey = "crc32";

[[noreturn]] void reject(const std::string& why) { throw Error(ErrorCode::kProtocol, why); }

// Returns the bytes of one element; 0: not known.
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

std::uint64_t number(const JsonValue& value, const char* what) {
  if (value.kind != Kind::kNumber) reject(concat("its header has a bad ", what));
  return value.number;
}

const JsonValue& field(const JsonValue& object, std::string_view key) {
  const auto found = std::ranges::find(object.names, key);
  if (found == object.names.end()) reject(concat("its header lacks ", key));
  return object.items[static_cast<std::size_t>(found - object.names.begin())];
}

const std::string& text(const JsonValue& value, const char* what) {
  if (value.kind != Kind::kText) reject(concat("its header has a bad ", what));
  return value.text;
}

const std::vector<JsonValue>& list(const JsonValue& value, const char* what) {
  if (value.kind != Kind::kArray) reject(concat("its header has a bad ", what));
  return value.items;
}

Metadata read_metadata(const JsonValue& value) {
  if (value.kind != Kind::kObject) reject("its metadata are no object");
  Metadata metadata;
  for (std::size_t i = 0; i < value.names.size(); ++i) {
    metadata[value.names[i]] = text(value.items[i], "metadata value");
  }
  return metadata;
}

// Returns the number of bytes that `shape` and `dtype` mean.
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

struct Offsets {
  std::uint64_t begin, end;  // in the data
};

Offsets offsets_of(const JsonValue& entry) {
  if (entry.kind != Kind::kObject) reject("its header has an entry that is no tensor");
  const std::vector<JsonValue>& offsets = list(field(entry, "data_offsets"), "data_offsets");
  if (offsets.size() != 2) reject("its header has bad data_offsets");
  return {number(offsets[0], "data_offsets"), number(offsets[1], "data_offsets")};
}

[[noreturn]] void reject_cut(std::uint64_t end, std::uint64_t there) {
  reject(concat("it is cut off: ", end, " bytes of tensors, ", there, " are there"));
}

constexpr const char* kTooMany = "it has bytes that belong to no tensor";

JsonValue parse_header(std::string_view text) {
  std::optional<JsonValue> header = parse_json(text);
  if (!header || header->kind != Kind::kObject) reject("its header is no JSON object");
  return *std::move(header);
}

TensorBytes read_tensor(const std::string& name, const JsonValue& entry, std::string_view data) {
  const auto [begin, end] = offsets_of(entry);
  TensorBytes tensor;
  tensor.name = name;
  tensor.dtype = text(field(entry, "dtype"), "dtype");
  for (const JsonValue& extent : list(field(entry, "shape"), "shape")) {
    const std::uint64_t known = number(extent, "shape");
    if (known > std::numeric_limits<std::int64_t>::max()) reject("its header has a bad shape");
    tensor.shape.push_back(static_cast<std::int64_t>(known));
  }
  if (end < begin || end - begin != size_of(tensor)) reject("its header has bad data_offsets");
  if (end > data.size()) reject_cut(end, data.size());
  tensor.bytes = data.substr(begin, end - begin);
  return tensor;
}

// Sorts the tensors by place, and checks that they have no overlaps and no gaps.
void check_places(std::vector<TensorBytes>& tensors, std::string_view data) {
  std::ranges::stable_sort(
      tensors, [](const auto& a, const auto& b) { return a.bytes.data() < b.bytes.data(); });
  std::size_t expected = 0;
  for (const TensorBytes& tensor : tensors) {
    if (tensor.bytes.data() != data.data() + expected) reject("its tensors overlap or have gaps");
    expected += tensor.bytes.size();
  }
  if (expected != data.size()) reject(kTooMany);
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace

std::string encoding_problem(const Metadata& metadata, const std::vector<std::string>& names) {
  for (const auto& [key, value] : metadata) {
    if (key == kChecksumKey) return concat("the key ", key, " of the metadata is the format's own");
    if (is_utf8(key) && is_utf8(value)) continue;
    return concat("the metadata of key \"", one_line(key), "\" are no UTF-8");
  }
  std::set<std::string_view> known;
  for (const std::string& name : names) {
    if (name.empty()) return "a tensor has no name";
    if (!is_utf8(name)) return concat("the tensor name \"", one_line(name), "\" is no UTF-8");
    if (name == kMetadataKey) return concat("no tensor can be named ", name);
    if (!known.insert(name).second) return concat("two tensors are named ", one_line(name));
  }
  return "";
}

std::string encode_header(const Metadata& metadata, const std::vector<TensorBytes>& tensors) {
  std::uint32_t checksum = checksum_of(metadata);
  for (const TensorBytes& tensor : tensors) checksum = crc32(checksum, tensor.bytes);
  std::string body = concat('{', quote_json(kMetadataKey), ":{");
  for (const auto& [key, value] : metadata) body += quote_json(key) + ':' + quote_json(value) + ',';
  body += concat(quote_json(kChecksumKey), ":\"", checksum, "\"}");
  std::size_t offset = 0;
  for (const TensorBytes& tensor : tensors) {
    const std::size_t end = offset + tensor.bytes.size();
    body +=
        ',' + quote_json(tensor.name) + ":{\"dtype\":" + quote_json(tensor.dtype) + ",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      body += (i > 0 ? "," : "") + std::to_string(tensor.shape[i]);
    }
    body += concat("],\"data_offsets\":[", offset, ',', end, "]}");
    offset = end;
  }
  body += '}';
  body.resize((body.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = body.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + body;
}

std::size_t header_end(std::string_view beginning, std::uint64_t file_size) {
  if (beginning.size() < kLengthBytes) reject(concat("it has ", beginning.size(), " bytes"));
  std::uint64_t length = 0;
  std::memcpy(&length, beginning.data(), sizeof length);
  if (length > kMaxHeaderBytes) reject("it is no safetensors file");
  if (length > file_size - kLengthBytes) {
    reject("it is cut off in its header, or no safetensors file");
  }
  return kLengthBytes + length;
}

void check_size(std::string_view beginning, std::uint64_t file_size) {
  const JsonValue header = parse_header(beginning.substr(kLengthBytes));
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < header.names.size(); ++i) {
    if (header.names[i] != kMetadataKey) end = std::max(end, offsets_of(header.items[i]).end);
  }
  const std::uint64_t there = file_size - beginning.size();
  if (end > there) reject_cut(end, there);
  if (end < there) reject(kTooMany);
}

Safetensors decode_safetensors(std::string_view file) {
  const std::size_t begin = header_end(file, file.size());
  const JsonValue header = parse_header(file.substr(kLengthBytes, begin - kLengthBytes));
  const std::string_view data = file.substr(begin);

  Safetensors read;
  for (std::size_t i = 0; i < header.names.size(); ++i) {
    if (header.names[i] == kMetadataKey) {
      read.metadata = read_metadata(header.items[i]);
    } else {
      read.tensors.push_back(read_tensor(header.names[i], header.items[i], data));
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
