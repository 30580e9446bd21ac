// SPDX-License-Identifier: Apache-2.0
#include "common/operation_facts.h"

#include <array>
#include <cstdio>

#include "common/text.h"

namespace ddprun {
namespace {

// The names by the numbers of worker_sdk/core.
constexpr std::array kOps{"sum", "average", "min", "max", "product"};
constexpr std::array kDTypes{"float32", "float64", "float16", "bfloat16",    "int8",       "uint8",
                             "int32",   "int64",   "bool",    "float8_e4m3", "float8_e5m2"};
constexpr std::array<std::uint64_t, kDTypes.size()> kDTypeBytes{4, 8, 2, 2, 1, 1, 4, 8, 1, 1, 1};

}  // namespace

std::uint64_t pack_facts(const OperationFacts& facts) {
  return (static_cast<std::uint64_t>(facts.kind) & 0xff) |
         static_cast<std::uint64_t>(facts.op) << 8 | static_cast<std::uint64_t>(facts.dtype) << 16 |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(facts.root)) << 32;
}

void unpack_facts(std::uint64_t word, OperationFacts& facts) {
  facts.kind = static_cast<CollectiveKind>(word & 0xff);
  facts.op = static_cast<std::uint8_t>(word >> 8);
  facts.dtype = static_cast<std::uint8_t>(word >> 16);
  facts.root = static_cast<std::int32_t>(static_cast<std::uint32_t>(word >> 32));
}

const char* kind_name(CollectiveKind kind) {
  const auto number = static_cast<std::size_t>(kind);
  return number < kCollectiveNames.size() ? kCollectiveNames[number] : kCollectiveNames[0];
}

const char* op_name(std::uint8_t op) { return op < kOps.size() ? kOps[op] : "unknown"; }

const char* dtype_name(std::uint8_t dtype) {
  return dtype < kDTypes.size() ? kDTypes[dtype] : "unknown";
}

std::uint64_t size_bytes_of(const OperationFacts& facts) {
  const std::size_t dtype = facts.dtype;
  return facts.count * (dtype < kDTypeBytes.size() ? kDTypeBytes[dtype] : 1);
}

bool has_op(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kReduce;
}

bool has_root(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
}

std::string bytes_text(std::uint64_t size_bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (size_bytes < 1024) return concat(size_bytes, size_bytes == 1 ? " byte" : " bytes");
  double value = static_cast<double>(size_bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string ranks_text(const std::vector<int>& ranks, std::size_t most) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::size_t num_parts = 0;
  for (std::size_t begin = 0, end; begin < ranks.size(); begin = end, ++num_parts) {
    for (end = begin + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    if (num_parts == most) return concat(text, " and ", ranks.size() - begin, " more");
    text += concat(begin == 0 ? "" : ", ", ranks[begin]);
    if (end - begin == 2) text += concat(", ", ranks[end - 1]);
    if (end - begin > 2) text += concat("–", ranks[end - 1]);
  }
  return text;
}

std::string text_of(const OperationFacts& facts) {
  std::string text = concat(kind_name(facts.kind), " #", facts.sequence);
  switch (facts.kind) {
    case CollectiveKind::kNone:
    case CollectiveKind::kBarrier:
      break;
    case CollectiveKind::kAllocate:
      text += " (" + bytes_text(facts.count) + ")";
      break;
    default:
      text += concat(" (", bytes_text(size_bytes_of(facts)), " ", dtype_name(facts.dtype));
      if (has_op(facts.kind)) text += concat(", ", op_name(facts.op));
      if (has_root(facts.kind)) text += concat(", root ", facts.root);
      if (facts.kind == CollectiveKind::kSend) text += concat(" to rank ", facts.root);
      if (facts.kind == CollectiveKind::kRecv) {
        text += facts.root < 0 ? " from any rank" : concat(" from rank ", facts.root);
      }
      text += ")";
  }
  return concat(text, " of communicator ", facts.communicator);
}

}  // namespace ddprun
