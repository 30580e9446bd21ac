// SPDX-License-Identifier: Apache-2.0
// The part of JSON that a safetensors header needs: objects, arrays, texts, natural numbers.
// Boost's JSON isn't used, so that a program with the SDK needs no further library. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

struct JsonValue {
  enum class Kind : std::uint8_t { kObject, kArray, kText, kNumber, kOther };

  Kind kind = Kind::kOther;        // kOther: true, false, null, and numbers that aren't natural
  std::vector<std::string> names;  // the names of an object's items, in their order; no two alike
  std::vector<JsonValue> items;    // the items of an object or an array
  std::string text;
  std::uint64_t number = 0;
};

// Returns nullopt if `text` is no JSON, isn't valid UTF-8, has a name twice in an object, or is
// nested deeper than 16.
std::optional<JsonValue> parse_json(std::string_view text);

// Returns `text`, valid UTF-8, between quotation marks.
std::string quote_json(std::string_view text);

}  // namespace ddprun
