// SPDX-License-Identifier: Apache-2.0
// Fields of JSON that anybody may have written: what is missing or of another type is not there.
// Texts come back clean. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::report {

// Valid UTF-8 on one line: bytes that are none become U+FFFD, controls and what would turn or hide
// the text around it are as one_line() has them. Cut behind `most_bytes`, with "…".
std::string clean_text(std::string_view text, std::size_t most_bytes = 1024);

const boost::json::object* object_at(const boost::json::object& object, std::string_view name);
const boost::json::array* array_at(const boost::json::object& object, std::string_view name);
std::optional<double> number_at(const boost::json::object& object, std::string_view name);
// 0 … 2^53; nullopt also where it is less, more or no whole number.
std::optional<std::int64_t> count_at(const boost::json::object& object, std::string_view name);
bool flag_at(const boost::json::object& object, std::string_view name);
std::string text_at(const boost::json::object& object, std::string_view name,
                    std::size_t most_bytes = 1024);
std::vector<std::string> texts_at(const boost::json::object& object, std::string_view name,
                                  std::size_t most);

// "2026-11-26T03:15:07.123Z" in seconds since 1970. nullopt: it is no such text.
std::optional<double> parse_utc(std::string_view text);

}  // namespace ddprun::report
