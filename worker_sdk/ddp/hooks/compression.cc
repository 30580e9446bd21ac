// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/hooks/compression.h"

#include <charconv>
#include <optional>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/ddp/hooks/cast_hook.h"
#include "worker_sdk/ddp/hooks/int8_hook.h"
#include "worker_sdk/ddp/hooks/power_sgd_hook.h"
#include "worker_sdk/ddp/hooks/top_k_hook.h"

namespace ddprun {
namespace {

using Kind = Compression::Kind;

template <typename Number>
bool read(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t end = 0; end != text.npos; text.remove_prefix(end + 1)) {
    end = text.find(':');
    words.push_back(text.substr(0, end));
    if (end == text.npos) break;
  }
  return words;
}

std::optional<Compression> parse(std::string_view text) {
  const std::vector<std::string_view> words = split(text);
  const std::string_view name = words.front();
  Compression result;
  if (name == "topk") {
    result.kind = Kind::kTopK;
    if (words.size() > 3 || (words.size() > 1 && !read(words[1], result.ratio))) return {};
    if (words.size() > 2 && !read(words[2], result.start_iteration)) return {};
    if (!(result.ratio > 0 && result.ratio <= 1)) return {};
    return result;
  }
  if (name == "powersgd") {
    result.kind = Kind::kPowerSgd;
    if (words.size() > 3 || (words.size() > 1 && !read(words[1], result.rank))) return {};
    if (words.size() > 2 && !read(words[2], result.start_iteration)) return {};
    if (result.rank < 1) return {};
    return result;
  }
  for (const Kind kind : {Kind::kNone, Kind::kFloat16, Kind::kBFloat16, Kind::kInt8}) {
    if (text == to_string(Compression{.kind = kind})) return Compression{.kind = kind};
  }
  return {};
}

}  // namespace

Compression parse_compression(std::string_view text) {
  if (const auto parsed = parse(text)) return *parsed;
  throw Error(ErrorCode::kInvalidArgument,
              concat("\"", one_line(text), "\" is no compression: say ", kCompressionForms,
                     ", with 0 < RATIO <= 1 and RANK >= 1"));
}

std::string to_string(const Compression& compression) {
  switch (compression.kind) {
    case Kind::kNone:
      return "none";
    case Kind::kFloat16:
      return "fp16";
    case Kind::kBFloat16:
      return "bf16";
    case Kind::kInt8:
      return "int8";
    case Kind::kTopK: {
      char ratio[32];
      char* const end = std::to_chars(ratio, ratio + sizeof ratio, compression.ratio).ptr;
      return concat("topk:", std::string_view(ratio, end), ":", compression.start_iteration);
    }
    case Kind::kPowerSgd:
      return concat("powersgd:", compression.rank, ":", compression.start_iteration);
  }
  return "";
}

std::shared_ptr<CommHook> make_comm_hook(const Compression& compression) {
  switch (compression.kind) {
    case Kind::kNone:
      return nullptr;
    case Kind::kFloat16:
      return std::make_shared<CastHook>(DType::kFloat16);
    case Kind::kBFloat16:
      return std::make_shared<CastHook>(DType::kBFloat16);
    case Kind::kInt8:
      return std::make_shared<Int8Hook>();
    case Kind::kTopK:
      return std::make_shared<TopKHook>(compression.ratio, compression.start_iteration);
    case Kind::kPowerSgd:
      return std::make_shared<PowerSgdHook>(PowerSgdOptions{
          .rank = compression.rank, .start_iteration = compression.start_iteration});
  }
  return nullptr;
}

}  // namespace ddprun
