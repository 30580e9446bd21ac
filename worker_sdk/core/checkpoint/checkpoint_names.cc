// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/checkpoint_names.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "common/log.h"

namespace ddprun {
namespace {

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors", kRank = ".rank-",
                           kOf = "-of-";
constexpr std::size_t kNumDigits = 12, kNumSaveDigits = 8;

std::string stem(std::uint64_t step) {
  const std::string digits = std::to_string(step);
  const std::size_t num_zeros = kNumDigits - std::min(kNumDigits, digits.size());
  return concat(kPrefix, std::string(num_zeros, '0'), digits);
}

// Takes a number off the front of `text`; what is no number is 0, which the caller finds out by
// writing the name again.
template <typename Number>
Number take_number(std::string_view& text) {
  Number number{};
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(parsed.ptr - text.data()));
  return number;
}

void take(std::string_view& text, std::size_t size) {
  text.remove_prefix(std::min(text.size(), size));
}

bool is_save(std::string_view text) {
  return text.size() == kNumSaveDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string checkpoint_name(std::uint64_t step) { return concat(stem(step), kSuffix); }

std::string shard_name(const ShardPlace& place) {
  return concat(stem(place.step), '.', place.save, kRank, place.rank, kOf, place.size, kSuffix);
}

std::optional<std::uint64_t> parse_checkpoint_name(std::string_view name) {
  std::string_view rest = name;
  take(rest, kPrefix.size());
  const auto step = take_number<std::uint64_t>(rest);
  if (name != checkpoint_name(step)) return std::nullopt;
  return step;
}

std::optional<ShardPlace> parse_shard_name(std::string_view name) {
  ShardPlace place;
  std::string_view rest = name;
  take(rest, kPrefix.size());
  place.step = take_number<std::uint64_t>(rest);
  take(rest, 1);
  place.save = rest.substr(0, kNumSaveDigits);
  take(rest, kNumSaveDigits + kRank.size());
  place.rank = take_number<int>(rest);
  take(rest, kOf.size());
  place.size = take_number<int>(rest);
  const bool is_one = is_save(place.save) && place.rank >= 0 && place.rank < place.size;
  if (!is_one || name != shard_name(place)) return std::nullopt;
  return place;
}

bool is_temporary_name(std::string_view name) {
  const std::size_t mark = name.find(kTemporaryMark);
  if (mark == name.npos) return false;
  const std::string_view target = name.substr(0, mark);
  return parse_checkpoint_name(target) || parse_shard_name(target);
}

}  // namespace ddprun
